"""Iterative solvers: solutions of dense systems, derivatives, pytrees, stopping."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse.linalg

import volta_fn as vf
import volta_fn.numpy as vnp
from tests.numpy.oracle import sample
from volta_fn.errors import ArgumentError, ArgumentTypeError, ShapeError, TreeError
from volta_fn.scipy.sparse import linalg

SIZE = 9
#: By name: the solver, its options, whether it needs a Hermitian positive definite matrix.
SOLVERS: dict[str, tuple[Callable[..., Any], dict[str, Any], bool]] = {
    "cg": (linalg.cg, {}, True),
    "bicgstab": (linalg.bicgstab, {}, False),
    "gmres": (linalg.gmres, {}, False),
    "gmres incremental": (linalg.gmres, {"solve_method": "incremental"}, False),
    "gmres restarted": (linalg.gmres, {"restart": 4}, False),
    "gmres incremental, restarted": (linalg.gmres, {"restart": 4, "solve_method": "incremental"}, False),
}
TOLERANCE = {"float32": 1e-5, "complex64": 1e-5, "float64": 1e-11, "complex128": 1e-11}


def matrix(dtype: str, is_hermitian: bool) -> np.ndarray:
    """Return a well-conditioned matrix."""
    a = sample((SIZE, SIZE), dtype)
    return ((a @ a.conj().T if is_hermitian else a) + 12 * np.eye(SIZE)).astype(dtype)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("name", SOLVERS)
def test_solutions(name: str, dtype: str) -> None:
    solver, options, is_hermitian = SOLVERS[name]
    a, b, tol = matrix(dtype, is_hermitian), sample((SIZE,), dtype, 1), TOLERANCE[dtype]
    wanted = np.linalg.solve(a, b)
    for more in ({}, {"x0": wanted * 0.9}, {"M": np.diag(1 / np.diag(a))}, {"M": lambda r: r / np.diag(a)}):
        for arguments in (a, lambda x: vnp.asarray(a) @ x):
            x, info = vf.jit(lambda b, g=arguments, m=more: solver(g, b, tol=tol, **options, **m))(b)
            assert info is None
            assert x.dtype == dtype
            np.testing.assert_allclose(x, wanted, rtol=20 * tol, atol=20 * tol)
    x, _ = solver(a, b, tol=tol, **options)
    np.testing.assert_allclose(x, wanted, rtol=20 * tol, atol=20 * tol)


@pytest.mark.wide
@pytest.mark.parametrize("name", SOLVERS)
def test_derivatives_and_batches(name: str) -> None:
    solver, options, is_hermitian = SOLVERS[name]
    # The derivative of cg is that for symmetric matrices.
    function = vf.jit(lambda a, b: solver((a + a.T) / 2 if is_hermitian else a, b, tol=1e-13, **options)[0])
    a, b = matrix("float64", is_hermitian), sample((SIZE,), np.float64, 1)
    vf.test_util.check_grads(function, (a, b), 1)
    stack = np.stack([b, 0 * b, 100 * b])
    np.testing.assert_allclose(vf.vmap(function, (None, 0))(a, stack), np.linalg.solve(a, stack.T).T, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", SOLVERS)
def test_trees(name: str) -> None:
    solver, options, _ = SOLVERS[name]
    b = {"p": np.ones((2, 2), np.float32), "q": [np.arange(3), np.float32(2)]}
    x, _ = solver(lambda x: vf.tree.map(lambda leaf: 4 * leaf, x), b, **options)
    assert vf.tree.structure(x) == vf.tree.structure(b)
    for solved, arguments in zip(vf.tree.leaves(x), vf.tree.leaves(b), strict=True):
        np.testing.assert_allclose(solved, arguments / 4, rtol=1e-4)


@pytest.mark.wide
def test_iterations_are_scipys() -> None:
    a, b = matrix("float64", True), sample((SIZE,), np.float64, 1)
    for count in (0, 1, 3):
        for mine, theirs in ((linalg.cg, scipy.sparse.linalg.cg), (linalg.bicgstab, scipy.sparse.linalg.bicgstab)):
            wanted, _ = theirs(a, b, rtol=0.0, maxiter=count)
            np.testing.assert_allclose(mine(a, b, tol=0.0, maxiter=count)[0], wanted, rtol=1e-9, atol=1e-12)
    for method in ("batched", "incremental"):
        wanted, _ = scipy.sparse.linalg.gmres(a, b, rtol=0.0, restart=3, maxiter=2)
        np.testing.assert_allclose(linalg.gmres(a, b, tol=0.0, restart=3, maxiter=2, solve_method=method)[0], wanted, rtol=1e-9)


@pytest.mark.parametrize("name", SOLVERS)
def test_tolerances(name: str) -> None:
    solver, options, is_hermitian = SOLVERS[name]
    a, b = matrix("float32", is_hermitian), sample((SIZE,), np.float32, 1)
    for limits in ({"tol": 1e-2}, {"tol": 0.0, "atol": 0.1}):
        x, _ = solver(a, b, **limits, **options)
        wanted = max(limits["tol"] * np.linalg.norm(b), limits.get("atol", 0.0))
        assert np.linalg.norm(a @ np.asarray(x) - b) <= 1.01 * wanted
    for nothing in (np.zeros(0, np.float32), np.zeros(SIZE, np.float32)):
        x, _ = solver(lambda x: 3 * x, nothing, **options)
        np.testing.assert_array_equal(x, nothing)


def test_singular_spaces_end_early() -> None:
    b = np.array([1.0, 0.0, 0.0, 0.0], np.float32)
    for method in ("batched", "incremental"):  # b is an eigenvector, so that the first space has one dimension
        np.testing.assert_allclose(linalg.gmres(lambda x: 2 * x, b, solve_method=method)[0], b / 2)


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda solve, b: solve(np.ones((2, 3), np.float32), b), ShapeError), (lambda solve, b: solve("matrix", b), ArgumentTypeError),
        (lambda solve, b: solve(lambda x: x, b, {"x": b}), TreeError), (lambda solve, b: solve(lambda x: x, b, b[:1]), ShapeError),
        (lambda solve, b: linalg.gmres(lambda x: x, b, solve_method="fast"), ArgumentError),
        (lambda solve, b: linalg.gmres(lambda x: x, b, restart=0), ArgumentError),
    ],
)  # fmt: skip
def test_errors(call: Callable[..., Any], error: type[Exception]) -> None:
    for solve in (linalg.cg, linalg.bicgstab, linalg.gmres):
        with pytest.raises(error):
            call(solve, np.ones(2, np.float32))


@pytest.mark.parametrize("name", ["cg", "gmres", "bicgstab"])
def test_weak_numbers_stay_weak(name: str) -> None:
    solve = getattr(vf.scipy.sparse.linalg, name)
    assert solve(lambda x: x, 1.0)[0].weak_type
    assert not solve(lambda x: x, np.float32(1.0))[0].weak_type
