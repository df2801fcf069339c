"""`minimize`: known minima, SciPy's results, options, errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.optimize

import volta_fn as vf
import volta_fn.numpy as vnp
from volta_fn.errors import ArgumentError, ArgumentTypeError, GradientError, ShapeError
from volta_fn.scipy.optimize import OptimizeResults, minimize

METHODS = ["BFGS", "l-bfgs-experimental-do-not-rely-on-this"]


def himmelblau(xp: Any) -> Callable[[Any], Any]:
    """Return a function with four minima of value 0."""
    return lambda p: (p[0] ** 2 + p[1] - 11) ** 2 + (p[0] + p[1] ** 2 - 7) ** 2


def eggholder(xp: Any) -> Callable[[Any], Any]:
    """Return a function with many minima."""
    return lambda x: -(x[1] + 47) * xp.sin(xp.sqrt(abs(x[0] / 2 + x[1] + 47))) - x[0] * xp.sin(xp.sqrt(abs(x[0] - x[1] - 47)))


#: Functions of a namespace, and where to begin.
PROBLEMS: dict[str, tuple[Callable[[Any], Callable[[Any], Any]], list[float]]] = {
    "rosenbrock": (lambda xp: lambda x: xp.sum(100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2), [-1.0, 0.0, 0.5]),
    "himmelblau": (himmelblau, [1.0, 1.0]),
    "eggholder": (eggholder, [100.0, 100.0]),
    "scales": (lambda xp: lambda x: xp.sum((x - 3) ** 2 * np.array([1.0, 10.0, 1000.0], np.float32)), [0.0, 0.0, 0.0]),
    "logistic": (lambda xp: lambda x: xp.sum(xp.log1p(xp.exp(-x)) + x**2 / 2), [9.0, -9.0]),
    "minimum at the start": (lambda xp: lambda x: xp.sum(x**2), [0.0, 0.0]),
    "nan beyond": (lambda xp: lambda x: xp.sum(x - xp.log(x)), [0.01, 3.0]),
}


@pytest.mark.wide
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", PROBLEMS)
def test_minima_are_scipys(name: str, method: str, dtype: str) -> None:
    make, start = PROBLEMS[name]
    x0 = np.array(start, dtype)
    result = vf.jit(lambda x: minimize(make(vnp), x, method=method))(x0)
    with np.errstate(invalid="ignore"):
        wanted = scipy.optimize.minimize(make(np), x0.astype(float), method="BFGS", options={"gtol": 1e-7})
    assert {result.x.dtype.name, result.jac.dtype.name, result.fun.dtype.name} == {dtype}
    np.testing.assert_allclose(result.x, wanted.x, rtol=2e-3, atol=1e-4)
    assert int(result.nit) <= 2 * wanted.nit + 5
    assert bool(result.success) == (int(result.status) == 0)
    if dtype == "float64":  # in float32 rounding may end the line search before the gradient is that small
        assert result.success
    assert (result.hess_inv is None) == (method != "BFGS")


@pytest.mark.wide
def test_inverse_of_the_hessian() -> None:
    matrix = np.array([[3.0, 1.0], [1.0, 2.0]])
    result = minimize(lambda x, a: x @ a @ x / 2, np.array([1.0, -2.0]), (matrix,), method="bfgs", tol=1e-10)
    np.testing.assert_allclose(result.hess_inv, np.linalg.inv(matrix), rtol=5e-3)  # it converges with the steps
    np.testing.assert_allclose(result.jac, np.zeros(2), atol=1e-9)


@pytest.mark.parametrize("method", METHODS)
def test_options_and_batches(method: str) -> None:
    square = lambda x: ((x - 2) ** 2).sum()
    stopped = minimize(square, np.zeros(2, np.float32), method=method, options={"maxiter": 0})
    assert isinstance(stopped, OptimizeResults)
    assert (bool(stopped.success), int(stopped.status), int(stopped.nit), int(stopped.nfev)) == (False, 1, 0, 1)
    loose = minimize(square, np.zeros(2, np.float32), method=method, tol=100.0)
    assert loose.success
    assert int(loose.nit) == 0
    if method != "BFGS":
        for name in ("maxfun", "maxgrad"):
            few = minimize(himmelblau(vnp), np.ones(2, np.float32), method=method, options={name: 2})
            assert (int(few.status), 2 <= int(few.nfev) < 10) == (1, True)
    nowhere = minimize(lambda x: x.sum() * np.nan, np.ones(2, np.float32), method=method)
    assert int(nowhere.status) == 5
    integers = minimize(square, np.zeros(2, np.int32), method=method)
    np.testing.assert_allclose(integers.x, [2.0, 2.0], rtol=1e-4)
    starts = np.array([[1.0, 1.0], [-3.0, 3.0], [3.5, -2.0]], np.float32)
    result = vf.vmap(lambda x: minimize(himmelblau(vnp), x, method=method).x)(starts)
    np.testing.assert_allclose(result, [[3.0, 2.0], [-2.805118, 3.131313], [3.584428, -1.848126]], rtol=1e-3)


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda f, x: minimize(f, x, method="newton"), ArgumentError), (lambda f, x: minimize(f, x, x, method="BFGS"), ArgumentTypeError),
        (lambda f, x: minimize(f, x, method="BFGS", options={"maxcor": 3}), ArgumentError),
        (lambda f, x: minimize(f, x[None], method="BFGS"), ShapeError), (lambda f, x: minimize(f, x + 1j, method="BFGS"), GradientError),
        (lambda f, x: minimize(lambda x: x, x, method="BFGS"), GradientError),
        (lambda f, x: minimize(3, x, method="BFGS"), ArgumentTypeError),
    ],
)  # fmt: skip
def test_errors(call: Callable[..., Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        call(lambda x: (x**2).sum(), np.ones(2, np.float32))


@pytest.mark.parametrize("method", METHODS)
def test_complex_numbers(method: str) -> None:
    wanted = np.array([1.0, 2.0 - 3.0j, -5.0j], np.complex64)
    distance = lambda z: (abs(z - wanted) ** 2).sum()
    result = vf.jit(lambda z: minimize(distance, z, method=method))(np.zeros(3, np.complex64))
    np.testing.assert_allclose(result.x, wanted, atol=1e-4)
    np.testing.assert_allclose(result.jac, vf.grad(distance)(result.x), atol=1e-5)


def test_a_large_curvature_is_not_lost_in_rounding() -> None:
    result = minimize(lambda x: ((1e4 * x) ** 2).mean(), np.ones(2, np.float32), method="BFGS")
    np.testing.assert_allclose(result.x, np.zeros(2), atol=1e-6)
