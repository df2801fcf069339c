"""Linear algebra beyond the registry's sweep: degenerate and failing matrices, triangles read, solves, and what is refused."""

import functools

import numpy as np
import pytest

import volta_fn as vf
from volta_fn import errors, lax
from volta_fn.primitives.linalg.solvers import linear_solve, lu_solve

linalg = lax.linalg


def make(*shape, dtype="float64", seed=0):
    x = np.random.default_rng(seed).standard_normal((*shape, 2))
    return (x[..., 0] + (1j * x[..., 1] if dtype.startswith("complex") else 0)).astype(dtype)


def adjoint(x):
    return x.swapaxes(-1, -2).conj()


@pytest.mark.wide
def test_only_the_named_triangle_is_read_and_differentiated():
    x = make(4, 4, dtype="complex128")
    x = x @ adjoint(x) + 4 * np.eye(4)
    for lower in (True, False):
        garbage = np.where(np.tri(4, k=-1, dtype=bool).T if lower else np.tri(4, k=-1, dtype=bool), np.nan, x)
        values = lambda a, side=lower: linalg.eigh(a, lower=side, symmetrize_input=False)[1]
        np.testing.assert_allclose(np.asarray(values(garbage)), np.linalg.eigvalsh(x), rtol=1e-12)
    factor = linalg.cholesky(np.where(np.tri(4, k=-1, dtype=bool).T, np.nan, x), symmetrize_input=False)
    np.testing.assert_allclose(np.asarray(factor), np.linalg.cholesky(x), rtol=1e-12, atol=1e-12)
    plain = vf.grad(lambda a: lax.reduce_sum(linalg.cholesky(a, symmetrize_input=False), (0, 1)))(x.real)
    np.testing.assert_array_equal(np.triu(np.asarray(plain), 1), 0)


@pytest.mark.wide
def test_functions_of_equal_eigenvalues_have_finite_derivatives():
    """The trace of X³, through the eigenvectors of a multiple of the identity."""

    def trace_of_cube(x):
        v, w = linalg.eigh(x)
        cube = lax.dot(v * w**3, lax.transpose(v, (1, 0)))
        return cube[0, 0] + cube[1, 1] + cube[2, 2]

    x = 2 * np.eye(3)
    np.testing.assert_allclose(np.asarray(vf.grad(trace_of_cube)(x)), 12 * np.eye(3), atol=1e-12)


@pytest.mark.wide
def test_equal_singular_values_have_finite_derivatives():
    nuclear = lambda x: lax.reduce_sum(linalg.svd(x, full_matrices=False)[1], (0,))
    np.testing.assert_allclose(np.asarray(vf.grad(nuclear)(np.eye(3))), np.eye(3), atol=1e-12)
    weights = make(3, 3)
    polar = lambda x: lax.reduce_sum((lambda u, s, vt: lax.dot(u, vt))(*linalg.svd(x, full_matrices=False)) * weights, (0, 1))
    np.testing.assert_allclose(np.asarray(vf.grad(polar)(2 * np.eye(3))), (weights - weights.T) / 4, atol=1e-12)


def test_failures_are_nan_and_alone():
    x = np.stack([np.eye(2), -np.eye(2)]).astype(np.float32)
    factor = np.asarray(linalg.cholesky(x))
    np.testing.assert_array_equal(factor[0], np.eye(2))
    assert np.isnan(factor[1][np.tril_indices(2)]).all()
    bad = np.full((2, 2), np.nan, np.float32)
    assert np.isnan(np.asarray(linalg.svd(bad, compute_uv=False))).all() and np.isnan(np.asarray(linalg.eigh(bad)[1])).all()


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_solves_by_lu(dtype):
    a, b = make(2, 5, 5, dtype=dtype), make(2, 5, 3, dtype=dtype, seed=1)
    np.testing.assert_allclose(np.asarray(linear_solve(*map(vf.device_put, (a, b)))), np.linalg.solve(a, b), rtol=1e-10, atol=1e-12)
    packed, _, permutation = linalg.lu(a)
    for trans, op in enumerate((a, a.swapaxes(-1, -2), adjoint(a))):
        got = lu_solve(packed, permutation, vf.device_put(b), trans)
        np.testing.assert_allclose(np.asarray(got), np.linalg.solve(op, b), rtol=1e-10, atol=1e-12)


@pytest.mark.wide
def test_vectors_as_right_hand_sides():
    a, b = np.triu(make(4, 4)) + 3 * np.eye(4), make(4)
    np.testing.assert_allclose(np.asarray(linalg.triangular_solve(a, b, left_side=True)), np.linalg.solve(a, b), rtol=1e-12)
    np.testing.assert_allclose(np.asarray(linalg.triangular_solve(a, b)), np.linalg.solve(a.T, b), rtol=1e-12)


@pytest.mark.wide
def test_left_eigenvectors():
    x = make(4, 4)
    w, left, right = map(np.asarray, linalg.eig(x))
    np.testing.assert_allclose(adjoint(left) @ x, w[:, None] * adjoint(left), atol=1e-12)
    np.testing.assert_allclose(x @ right, right * w, atol=1e-12)
    np.testing.assert_allclose(np.linalg.norm(left, axis=0), 1)


@pytest.mark.wide
@pytest.mark.parametrize(("shape", "dtype"), [((3, 2), "float64"), ((2, 5, 3), "float64"), ((4, 1), "float64"), ((4, 2), "complex128")])
def test_complete_factors_of_tall_matrices_have_derivatives(shape, dtype):
    x, tangent, step = make(*shape, dtype=dtype), make(*shape, dtype=dtype, seed=1), 1e-6
    outs, tangents = vf.jvp(linalg.qr, (x,), (tangent,))
    differences = zip(linalg.qr(x + step * tangent), linalg.qr(x - step * tangent), strict=True)
    for out, actual, (after, before) in zip(outs, tangents, differences, strict=True):
        assert actual.shape == out.shape
        np.testing.assert_allclose(np.asarray(actual), (np.asarray(after) - np.asarray(before)) / (2 * step), atol=1e-7)


@pytest.mark.wide
@pytest.mark.parametrize("name", ["cholesky", "lu", "qr", "eigh", "svd", "eig"])
def test_every_factorisation_maps_over_any_axis(name):
    x = make(3, 4, 4)
    x = x @ adjoint(x) + 4 * np.eye(4)
    function = getattr(linalg, name)
    for axis in (0, 1, 2):
        got = vf.vmap(function, axis)(np.moveaxis(x, 0, axis))
        expected = function(x)
        for g, e in zip(vf.tree.leaves(got), vf.tree.leaves(expected), strict=True):
            np.testing.assert_array_equal(np.asarray(g), np.asarray(e))


@pytest.mark.wide
@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: linalg.cholesky(np.ones((2, 3))), errors.ShapeError, r"square matrices .* got shape \(2, 3\)"),
        (lambda: linalg.eigh(np.ones(3)), errors.ShapeError, r"matrices, of two dimensions or more, got shape \(3,\)"),
        (lambda: linalg.svd(np.ones((2, 2), np.float16)), errors.DTypeError, r"svd computes in float32, .* got f16\[2,2\]"),
        (lambda: linalg.lu(np.ones((2, 2), int)), errors.DTypeError, "convert"),
        (lambda: linalg.triangular_solve(np.eye(3), np.ones((2, 3)), left_side=True), errors.ShapeError, r"as many rows in b .*\(2, 3\)"),
        (lambda: linalg.triangular_solve(np.eye(3), np.ones((4, 3, 2))), errors.ShapeError, "equal leading dimensions"),
        (lambda: vf.grad(lambda x: linalg.svd(x)[0][0, 0])(np.ones((3, 2))), errors.GradientError, "full_matrices=False"),
    ],
)
def test_mistakes_raise(call, error, words):
    with pytest.raises(error, match=words):
        call()


def test_singular_tridiagonal_systems_can_be_perturbed():
    solve = functools.partial(lax.linalg.tridiagonal_solve, perturb_singular=True)
    lower, main, upper = np.float32([[0, 1], [0, 0], [0, 1]]), np.float32([[1, 3], [0, 0], [4, 5]]), np.float32([[3, 0], [0, 0], [1, 0]])
    b = np.float32([[[1], [4]], [[1], [1]], [[5], [6]]])
    x = np.array(solve(lower, main, upper, b))
    assert np.isnan(lax.linalg.tridiagonal_solve(lower, main, upper, b)[:2]).all()
    assert (np.abs(x[:2]) > 1e5).all()
    assert np.isfinite(x).all()
    assert np.allclose(x[2], np.linalg.solve(np.float32([[4, 1], [1, 5]]), b[2]))
