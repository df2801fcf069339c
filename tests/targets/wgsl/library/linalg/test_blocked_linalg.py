"""Factorisations by blocks of columns: of matrices that a workgroup does not have for itself."""

from __future__ import annotations

import numpy as np
import pytest

from tests.targets.wgsl.library.checking import least_capabilities, results
from tests.targets.wgsl.library.linalg.test_linalg import adjoint, close, matrices
from tests.targets.wgsl.running import known_width
from volta_fn.compiler.target import TargetCapabilities

SQUARE = 66  # two blocks of columns or three, the last of which are not full


@pytest.mark.parametrize(
    ("shape", "target"), [((SQUARE, 70), least_capabilities()), ((60, 80), known_width()), ((80, 34), least_capabilities())]
)
def test_lu(shape: tuple[int, int], target: TargetCapabilities) -> None:
    m, n = shape
    x = matrices("float32", (2, m, n))
    x[1, :, 3] = 0  # singular
    x[0, 9], x[0, 5] = x[0, 5], x[0, 9] * 2  # equal candidates of a pivot do not matter, its place does
    like = [x, np.zeros((2, min(m, n)), np.int32), np.zeros((2, m), np.int32)]
    factors, pivots, permutation = results("lu", [x], {}, target, like)
    lower = np.tril(factors, -1)[..., : min(m, n)] + np.eye(m, min(m, n), dtype=x.dtype)
    close(lower @ np.triu(factors)[..., : min(m, n), :], np.take_along_axis(x, permutation[..., None].astype(int), -2))
    assert np.abs(lower).max() <= 1
    for steps, result in zip(pivots, permutation, strict=True):
        rows = np.arange(m)
        for i, p in enumerate(steps):
            rows[[i, p]] = rows[[p, i]]
        np.testing.assert_array_equal(rows, result)


@pytest.mark.parametrize(("shape", "full"), [((70, SQUARE), True), ((SQUARE, 70), False)])
def test_qr(shape: tuple[int, int], full: bool) -> None:
    x = matrices("complex64", shape)
    x[:, 2] = 0
    x[20:, 5] = 0
    x[:, 7] *= 1e-25  # whose squares vanish
    q, r = results("qr", [x], {"full_matrices": full, "compute_q": True}, least_capabilities(), list(np.linalg.qr(x, "complete")))
    close(q @ r, x)
    close(adjoint(q) @ q, np.eye(q.shape[-1]))
    np.testing.assert_array_equal(np.tril(r, -1), 0)
    np.testing.assert_allclose((adjoint(q) @ x)[:, 7], r[:, 7], rtol=0, atol=2e-6 * np.abs(r[:, 7]).max())
    if not full:
        (alone,) = results("qr", [x], {"full_matrices": False, "compute_q": False}, least_capabilities(), [r])
        np.testing.assert_array_equal(alone, r)


def test_qr_of_numbers_whose_inverses_are_subnormal() -> None:
    x = matrices("float32", (70, SQUARE))
    x *= np.float32(1e37) / np.linalg.norm(x, axis=0).max()
    x[7, 3] = 1.2e38
    assert 1 / x[7, 3] < np.finfo("float32").smallest_normal
    q, r = results("qr", [x], {"full_matrices": False, "compute_q": True}, least_capabilities(), list(np.linalg.qr(x)))
    close(adjoint(q) @ q, np.eye(SQUARE))
    close(q @ (r * 2.0**-100), x * 2.0**-100)


def test_eigh_with_equal_values_and_of_what_is_not_finite() -> None:
    x = matrices("complex64", (3, SQUARE, SQUARE))
    base, _ = np.linalg.qr(x[1])
    x[1] = base @ np.diag(np.repeat([1, -1, 3], SQUARE // 3).astype(x.dtype)) @ adjoint(base)
    x[2, 60, 3] = np.inf
    triangle = np.where(np.tri(SQUARE, dtype=bool), 0, x)
    whole = np.where(np.eye(SQUARE, dtype=bool), np.real(x), triangle + adjoint(triangle))
    v, w = results("eigh", [x], {"lower": False, "sort_eigenvalues": True}, least_capabilities(), [x, x.real[..., 0]])
    assert np.isfinite(v[2]).all()  # the other triangle is not read
    for vectors, values, matrix in zip(v[:2], w[:2], whole[:2], strict=True):
        close(values, np.linalg.eigvalsh(matrix))
        close((vectors * values) @ adjoint(vectors), matrix)
        close(adjoint(vectors) @ vectors, np.eye(SQUARE))
    v, w = results("eigh", [x], {"lower": True, "sort_eigenvalues": True}, least_capabilities(), [x, x.real[..., 0]])
    assert np.isnan(v[2]).all() and np.isnan(w[2]).all() and np.isfinite(w[:2]).all()


@pytest.mark.parametrize("n", [9, 48, SQUARE])
def test_eigh_reads_no_imaginary_parts_of_the_diagonal(n: int) -> None:
    """As LAPACK: neither with a matrix in workgroup memory, nor with a workgroup or several for it."""
    x = matrices("complex64", (2, n, n))
    x[:, 0, 0].imag, x[:, 1, 1].imag = 1e30, np.inf
    _, w = results("eigh", [x], {"lower": True, "sort_eigenvalues": True}, least_capabilities(), [x, x.real[..., 0]])
    x[:, range(n), range(n)] = x[:, range(n), range(n)].real
    close(w, np.linalg.eigvalsh(x, "L"))


@pytest.mark.parametrize("shape", [(70, SQUARE), (SQUARE, 80)])
def test_svd_of_all_ranks(shape: tuple[int, int]) -> None:
    x = matrices("complex64", (3, *shape))
    x[1] = x[1, :, :5] @ x[1, :5]
    x[2, 4, 4] = np.nan
    k = min(shape)
    expected = np.linalg.svd(np.nan_to_num(x))
    s, u, vt = results(
        "svd", [x], {"full_matrices": True, "compute_uv": True}, least_capabilities(), [expected[1], expected[0], expected[2]]
    )
    assert all(np.isnan(actual[2]).all() for actual in (s, u, vt))
    close(s[:2], expected[1][:2])
    close((u[:2, :, :k] * s[:2, None]) @ vt[:2, :k], x[:2])
    close(adjoint(u[:2]) @ u[:2], np.broadcast_to(np.eye(shape[0]), u[:2].shape))
    close(adjoint(vt[:2]) @ vt[:2], np.broadcast_to(np.eye(shape[1]), vt[:2].shape))
    (alone,) = results("svd", [x], {"full_matrices": False, "compute_uv": False}, least_capabilities(), [expected[1]])
    close(alone[:2], expected[1][:2])


def test_svd_of_values_that_are_millionths_of_each_other() -> None:
    """Of which the least are right relative to the largest, and vectors are orthogonal all the same."""
    base, other = (np.linalg.qr(matrices("float32", (70, 70)) + k)[0] for k in (0, 1))
    x = ((base * np.geomspace(1, 1e-6, 70, dtype=np.float32)) @ other.T).astype(np.float32)
    expected = np.linalg.svd(x)
    s, u, vt = results(
        "svd", [x], {"full_matrices": False, "compute_uv": True}, least_capabilities(), [expected[1], expected[0], expected[2]]
    )
    close(s, expected[1])
    close(u.T @ u, np.eye(70))
    close(vt @ vt.T, np.eye(70))
    close((u * s) @ vt, x)
