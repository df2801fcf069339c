"""check_grads finds wrong derivatives of every kind, and passes right ones, of functions that JAX's passes too."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import volta_fn as vf
from volta_fn import nn, settings
from volta_fn import numpy as vnp
from volta_fn.errors import ArgumentError, DerivativeError, GradientError
from volta_fn.test_util import check_grads

X = np.random.default_rng(0).normal(size=(3, 2))


def model(params: Any, x: Any, labels: Any) -> dict[str, Any]:
    hidden = vnp.tanh(x @ params["w"] + params["b"])
    return {"loss": vnp.mean((hidden.sum(1) - labels) ** 2), "hidden": hidden, "count": labels.sum()}


def params_of(dtype: str) -> tuple[Any, ...]:
    params = {"w": X[:2].astype(dtype), "b": np.ones(2, dtype)}
    return params, X.astype(dtype), np.array([1, 0, 2])


@pytest.mark.wide
@pytest.mark.parametrize("modes", [("fwd",), ("rev",), ("fwd", "rev"), "rev"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_trees_with_integers_among_them(dtype, modes):
    check_grads(model, params_of(dtype), order=2, modes=modes)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "complex64", "complex128"])
def test_every_dtype(dtype):
    check_grads(lambda x: vnp.sin(x) * x, (X.astype(dtype),), order=2)


@pytest.mark.wide
def test_functions_of_complex_numbers_that_are_not_holomorphic():
    z = X[:, 0] + 1j * X[:, 1]
    check_grads(lambda z: (vnp.abs(z), z.conj() * z.real), (z,), order=2)


def test_third_derivatives_single_numbers_and_empty_arrays():
    check_grads(lambda x, nothing: (x**4, nothing * x), (0.7, np.ones((0, 2), np.float32)), order=3)


def test_layers():
    layer = nn.LSTM.init(vf.random.key(0), 2, 3, dtype="float64")
    check_grads(lambda layer, x: layer(x)[0], (layer, X[None]), order=1)


def planted(slope: Any, curvature: Any = 1.0) -> Any:
    """Compute x² with derivatives that are off by those factors."""
    square = vf.custom_jvp(lambda x: x * x)

    @vf.custom_jvp
    def derivative(x):
        return 2 * slope * x

    derivative.defjvps(lambda g, out, x: 2 * slope * curvature * g)
    square.defjvps(lambda g, out, x: derivative(x) * g)
    return square


@pytest.mark.wide
@pytest.mark.parametrize("mode", ["fwd", "rev"])
def test_wrong_slopes_are_found(mode):
    x = vnp.asarray(X)
    check_grads(planted(1.0), (x,), 2, mode)
    with pytest.raises(DerivativeError, match=f"check_grads: {'jvp' if mode == 'fwd' else 'vjp'} of f: "):
        check_grads(planted(1.0001), (x,), 1, mode)


@pytest.mark.wide
@pytest.mark.parametrize(("mode", "what"), [("fwd", "jvp of jvp of f"), ("rev", "vjp of vjp of f")])
def test_wrong_second_derivatives_are_found(mode, what):
    square = planted(1.0, 1.001)
    check_grads(square, (vnp.asarray(X),), 1, mode)
    with pytest.raises(DerivativeError, match=what):
        check_grads(square, (vnp.asarray(X),), 2, mode)


def test_messages_name_the_place():
    def function(params):
        return {"right": params["a"] ** 2, "wrong": vnp.where(np.arange(3) == 1, planted(1.5)(params["b"]), params["b"])}

    args = ({"a": vnp.ones(3), "b": vnp.full(3, 2.0)},)
    with pytest.raises(DerivativeError, match=r"result \['wrong'\] at index \(1,\): .*\(1 of 3 numbers differ\)"):
        check_grads(function, args, 1, "fwd")
    with pytest.raises(DerivativeError, match=r"argument \[0\]\['b'\]: the derivative is .*, but finite differences give "):
        check_grads(function, args, 1, "rev")
    with pytest.raises(AssertionError, match=r"result: the derivative is"):
        check_grads(planted(2.0), (1.0,), 1)


def test_a_rule_of_reverse_mode_alone():
    @vf.custom_vjp
    def twice(x, y):
        return 2 * x * y

    twice.defvjp(lambda x, y: (2 * x * y, (x, y)), lambda residuals, g: (2 * g * residuals[1], 3 * g * residuals[0]))
    with pytest.raises(DerivativeError, match=r"argument \[1\]"):
        check_grads(twice, (1.0, 2.0), 1, "rev")


def test_nan_and_jumps_are_no_derivatives():
    with pytest.raises(DerivativeError, match="nan"):
        check_grads(vnp.sqrt, (vnp.array([0.0]),), 1)
    with pytest.raises(DerivativeError):
        check_grads(vnp.floor, (vnp.array([1.0]),), 1)


def test_tolerances_and_steps():
    square = planted(1.01)
    check_grads(square, (1.0,), 1, atol=0, rtol=0.1)
    check_grads(square, (1.0,), 1, atol={np.float16: 1.0, "float32": 0, vf.dtypes.float0: 0}, rtol={np.float32: 0.1})
    with pytest.raises(DerivativeError):
        check_grads(square, (1.0,), 1, atol={np.float64: 1.0}, rtol={np.float32: 0.0})
    check_grads(lambda x: vnp.abs(x - 1), (1.5,), 1, eps=1e-2)
    with pytest.raises(DerivativeError):
        check_grads(lambda x: vnp.abs(x - 1), (1.5,), 1, eps=4.0)


@pytest.mark.wide
@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"order": 0}, ArgumentError, "order is a whole number, 1 or more, got 0"),
        ({"order": True}, ArgumentError, "order"),
        ({"modes": ()}, ArgumentError, 'modes are "fwd", "rev" or both'),
        ({"modes": ("back",)}, ArgumentError, "modes"),
        ({"args": (np.arange(3),)}, GradientError, "no argument"),
        ({"f": lambda x: x > 0}, GradientError, "no result"),
    ],
)
def test_bad_arguments(options, error, message):
    arguments = {"f": vnp.sin, "args": (1.0,), "order": 1} | options
    with pytest.raises(error, match=message):
        check_grads(**arguments)


@pytest.mark.parametrize("function", ["sin", "exp", "cumsum", "sort", "prod"])
def test_passes_what_jax_passes(function):
    jax = pytest.importorskip("jax")
    from jax.test_util import check_grads as theirs

    point = X.astype("float32")
    theirs(getattr(jax.numpy, function), (point,), order=2, atol=5e-2, rtol=5e-2)
    check_grads(getattr(vnp, function), (point,), order=2)


def test_results_that_stay_infinite_do_not_change_in_jaxs_mode(monkeypatch):
    monkeypatch.setattr(settings.current, "permissive", True)
    windows = lambda x: vf.lax.reduce_window(x, -np.inf, vf.lax.max, (1,), (1,), [(0, 2)])
    check_grads(windows, (np.float32([1, 3, 2]),), order=1)
    wrong = vf.custom_jvp(windows)
    wrong.defjvp(lambda primals, tangents: (windows(*primals), vnp.ones(5, "float32")))
    with pytest.raises(DerivativeError, match=r"index \(.*finite differences give"):
        check_grads(wrong, (np.float32([1, 3, 2]),), order=1, modes="fwd")


def test_a_small_jump_along_one_argument_counts_in_the_sum_in_jaxs_mode(monkeypatch):
    stepped = lambda x, y: vnp.sum(1e3 * x) + vnp.where(y > 0.3, 1e-3, 0) + y
    point = np.float64([1, 2, 3]), 0.3
    with pytest.raises(DerivativeError, match=r"argument \[1\]"):
        check_grads(stepped, point, order=1, modes="rev")
    monkeypatch.setattr(settings.current, "permissive", True)
    check_grads(stepped, point, order=1, modes="rev", rtol=1e-1)
    wrong = vf.custom_vjp(stepped)
    wrong.defvjp(lambda x, y: (stepped(x, y), x), lambda x, ct: (2e3 * ct * x, ct))
    with pytest.raises(DerivativeError, match=r"argument \[0\], \[1\]: .* direction of shape \(3,\), \(\)"):
        check_grads(wrong, point, order=1, modes="rev", rtol=1e-1)
