"""Factorisations against their defining equations, and against LAPACK as JAX calls it."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from volta_fn.errors import MissingDependencyError
from volta_fn.targets.numpy import linalg

DTYPES = ["float32", "float64", "complex64", "complex128"]
batches = st.sampled_from([(), (3,), (2, 2), (0,)])
sizes = st.sampled_from([0, 1, 2, 5, 17, 40])
dtypes = st.sampled_from(DTYPES)


@pytest.fixture(scope="module", params=[True, False], ids=["scipy", "numpy alone"])
def library(request):
    """The library that factors and solves: SciPy's LAPACK, or NumPy where SciPy is not installed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(linalg, "has_scipy", lambda: request.param)
        yield


@pytest.fixture
def with_scipy(monkeypatch):
    """SciPy's LAPACK, whichever library other tests of the module use."""
    monkeypatch.setattr(linalg, "has_scipy", lambda: True)


def make(shape, dtype, seed=0):
    x = np.random.default_rng(seed).standard_normal((*shape, 2))
    return np.asarray(x[..., 0] + (1j * x[..., 1] if dtype.startswith("complex") else 0)).astype(dtype)


def adjoint(x):
    return x.swapaxes(-1, -2).conj()


def close(got, expected, dtype, factor=200):
    """Equal up to a few hundred roundings of numbers of the size of one: what backward stable factorisations of size 40 give."""
    tolerance = factor * np.finfo(dtype).eps
    assert got.dtype == dtype
    np.testing.assert_allclose(got, expected, rtol=tolerance, atol=tolerance * max(1, np.abs(expected).max(initial=0)))


def positive(shape, n, dtype):
    a = make((*shape, n, n), dtype)
    return (a @ adjoint(a) + n * np.eye(n)).astype(dtype)


@settings(max_examples=40, deadline=None)
@given(batches, sizes, dtypes)
def test_cholesky(batch, n, dtype):
    x = positive(batch, n, dtype)
    lower = linalg.cholesky(np.tril(x))
    close(lower @ adjoint(lower), x, dtype)
    np.testing.assert_array_equal(np.triu(lower, 1), 0)


def test_cholesky_fails_by_nan_where_there_is_none():
    x = np.stack([np.eye(3), -np.eye(3), np.full((3, 3), np.nan), 4 * np.eye(3)]).astype(np.float32)
    got = linalg.cholesky(x)
    nan = np.tril(np.full((3, 3), np.nan))
    np.testing.assert_array_equal(got, [np.eye(3), nan, nan, 2 * np.eye(3)])
    assert got.dtype == np.float32


@settings(max_examples=60, deadline=None)
@given(batches, sizes, st.sampled_from([0, 1, 3]), dtypes, *[st.booleans()] * 5)
def test_triangular_solve(library, batch, n, k, dtype, left_side, lower, transpose_a, conjugate_a, unit_diagonal):
    a = make((*batch, n, n), dtype) / max(n, 1) + 2 * np.eye(n, dtype=dtype)
    b = make((*batch, n, k) if left_side else (*batch, k, n), dtype, 1)
    before = b.copy()
    flags = {"lower": lower, "transpose_a": transpose_a, "conjugate_a": conjugate_a, "unit_diagonal": unit_diagonal}
    x = linalg.triangular_solve(a.astype(dtype), b, left_side=left_side, **flags)
    op = np.tril(a) if lower else np.triu(a)
    if unit_diagonal:
        op = np.where(np.eye(n, dtype=bool), 1, op)
    op = op.conj() if conjugate_a else op
    op = op.swapaxes(-1, -2) if transpose_a else op
    close((op @ x if left_side else x @ op).astype(dtype), b, dtype)
    np.testing.assert_array_equal(b, before)


@pytest.mark.filterwarnings("ignore:divide by zero", "ignore:invalid value")
def test_triangular_solve_of_a_singular_matrix_agrees_with_jax(library):
    lax = pytest.importorskip("jax").lax
    a, b = np.array([[1, 0], [1, 0]], np.float32), np.ones((2, 1), np.float32)
    got = linalg.triangular_solve(a, b, left_side=True, lower=True, transpose_a=False, conjugate_a=False, unit_diagonal=False)
    np.testing.assert_array_equal(got, lax.linalg.triangular_solve(a, b, left_side=True, lower=True))


@settings(max_examples=60, deadline=None)
@given(batches, sizes, sizes, dtypes)
def test_lu(library, batch, m, n, dtype):
    x = make((*batch, m, n), dtype)
    packed, pivots, permutation = linalg.lu(x)
    k = min(m, n)
    lower, upper = np.tril(packed[..., :k], -1) + np.eye(m, k), np.triu(packed[..., :k, :])
    assert pivots.dtype == permutation.dtype == np.int32
    assert pivots.shape == (*batch, k) and permutation.shape == (*batch, m)
    close((lower @ upper).astype(dtype), np.take_along_axis(x, permutation[..., None], -2), dtype)
    rows = np.tile(np.arange(m), (*batch, 1))
    for place in np.ndindex(*batch):
        for i, p in enumerate(pivots[place]):
            rows[place][[i, p]] = rows[place][[p, i]]
    np.testing.assert_array_equal(rows.reshape(permutation.shape), permutation)


@pytest.mark.parametrize("dtype", DTYPES)
def test_lu_pivots_as_jax(library, dtype):
    jax = pytest.importorskip("jax")
    with jax.enable_x64(True):
        x = make((3, 40, 40), dtype)
        packed, pivots, permutation = jax.lax.linalg.lu(x)
        got = linalg.lu(x)
        close(got[0], np.asarray(packed), dtype, 2000)  # Elements of L and U vary more than their product.
        np.testing.assert_array_equal(got[1], pivots)
        np.testing.assert_array_equal(got[2], permutation)


def test_lu_of_a_singular_matrix(library):
    packed, _, permutation = linalg.lu(np.array([[0.0, 0, 1], [0, 0, 2], [0, 3, 4]]))
    np.testing.assert_array_equal(np.diag(packed), [0, 3, 2])
    np.testing.assert_array_equal(permutation, [0, 2, 1])


@pytest.mark.parametrize("function", [linalg.schur, linalg.hessenberg])
def test_what_needs_scipy_says_so(function, monkeypatch):
    monkeypatch.setattr(linalg, "has_scipy", lambda: False)
    params = {"compute_vectors": True} if function is linalg.schur else {}
    with pytest.raises(MissingDependencyError, match="pip install scipy"):
        function(np.eye(2), **params)


@settings(max_examples=40, deadline=None)
@given(batches, sizes, sizes, dtypes, st.booleans())
def test_qr(batch, m, n, dtype, full_matrices):
    x = make((*batch, m, n), dtype)
    q, r = linalg.qr(x, full_matrices=full_matrices, compute_q=True)
    k = m if full_matrices else min(m, n)
    assert q.shape == (*batch, m, k) and r.shape == (*batch, k, n)
    close(q @ r, x, dtype)
    close(adjoint(q) @ q, np.broadcast_to(np.eye(k), (*batch, k, k)), dtype)
    np.testing.assert_array_equal(np.tril(r, -1), 0)
    (alone,) = linalg.qr(x, full_matrices=False, compute_q=False)
    np.testing.assert_array_equal(alone, r[..., : min(m, n), :])


@settings(max_examples=40, deadline=None)
@given(batches, sizes, dtypes, st.booleans())
def test_eigh(batch, n, dtype, lower):
    x = make((*batch, n, n), dtype)
    x = (x + adjoint(x)).astype(dtype)
    v, w = linalg.eigh(np.tril(x) if lower else np.triu(x), lower=lower, sort_eigenvalues=True)
    assert w.dtype == x.real.dtype and (np.diff(w) >= 0).all()
    close((v * w[..., None, :]) @ adjoint(v), x, dtype)
    close(adjoint(v) @ v, np.broadcast_to(np.eye(n), x.shape), dtype)


@settings(max_examples=40, deadline=None)
@given(batches, sizes, sizes, dtypes, st.booleans())
def test_svd(batch, m, n, dtype, full_matrices):
    x = make((*batch, m, n), dtype)
    s, u, vt = linalg.svd(x, full_matrices=full_matrices, compute_uv=True)
    k = min(m, n)
    assert s.shape == (*batch, k) and s.dtype == x.real.dtype
    assert u.shape == (*batch, m, m if full_matrices else k) and vt.shape == (*batch, n if full_matrices else k, n)
    assert (s >= 0).all() and (np.diff(s) <= 0).all()
    close((u[..., :k] * s[..., None, :]) @ vt[..., :k, :], x, dtype)
    close(adjoint(u) @ u, np.broadcast_to(np.eye(u.shape[-1]), (*batch, u.shape[-1], u.shape[-1])), dtype)
    close(vt @ adjoint(vt), np.broadcast_to(np.eye(vt.shape[-2]), (*batch, vt.shape[-2], vt.shape[-2])), dtype)
    (alone,) = linalg.svd(x, full_matrices=full_matrices, compute_uv=False)
    close(alone, s, x.real.dtype)


@settings(max_examples=40, deadline=None)
@given(batches, sizes, dtypes)
def test_eig(batch, n, dtype):
    x = make((*batch, n, n), dtype)
    w, v = linalg.eig(x, compute_vectors=True)
    assert w.dtype == v.dtype == np.result_type(dtype, "complex64")
    close(x.astype(v.dtype) @ v, v * w[..., None, :], v.dtype)


def test_eigenvalues_of_a_symmetric_matrix_are_complex_too():
    w, v = linalg.eig(np.diag([1.0, 2.0]).astype(np.float32), compute_vectors=True)
    assert w.dtype == v.dtype == np.complex64


@pytest.mark.parametrize("n", [8, 40])
@pytest.mark.parametrize("dtype", DTYPES)
def test_vectors_have_the_signs_of_jax(with_scipy, dtype, n):
    """NumPy computes single precision in double, after which LAPACK returns other vectors."""
    jax = pytest.importorskip("jax")
    with jax.enable_x64(True):
        x = make((2, n, n), dtype)
        symmetric = (x + adjoint(x)).astype(dtype)
        for got, expected in (
            (linalg.eigh(symmetric, lower=True, sort_eigenvalues=True), jax.lax.linalg.eigh(symmetric, symmetrize_input=False)),
            (linalg.svd(x, full_matrices=True, compute_uv=True), [jax.lax.linalg.svd(x)[i] for i in (1, 0, 2)]),
            (linalg.eig(x, compute_vectors=True), jax.lax.linalg.eig(x, compute_left_eigenvectors=False)),
            (linalg.qr(x[..., : n // 2], full_matrices=True, compute_q=True), jax.lax.linalg.qr(x[..., : n // 2])),
        ):
            for part, other in zip(got, expected, strict=True):
                close(part, np.asarray(other), np.asarray(other).dtype, 5000)  # vectors of close values are worse conditioned


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_definite_is_definite_in_jax(with_scipy, dtype):
    """Rounding decides it of matrices that are almost singular."""
    jax = pytest.importorskip("jax")
    with jax.enable_x64(True):
        x = make((40, 12, 11), dtype)
        x = (x @ adjoint(x) + 4 * np.finfo(dtype).eps * np.eye(12)).astype(dtype)
        expected = np.isnan(jax.lax.linalg.cholesky(x, symmetrize_input=False))
        assert 0 < expected[:, -1, -1].sum() < len(x)
        np.testing.assert_array_equal(np.isnan(linalg.cholesky(x)), expected)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("dtype", DTYPES)
def test_forms_of_matrices_with_nan_are_those_of_jax(with_scipy, dtype, bad):
    jax = pytest.importorskip("jax")
    with jax.enable_x64(True):
        x = make((5, 5), dtype)
        x[3, 1] = x[1, 3] = bad
        for got, expected in (
            (linalg.hessenberg(x), jax.lax.linalg.hessenberg(x)),
            (linalg.tridiagonal(x, lower=True), jax.lax.linalg.tridiagonal(x)),
        ):
            for part, other in zip(got, expected, strict=True):
                np.testing.assert_array_equal(np.isnan(part), np.isnan(other))


@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_matrices_that_do_not_converge_are_nan_and_alone(bad):
    x = np.stack([np.diag([2.0, 1.0]), np.full((2, 2), bad)])
    for result in (
        linalg.eigh(x, lower=True, sort_eigenvalues=True),
        linalg.svd(x, full_matrices=False, compute_uv=True),
        linalg.svd(x, full_matrices=False, compute_uv=False),
        linalg.eig(x, compute_vectors=True),
    ):
        for part in result:
            assert np.isfinite(part[0]).all()
            assert np.isnan(part[1]).all()


@pytest.mark.parametrize("bad", [[[np.nan, 0.3], [0.3, np.nan]], [[1.0, 0.0], [0.0, np.nan]], [[np.inf, 0.3], [0.3, 1.0]]])
def test_a_symmetric_matrix_with_nan_has_no_eigenvalues(bad):
    """LAPACK has finite ones for some."""
    vectors, values = linalg.eigh(np.stack([np.eye(2), bad]), lower=True, sort_eigenvalues=True)
    assert np.isnan(vectors[1]).all() and np.isnan(values[1]).all()
    assert np.isfinite(vectors[0]).all() and (values[0] == 1).all()


def test_eigenvalues_are_those_of_the_triangle_that_is_read():
    x = np.array([[2.0, np.nan], [0.0, 1.0]])
    _, w = linalg.eigh(x, lower=True, sort_eigenvalues=True)
    np.testing.assert_allclose(w, [1.0, 2.0])
    assert np.isnan(linalg.eigh(x, lower=False, sort_eigenvalues=True)[1]).all()
