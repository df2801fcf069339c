"""`custom_linear_solve` and `custom_root`: solutions, derivatives, errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as vnp
from tests.numpy.oracle import sample
from volta_fn import lax
from volta_fn.errors import DTypeError, GradientError, ShapeError, TreeError

MATRIX = sample((4, 4), np.float64) + 6 * np.eye(4)
VECTOR = sample((4,), np.float64, 1)


def dense(matvec: Any, b: Any) -> Any:
    """Solve with the matrix of a linear function, as a solver of users might."""
    return vnp.linalg.solve(vf.jacfwd(matvec)(b), b)


def opaque(matvec: Any, b: Any) -> Any:
    """Solve the same by a loop that reverse mode cannot pass: x ← x + (b - A x) / 7."""
    return lax.while_loop(lambda s: s[1] < 200, lambda s: (s[0] + (b - matvec(s[0])) / 7, s[1] + 1), (0 * b, 0))[0]


def solution(a: Any, b: Any, **options: Any) -> Any:
    """Return x with a @ x = b."""
    options = {"solve": dense, "transpose_solve": dense} | options
    return lax.custom_linear_solve(lambda x: a @ x, b, **options)


def with_aux(matvec: Any, b: Any) -> Any:
    """Solve, and return something else, too."""
    return dense(matvec, b), {"steps": 3, "b": b}


@pytest.mark.wide
@pytest.mark.parametrize("jit", [False, True])
def test_systems(jit: bool) -> None:
    wrap = vf.jit if jit else lambda f: f
    symmetric = MATRIX + MATRIX.T
    cases: dict[str, Any] = {
        "dense": (solution, MATRIX), "loop": (lambda a, b: solution(a, b, solve=opaque, transpose_solve=opaque), MATRIX),
        "symmetric": (lambda a, b: solution(a, b, transpose_solve=None, symmetric=True), symmetric),
        "aux": (lambda a, b: solution(a, b, solve=with_aux, transpose_solve=with_aux, has_aux=True)[0], MATRIX),
    }  # fmt: skip
    for name, (function, matrix) in cases.items():
        np.testing.assert_allclose(wrap(function)(matrix, VECTOR), np.linalg.solve(matrix, VECTOR), 1e-10, err_msg=name)
        if name != "symmetric":  # whose derivatives are those of symmetric matrices alone
            vf.test_util.check_grads(wrap(function), (matrix, VECTOR), 2)
    vf.test_util.check_grads(wrap(lambda m, b: solution(m + m.T, b, transpose_solve=None, symmetric=True)), (MATRIX, VECTOR), 2)
    vf.test_util.check_grads(wrap(lambda a, b: solution(a, b, transpose_solve=None)), (MATRIX, VECTOR), 2, modes=["fwd"])


@pytest.mark.wide
@pytest.mark.parametrize("axes", [(0, None), (None, 0), (0, 0), (2, 1)])
def test_batches(axes: tuple[Any, Any]) -> None:
    matrices, vectors = np.stack([MATRIX, MATRIX.T, MATRIX + 1]), np.stack([VECTOR, VECTOR + 1, -VECTOR])
    operands = [np.moveaxis(all_, 0, d) if d is not None else all_[0] for all_, d in zip((matrices, vectors), axes, strict=True)]
    wanted = [np.linalg.solve(matrices[i if axes[0] is not None else 0], vectors[i if axes[1] is not None else 0]) for i in range(3)]
    function = vf.vmap(lambda a, b: solution(a, b, solve=opaque, transpose_solve=opaque), axes)
    np.testing.assert_allclose(function(*operands), wanted, 1e-10)
    vf.test_util.check_grads(vf.jit(function), operands, 1)


@pytest.mark.wide
def test_trees_and_complex_numbers() -> None:
    b = {"u": VECTOR[:2], "v": (VECTOR[2:3], VECTOR[3])}
    matvec = lambda x: vf.tree.map(lambda leaf, scale: scale * leaf, x, {"u": 2.0, "v": (4.0, 8.0)})
    solve = lambda f, b: vf.tree.map(lambda leaf, scale: leaf / scale, b, {"u": 2.0, "v": (4.0, 8.0)})
    function = lambda b: lax.custom_linear_solve(matvec, b, solve, symmetric=True)
    assert vf.tree.structure(function(b)) == vf.tree.structure(b)
    vf.test_util.check_grads(vf.jit(function), (b,), 2)
    holomorphic = lambda m, b: vnp.linalg.solve(vf.jacfwd(m, holomorphic=True)(b), b)
    numbers = (MATRIX + 1j * MATRIX[::-1], VECTOR + 1j)
    vf.test_util.check_grads(lambda a, b: solution(a, b, solve=holomorphic, transpose_solve=holomorphic), numbers, 1)


def newton(f: Any, x: Any) -> Any:
    """Solve a scalar equation by a loop that reverse mode cannot pass."""
    return lax.while_loop(lambda s: s[1] < 40, lambda s: (s[0] - f(s[0]) / vf.grad(f)(s[0]), s[1] + 1), (x, 0))[0]


@pytest.mark.wide
@pytest.mark.parametrize("has_aux", [False, True])
def test_roots(has_aux: bool) -> None:
    solve = (lambda f, x: (newton(f, x), {"n": 40})) if has_aux else newton

    def root(a: Any, c: Any) -> Any:
        result = lax.custom_root(lambda x: x * x * c - a, 1.0, solve, lambda g, y: y / g(1.0), has_aux)
        return result[0] if has_aux else result

    point = (np.float64(3.0), np.float64(0.7))
    for function in (root, vf.jit(root)):
        assert abs(float(function(*point)) - (3.0 / 0.7) ** 0.5) < 1e-12
        vf.test_util.check_grads(function, point, 2)
    many = vf.vmap(vf.grad(root), (0, None))(np.array([1.0, 4.0]), 1.0)
    np.testing.assert_allclose(many, [0.5, 0.25], 1e-6)


@pytest.mark.wide
def test_roots_of_trees() -> None:
    def root(a: Any) -> Any:
        f = lambda x: {"p": x["p"] ** 3 - a, "q": x["q"] - x["p"][0]}
        solve = lambda f, x: {"p": vnp.cbrt(a), "q": vnp.cbrt(a)[0]}

        def solve_tangent(g: Any, y: Any) -> Any:
            flat, unravel = vf.flatten_util.ravel_pytree(y)
            matrix = vf.jacfwd(lambda v: vf.flatten_util.ravel_pytree(g(unravel(v)))[0])(flat)
            return unravel(vnp.linalg.solve(matrix, flat))

        return lax.custom_root(f, {"p": 0 * a, "q": a[0]}, solve, solve_tangent)

    vf.test_util.check_grads(vf.jit(root), (np.array([2.0, 5.0]),), 2)


@pytest.mark.parametrize("traced", [False, True])
def test_roots_of_a_scalar_in_several_variables(traced: bool) -> None:
    """A curve of zeros: f's value has other shapes than its argument, and only its derivative needs them to agree."""

    def project(f: Any, x: Any) -> Any:
        step = lambda _, x: x - f(x) * vf.grad(f)(x) / (vf.grad(f)(x) ** 2).sum()
        return lax.fori_loop(0, 20, step, x), f(x)

    def root(start: Any, radius: Any) -> Any:
        return lax.custom_root(lambda x: x @ x - radius**2, start, project, lambda g, y: y, has_aux=True)

    wrap = vf.jit if traced else lambda f: f
    start = np.array([0.3, 0.4], np.float32)
    point, residual = wrap(root)(start, 2.0)
    np.testing.assert_allclose(point, [1.2, 1.6], 1e-6)
    np.testing.assert_allclose(residual, 0.25 - 4.0, 1e-6)
    np.testing.assert_allclose(vf.vmap(wrap(root), (0, None))(np.stack([start, 9 * start]), 2.0)[0], [[1.2, 1.6]] * 2, 1e-6)
    with pytest.raises(ShapeError, match="for derivatives"):
        vf.jacfwd(lambda radius: wrap(root)(start, radius)[0])(2.0)


def test_a_solution_of_another_shape() -> None:
    first = lambda a: lax.custom_root(lambda x: x - a, np.ones(2, np.float32), lambda f, x: f(x)[0] + 3, lambda g, y: y)
    assert float(first(2.0)) == float(vf.jit(first)(2.0)) == 2.0


@pytest.mark.parametrize("traced", [False, True])
def test_errors(traced: bool) -> None:
    b = np.ones(2, np.float32)
    wrap = vf.jit if traced else lambda f: f
    twice = lambda f, x: (x, x)
    for call, error in [
        (lambda b: lax.custom_linear_solve(lambda x: x, b, lambda f, x: x[:1]), ShapeError),
        (lambda b: lax.custom_linear_solve(lambda x: x, b, twice), TreeError),
        (lambda b: lax.custom_linear_solve(lambda x: x, b, lambda f, x: x, has_aux=True), TreeError),
        (lambda b: lax.custom_linear_solve(lambda x: x, b, lambda f, x: x.astype("float16")), DTypeError),
        (lambda b: lax.custom_linear_solve(lambda x: (x,), b, lambda f, x: x), TreeError),
        (lambda b: lax.custom_linear_solve(lambda x: x[:1], b, lambda f, x: x), ShapeError),
        (lambda b: lax.custom_root(lambda x: (x, x), b, lambda f, x: x, lambda g, y: y), TreeError),
        (lambda b: lax.custom_root(lambda x: x - b, b, twice, lambda g, y: y), TreeError),
    ]:
        with pytest.raises(error):
            wrap(call)(b)
    with pytest.raises(GradientError, match="transpose_solve"):
        vf.grad(lambda b: wrap(lambda b: lax.custom_linear_solve(lambda x: 2 * x, b, lambda f, x: x / 2))(b).sum())(b)


@pytest.mark.wide
def test_python_floats_keep_their_digits() -> None:
    solve = lambda b: lax.custom_linear_solve(lambda x: x * np.float64(1), b, lambda f, y: y, symmetric=True)
    assert solve(0.1).item() == vf.jit(lambda: solve(0.1))().item() == 0.1
    root = lambda: lax.custom_root(lambda x: x * np.float64(1), 0.1, lambda f, x: x, lambda g, y: y)
    assert root().item() == vf.jit(root)().item() == 0.1
