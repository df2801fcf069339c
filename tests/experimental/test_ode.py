"""`odeint`: known solutions, SciPy's and JAX's, derivatives, errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.experimental.ode
import numpy as np
import pytest
import scipy.integrate

import volta_fn as vf
import volta_fn.numpy as vnp
from volta_fn.errors import ArgumentTypeError, ShapeError
from volta_fn.experimental.ode import odeint

TIMES = np.linspace(0.0, 3.0, 5)


def pendulum(xp: Any) -> Callable[..., Any]:
    """Return the derivative of angle and speed, with friction and gravity."""
    return lambda y, t, friction, gravity: xp.stack([y[1], -friction * y[1] - gravity * xp.sin(y[0])])


def van_der_pol(xp: Any) -> Callable[..., Any]:
    """Return an oscillator with slow and fast times."""
    return lambda y, t, stiffness, other: xp.stack([y[1], stiffness * (1 - y[0] ** 2) * y[1] - other * y[0]])


@pytest.mark.wide
@pytest.mark.parametrize(
    ("make", "y0", "args"), [(pendulum, (3.0, 0.0), (0.25, 9.8)), (van_der_pol, (2.0, 0.0), (5.0, 1.0))], ids=["pendulum", "van der pol"]
)
def test_solutions_are_scipys(make: Any, y0: tuple[float, ...], args: tuple[float, ...]) -> None:
    wanted = scipy.integrate.solve_ivp(
        lambda t, y: make(np)(y, t, *args), TIMES[[0, -1]], np.array(y0), "DOP853", TIMES, rtol=1e-12, atol=1e-12
    ).y.T
    for solve in (odeint, vf.jit(odeint, static_argnums=0)):
        np.testing.assert_allclose(solve(make(vnp), np.array(y0), TIMES, *args), wanted, rtol=2e-6, atol=2e-6)
    loose = odeint(make(vnp), np.array(y0), TIMES, *args, rtol=1e-3, atol=1e-3)
    assert 1e-6 < np.abs(np.asarray(loose) - wanted).max() < 0.1


@pytest.mark.wide
def test_gradients_are_jaxs() -> None:
    y0, args = np.array([3.0, 0.0]), (np.float64(0.25), np.float64(9.8))
    loss = lambda solve, make: lambda *a: (solve(make, *a) ** 2).sum()
    got = vf.jit(vf.grad(loss(odeint, pendulum(vnp)), (0, 1, 2, 3)))(y0, TIMES, *args)
    with jax.enable_x64(True):
        wanted = jax.grad(loss(jax.experimental.ode.odeint, pendulum(jax.numpy)), (0, 1, 2, 3))(y0, TIMES, *args)
    for mine, theirs in zip(got, wanted, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.wide
def test_derivatives_and_batches() -> None:
    def decay(y0: Any, times: Any, rate: Any, scale: Any) -> Any:
        return odeint(lambda y, t, n: {"a": -rate * y["a"] * t * n, "b": scale["s"] * y["b"]}, y0, times, 2)

    point = ({"a": np.array([1.0, 2.0]), "b": np.float64(0.5)}, np.array([0.1, 0.5, 0.9]), np.float64(0.7), {"s": np.float64(0.2)})
    # Each order of derivatives integrates with the tolerance of odeint, 1.4e-8 a step.
    vf.test_util.check_grads(vf.jit(decay), point, 2, modes=["rev"], atol=2e-5, rtol=2e-5)
    rates = np.array([0.5, 1.0, 4.0])
    result = vf.vmap(lambda r: odeint(lambda y, t: -r * y, 1.0, TIMES))(rates)
    np.testing.assert_allclose(result, np.exp(-rates[:, None] * TIMES), rtol=1e-5, atol=1e-6)


def test_kinds_of_numbers() -> None:
    times = np.array([0.0, np.pi / 2], np.float32)
    np.testing.assert_allclose(odeint(lambda y, t: 1j * y, 1 + 0j, times), [1, 1j], atol=1e-5)
    assert odeint(lambda y, t: y, 1, times).dtype == np.float32
    assert odeint(lambda y, t: y, np.float32(1), times[:1]).tolist() == [1.0]
    assert odeint(lambda y, t: y, np.zeros((0, 2), np.float32), times).shape == (2, 0, 2)
    still = odeint(lambda y, t: 0 * y, np.array([2.0, 0.0], np.float32), times)
    np.testing.assert_array_equal(still, [[2.0, 0.0]] * 2)


def test_limits_of_steps() -> None:
    times = np.array([0.0, 1.0], np.float32)
    exact = odeint(lambda y, t: vnp.where(t < 0.5, 0.0, 1.0) + 0 * y, np.float32(0), times, rtol=1e-3, atol=1e-3, hmax=0.01)
    assert abs(float(exact[1]) - 0.5) < 0.01
    short = odeint(lambda y, t: -50 * y, np.float32(1), times, mxstep=2)
    assert abs(float(short[1]) - np.exp(-50)) > 1e-3


def test_errors() -> None:
    for times, error in (
        (np.arange(3), ArgumentTypeError),
        (np.ones((2, 2), np.float32), ShapeError),
        (np.ones(0, np.float32), ShapeError),
    ):
        with pytest.raises(error):
            odeint(lambda y, t: y, np.float32(1), times)
    with pytest.raises(ArgumentTypeError):
        odeint(3, np.float32(1), np.ones(2, np.float32))  # type: ignore[arg-type]  # on purpose


@pytest.mark.wide
def test_python_floats_keep_their_digits() -> None:
    values = odeint(lambda y, t, k: 0 * y + k, 0.1, np.array([0.0, 1.0]), 0.3)
    np.testing.assert_allclose(values, [0.1, 0.4], rtol=1e-14)
