"""Routines that call LAPACK: what they compute, of any shape and dtype, however tasks are shared out, and what is not finite."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.targets.cpu.running import run_routine
from tests.targets.reference import reference
from volta_fn.core.aval import ShapedArray
from volta_fn.core.primitive import PRIMITIVES
from volta_fn.targets.cpu.lapack import ROUTINES

DTYPES = ("float32", "float64", "complex64", "complex128")
#: Sizes on either side of a vector's, and of the blocks of LAPACK; stacks; rows and columns that differ; nothing at all.
SQUARE = ((1, 1), (5, 5), (70, 70), (40, 17, 17), (0, 0), (0, 3, 3))
SHAPES = (*SQUARE, (2, 9, 5), (5, 9), (70, 40), (40, 70), (3, 0), (0, 3))


def make(shape: tuple[int, ...], dtype: str, seed: int = 0) -> np.ndarray:
    x = np.random.default_rng(seed).standard_normal((*shape, 2))
    return (x[..., 0] + (1j * x[..., 1] if dtype.startswith("complex") else 0)).astype(dtype)


def adjoint(x: np.ndarray) -> np.ndarray:
    return x.swapaxes(-1, -2).conj()


def run(name: str, *inputs: np.ndarray, **params: Any) -> list[np.ndarray]:
    """Return the results of a routine, the same to the bit however tasks are shared out."""
    avals = tuple([ShapedArray(x.shape, x.dtype) for x in inputs])
    routine = ROUTINES[name](avals, params)
    results = PRIMITIVES[name].abstract(*avals, **params)
    outputs = [(r.shape, r.dtype) for r in (results if isinstance(results, tuple) else (results,))]
    if routine is None:  # NumPy has the vectors of empty matrices
        return reference(name, list(inputs), params)
    whole, cut = (run_routine(routine, inputs, outputs, chunks=chunks) for chunks in (1, 3))
    for got, again in zip(whole, cut, strict=True):
        assert got.tobytes() == again.tobytes(), "the result depends on how tasks are shared out"
    return whole


def close(got: np.ndarray, wanted: np.ndarray) -> None:
    """Assert equal numbers up to the rounding of a factorisation: some multiples of eps, relative to the largest."""
    eps = np.finfo(got.dtype).eps
    scale = max(1, np.abs(wanted).max(initial=0))
    np.testing.assert_allclose(got, wanted, rtol=0, atol=40 * eps * scale * max(1, wanted.shape[-1]))


def is_unitary(q: np.ndarray) -> None:
    close(adjoint(q) @ q, np.broadcast_to(np.eye(q.shape[-1]), (*q.shape[:-2], q.shape[-1], q.shape[-1])))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_lu(shape, dtype):
    x = make(shape, dtype)
    packed, pivots, permutation = run("lu", x)
    m, n = shape[-2:]
    k = min(m, n)
    lower = np.tril(packed, -1)[..., :k] + np.eye(m, k, dtype=dtype)
    close(lower @ np.triu(packed)[..., :k, :], np.take_along_axis(x, permutation[..., None].astype(int), -2))
    assert (np.abs(np.tril(packed, -1)) <= (1.5 if dtype.startswith("complex") else 1)).all()  # LAPACK compares |re| + |im|
    for index in np.ndindex(shape[:-2]):
        rows = np.arange(m)
        for i, p in enumerate(pivots[index]):
            rows[[i, p]] = rows[[p, i]]
        np.testing.assert_array_equal(rows, permutation[index])


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_qr(shape, dtype, full):
    x = make(shape, dtype)
    q, r = run("qr", x, full_matrices=full, compute_q=True)
    close(q @ r, x)
    is_unitary(q)
    if not full:
        (alone,) = run("qr", x, full_matrices=False, compute_q=False)
        np.testing.assert_array_equal(alone, r)
    np.testing.assert_array_equal(r, np.triu(r))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SQUARE, ids=str)
def test_cholesky(shape, dtype):
    x = make(shape, dtype)
    x = x @ adjoint(x) + np.eye(shape[-1], dtype=dtype)
    (factor,) = run("cholesky", np.tril(x))
    close(factor @ adjoint(factor), x)
    np.testing.assert_array_equal(factor, np.tril(factor))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("n", range(1, 9))
def test_cholesky_of_stacks_of_small_matrices(n, dtype):
    """Matrices are lanes of vectors, of which the last ones are not full; those that are not positive definite are NaN by themselves."""
    x = make((61, n, n), dtype)
    x = x @ adjoint(x) + np.eye(n, dtype=dtype)
    (factor,) = run("cholesky", np.tril(x))
    close(factor @ adjoint(factor), x)
    np.testing.assert_array_equal(factor, np.tril(factor))
    x[17], x[60, -1, -1] = -x[17], np.nan
    (some,) = run("cholesky", x)
    is_nan = np.isnan(some[:, *np.tril_indices(n)])
    np.testing.assert_array_equal(is_nan.all(1), [k in (17, 60) for k in range(61)])
    np.testing.assert_array_equal(np.triu(some, 1), 0)
    valid = [k for k in range(61) if k not in (17, 60)]
    np.testing.assert_array_equal(some[valid], factor[valid])


@pytest.mark.parametrize("columns", [1, 9])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("flags", range(32))
def test_triangular_solve(flags, dtype, columns):
    names = ("left_side", "lower", "transpose_a", "conjugate_a", "unit_diagonal")
    params = {name: bool(flags >> k & 1) for k, name in enumerate(names)}
    a = make((3, 6, 6), dtype) + 6 * np.eye(6, dtype=dtype)
    b = make((3, 6, columns) if params["left_side"] else (3, columns, 6), dtype, seed=1)
    op = np.tril(a) if params["lower"] else np.triu(a)
    op = np.where(np.eye(6), 1, op) if params["unit_diagonal"] else op
    op = op.conj() if params["conjugate_a"] else op
    op = op.swapaxes(-1, -2) if params["transpose_a"] else op
    (x,) = run("triangular_solve", a, b, **params)
    scale = np.abs(x).max() * np.abs(op).max()
    close((op @ x if params["left_side"] else x @ op) / scale, b / scale)


@pytest.mark.parametrize("lower", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SQUARE, ids=str)
def test_eigh(shape, dtype, lower):
    """The other triangle is not read, so that NaN in it changes nothing."""
    x = make(shape, dtype)
    x = x + adjoint(x)
    triangle = np.tri(shape[-1], dtype=bool)
    v, w = run("eigh", np.where(triangle if lower else triangle.T, x, x.dtype.type(np.nan)), lower=lower, sort_eigenvalues=True)
    close((v * w[..., None, :]) @ adjoint(v), x)
    is_unitary(v)
    assert (np.diff(w) >= 0).all()


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_svd(shape, dtype, full):
    x = make(shape, dtype)
    s, u, vt = run("svd", x, full_matrices=full, compute_uv=True)
    k = min(shape[-2:])
    close((u[..., :k] * s[..., None, :]) @ vt[..., :k, :], x)
    is_unitary(u)
    is_unitary(adjoint(vt))
    close(run("svd", x, full_matrices=full, compute_uv=False)[0], s)
    assert (np.diff(s) <= 0).all() and (s >= 0).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SQUARE, ids=str)
def test_eig(shape, dtype):
    x = make(shape, dtype)
    w, v = run("eig", x, compute_vectors=True)
    close(x @ v, v * w[..., None, :])
    np.testing.assert_allclose(np.linalg.norm(v, axis=-2), np.ones(w.shape), rtol=1e-5)
    values = run("eig", x, compute_vectors=False)[0]
    size = max(1, shape[-1])
    close(np.sum(values, -1, keepdims=True) / size, np.trace(x, axis1=-2, axis2=-1)[..., None].astype(w.dtype) / size)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SQUARE, ids=str)
def test_schur(shape, dtype):
    x = make(shape, dtype)
    t, q = run("schur", x, compute_vectors=True)
    close(q @ t @ adjoint(q), x)
    is_unitary(q)
    np.testing.assert_array_equal(t, np.triu(t, 0 if dtype.startswith("complex") else -1))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SQUARE, ids=str)
@pytest.mark.parametrize("name", ["hessenberg", "tridiagonal", "householder_product", "tridiagonal_solve"])
def test_as_on_the_host(name, shape, dtype):
    x = make(shape, dtype)
    n = shape[-1]
    calls: dict[str, tuple[list[np.ndarray], dict[str, Any]]] = {
        "hessenberg": ([x], {}),
        "tridiagonal": ([x + adjoint(x)], {"lower": True}),
        "householder_product": ([np.concatenate([x, x], -2) / 8, make(shape[:-1], dtype)], {}),
        "tridiagonal_solve": ([*[make(shape[:-1], dtype, k) + (3 if k == 1 else 0) for k in range(3)], make((*shape[:-1], 3), dtype)], {}),
    }
    inputs, params = calls[name]
    for got, wanted in zip(run(name, *inputs, **params), reference(name, inputs, params), strict=True):
        assert got.dtype == wanted.dtype and got.shape == wanted.shape
        if got.size and n:
            close(got, wanted)


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_not_finite_spoils_its_own_matrix_alone(dtype, wrong):
    x = make((3, 6, 6), dtype)
    x = x @ adjoint(x) + np.eye(6, dtype=dtype)
    last, x[1, 3, 2] = x.copy(), wrong
    last[1, 5, 5] = wrong  # beyond the last whole vector of the check
    calls: dict[str, dict[str, Any]] = {
        "svd": {"full_matrices": False, "compute_uv": True}, "eigh": {"lower": True, "sort_eigenvalues": True},
        "eig": {"compute_vectors": True}, "schur": {"compute_vectors": True},
    }  # fmt: skip
    for name, params in calls.items():
        for result in [*run(name, x, **params), *run(name, last, **params)]:
            np.testing.assert_array_equal(np.isnan(result).reshape(3, -1).all(1), [False, True, False], err_msg=name)
    for name, params in {
        "lu": {},
        "qr": {"full_matrices": False, "compute_q": True},
        "cholesky": {},
        "hessenberg": {},
        "tridiagonal": {"lower": True},
    }.items():
        first = run(name, x, **params)[0]
        np.testing.assert_array_equal(np.isfinite(first).reshape(3, -1).all(1), [True, False, True], err_msg=name)


def test_singular_and_indefinite_matrices():
    x = np.stack([np.eye(2), -np.eye(2), np.zeros((2, 2))]).astype(np.float64)
    (factor,) = run("cholesky", x)
    np.testing.assert_array_equal(factor[0], np.eye(2))
    assert np.isnan(factor[1:][:, *np.tril_indices(2)]).all() and (factor[:, 0, 1] == 0).all()
    packed, _, permutation = run("lu", np.array([[0.0, 1.0], [0.0, 2.0]]))
    np.testing.assert_array_equal(packed, [[0, 1], [0, 2]])
    np.testing.assert_array_equal(permutation, [0, 1])
    zeros = np.zeros((1, 2))
    assert np.isnan(run("tridiagonal_solve", zeros, zeros, zeros, np.ones((1, 2, 1)))[0]).all()
