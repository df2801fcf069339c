"""Factorisations: what factors are made of, for sizes beyond what the samples have."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import volta_fn as vf
from tests.targets.reference import assert_same
from tests.targets.wgsl.library.checking import check, least_capabilities, results


def matrices(dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    rng = np.random.default_rng(0)
    x = rng.normal(size=shape)
    return (x + 1j * rng.normal(size=shape) if dtype.startswith("complex") else x).astype(dtype)


def adjoint(x: np.ndarray) -> np.ndarray:
    return x.conj().swapaxes(-1, -2)


def close(got: np.ndarray, wanted: np.ndarray) -> None:
    tolerance = 2e-5 if got.dtype.name in ("float32", "complex64") else 1e-13
    np.testing.assert_allclose(got, wanted, rtol=tolerance, atol=tolerance * max(1.0, np.abs(wanted).max(initial=0)))


def test_triangular_solve() -> None:
    dtype = "complex64"
    a = matrices(dtype, (2, 33, 33)) * 0.1 + np.eye(33, dtype=dtype) * 3
    for left, lower, turned in itertools.product([False, True], repeat=3):
        conjugate, unit = left != lower, lower != turned
        b = matrices(dtype, (2, 33, 20) if left else (2, 20, 33))
        names = ("left_side", "lower", "transpose_a", "conjugate_a", "unit_diagonal")
        params = dict(zip(names, (left, lower, turned, conjugate, unit), strict=True))
        check("triangular_solve", [a * (0.1 if unit else 1), b], params, exact=False)


@pytest.mark.parametrize("dtype", ["float32", "complex64"])
@pytest.mark.parametrize("shape", [(33, 33), (1, 1), (3, 7), (2, 64), (64, 3), (17, 31)])
def test_matrices_in_workgroup_memory(shape: tuple[int, int], dtype: str) -> None:
    """With odd numbers of columns, one alone, and rows that invocations do not divide evenly."""
    x, rank = matrices(dtype, shape), min(shape)
    with vf.default_device("gpu"):
        u, values, vt = map(np.asarray, vf.numpy.linalg.svd(x, full_matrices=False))
        factors, _, permutation = map(np.asarray, vf.lax.linalg.lu(vf.numpy.asarray(x)))
    close(values, np.linalg.svd(x, compute_uv=False))
    close((u * values) @ vt, x)
    close(adjoint(u) @ u, np.eye(rank, dtype=dtype))
    close(vt @ adjoint(vt), np.eye(rank, dtype=dtype))
    lower = np.tril(factors, -1)[:, :rank] + np.eye(shape[0], rank, dtype=dtype)
    close(lower @ np.triu(factors)[:rank], x[permutation])


@pytest.mark.parametrize(("dtype", "shape"), [("float32", (2, 30, 30)), ("complex64", (31, 7)), ("float64", (7, 31))])
def test_lu(dtype: str, shape: tuple[int, ...]) -> None:
    x = matrices(dtype, shape)
    m, n = shape[-2:]
    like = [x, np.zeros((*shape[:-2], min(m, n)), np.int32), np.zeros(shape[:-1], np.int32)]
    factors, pivots, permutation = results("lu", [x], {}, least_capabilities(), like)
    lower = np.tril(factors, -1)[..., : min(m, n)] + np.eye(m, min(m, n), dtype=dtype)
    product = lower @ np.triu(factors)[..., : min(m, n), :]
    assert_same(product, np.take_along_axis(x, permutation[..., None].astype(int), -2), exact=False)
    assert (np.abs(lower) <= np.sqrt(2) + 1e-6).all()
    rows = np.broadcast_to(np.arange(m), shape[:-1]).copy()
    for row, steps in zip(rows.reshape(-1, m), pivots.reshape(-1, min(m, n)), strict=True):
        for i, p in enumerate(steps):
            row[[i, p]] = row[[p, i]]
    np.testing.assert_array_equal(rows, permutation)


def test_lu_of_singular_matrices() -> None:
    x = np.ones((4, 4), np.float32)
    factors, *_ = results("lu", [x], {}, least_capabilities(), [x, np.zeros(4, np.int32), np.zeros(4, np.int32)])
    np.testing.assert_array_equal(np.diagonal(factors), [1, 0, 0, 0])


@pytest.mark.parametrize(("dtype", "shape"), [("float32", (2, 30, 30)), ("complex64", (31, 7)), ("float64", (7, 31))])
@pytest.mark.parametrize("full", [False, True])
def test_qr(dtype: str, shape: tuple[int, ...], full: bool) -> None:
    x = matrices(dtype, shape)
    expected = np.linalg.qr(x, mode="complete" if full else "reduced")
    q, r = results("qr", [x], {"full_matrices": full, "compute_q": True}, least_capabilities(), list(expected))
    close(q @ r, x)
    close(adjoint(q) @ q, np.broadcast_to(np.eye(q.shape[-1]), (*shape[:-2], q.shape[-1], q.shape[-1])))
    k = min(shape[-2:])
    close(r[..., :k, :], expected[1][..., :k, :])
    if not full:
        (alone,) = results("qr", [x], {"full_matrices": False, "compute_q": False}, least_capabilities(), [expected[1]])
        np.testing.assert_array_equal(alone, r)


@pytest.mark.parametrize(
    ("dtype", "lower", "sizes"), [("float32", False, (1, 22, 31)), ("complex64", True, (9,)), ("complex128", False, (4,))]
)
def test_eigh(dtype: str, lower: bool, sizes: tuple[int, ...]) -> None:
    for n in sizes:
        x = matrices(dtype, (2, n, n))
        half = np.tril(x, -1) if lower else np.triu(x, 1)
        whole = half + adjoint(half) + np.eye(n) * np.real(x)
        like = [x, np.zeros((2, n), x.real.dtype)]
        v, w = results("eigh", [x], {"lower": lower, "sort_eigenvalues": True}, least_capabilities(), like)
        close(w, np.linalg.eigvalsh(whole))
        close((v * w[:, None]) @ adjoint(v), whole)
        close(adjoint(v) @ v, np.broadcast_to(np.eye(n), x.shape))


@pytest.mark.parametrize(
    ("dtype", "shape", "rank"),
    [("float32", (2, 9, 9), 5), ("float32", (12, 5), 0), ("complex64", (5, 12), 3), ("float64", (12, 5), 3)],
)
def test_svd(dtype: str, shape: tuple[int, ...], rank: int) -> None:
    x = matrices(dtype, shape) if rank == 5 else matrices(dtype, (*shape[:-1], rank)) @ matrices(dtype, (*shape[:-2], rank, shape[-1]))
    k = min(shape[-2:])
    for full in {rank == 3, True}:
        expected = np.linalg.svd(x, full_matrices=full)
        like = [expected[1], expected[0], expected[2]]
        s, u, vt = results("svd", [x], {"full_matrices": full, "compute_uv": True}, least_capabilities(), like)
        close(s, expected[1])
        close((u[..., :k] * s[..., None, :]) @ vt[..., :k, :], x)
        close(adjoint(u) @ u, np.broadcast_to(np.eye(u.shape[-1]), (*shape[:-2], u.shape[-1], u.shape[-1])))
        close(vt @ adjoint(vt), np.broadcast_to(np.eye(vt.shape[-2]), (*shape[:-2], vt.shape[-2], vt.shape[-2])))
    (s,) = results("svd", [x], {"full_matrices": False, "compute_uv": False}, least_capabilities(), like[:1])
    close(s, like[0])


def test_what_is_not_finite_has_nan() -> None:
    x = matrices("float32", (2, 4, 4))
    x[0, 1, 1], x[1, 2, 2] = np.nan, np.inf
    result = results("eigh", [x], {"lower": True, "sort_eigenvalues": True}, least_capabilities(), [x, x[0, :2]])
    result += results("svd", [x], {"full_matrices": True, "compute_uv": True}, least_capabilities(), [x[0, :2], x, x])
    assert all(np.isnan(values).all() for values in result)
