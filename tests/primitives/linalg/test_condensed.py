"""Forms of matrices, updates of factors, and QDWH, beyond the registry's sweep: against NumPy, SciPy and definitions."""

import numpy as np
import pytest
import scipy.linalg

import volta_fn as vf
from volta_fn import errors, lax

linalg = lax.linalg
TOLERANCE = {"rtol": 1e-10, "atol": 1e-10}


def make(*shape, dtype="float64", seed=0):
    x = np.random.default_rng(seed).standard_normal((*shape, 2))
    return (x[..., 0] + (1j * x[..., 1] if dtype == "complex128" else 0)).astype(dtype)


def adjoint(x):
    return x.swapaxes(-1, -2).conj()


@pytest.mark.wide
@pytest.mark.parametrize("lower", [False, True])
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_the_tridiagonal_form_has_the_eigenvalues(dtype, lower):
    x = make(2, 5, 5, dtype=dtype)
    x = x + adjoint(x)
    garbage = np.where(np.tri(5, dtype=bool) if lower else np.tri(5, dtype=bool).T, x, 7)
    _, diagonal, beside, _ = map(np.asarray, linalg.tridiagonal(garbage, lower=lower))
    for k in range(2):
        values = scipy.linalg.eigvalsh_tridiagonal(diagonal[k], beside[k])
        np.testing.assert_allclose(values, np.linalg.eigvalsh(x[k]), **TOLERANCE)


@pytest.mark.wide
@pytest.mark.parametrize("shape", [(5, 3), (3, 3), (3, 5)], ids=str)
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_products_with_q(shape, dtype):
    x = make(*shape, dtype=dtype)
    (reflectors, factors), _ = scipy.linalg.qr(x, mode="raw")
    q = scipy.linalg.qr(x)[0]
    c = make(shape[0], shape[0], dtype=dtype, seed=1)
    for transpose, op in ((False, q), (True, adjoint(q))):
        np.testing.assert_allclose(np.asarray(linalg.ormqr(reflectors, factors, c, transpose=transpose)), op @ c, **TOLERANCE)
        got = linalg.ormqr(reflectors, factors, c, left=False, transpose=transpose)
        np.testing.assert_allclose(np.asarray(got), c @ op, **TOLERANCE)


@pytest.mark.wide
def test_updates_of_cholesky_factors():
    x, w = make(2, 5, 5), make(2, 5, seed=1)
    factor = np.linalg.cholesky(x @ adjoint(x) + np.eye(5)).swapaxes(-1, -2)
    square = adjoint(factor) @ factor + w[..., None] * w[:, None]
    wanted = np.linalg.cholesky(square).swapaxes(-1, -2)
    for update in (linalg.cholesky_update, vf.jit(linalg.cholesky_update), vf.vmap(linalg.cholesky_update)):
        np.testing.assert_allclose(np.asarray(update(factor, w)), wanted, **TOLERANCE)
    logdet = lambda v: lax.log(linalg.cholesky_update(factor[0], v).diagonal()).sum()
    np.testing.assert_allclose(np.asarray(vf.grad(logdet)(w[0])), np.linalg.solve(square[0], w[0]), **TOLERANCE)


def test_updates_of_complex_factors_are_of_transposes():
    """Rᵀ R + w wᵀ, without conjugates: a complex array of real numbers has the real factor."""
    factor, w = (np.triu(make(3, 3)) + 3 * np.eye(3)).astype(np.complex64), make(3, seed=1).astype(np.complex64)
    got = np.asarray(linalg.cholesky_update(factor, w))
    np.testing.assert_allclose(got.T @ got, factor.T @ factor + np.outer(w, w), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("size", [1e25, 1e-25, 0.0])
def test_updates_of_cholesky_factors_whose_squares_are_out_of_range(size):
    factor, w = np.triu(make(3, 3)) + 3 * np.eye(3), make(3, seed=1)
    wanted = np.asarray(linalg.cholesky_update(factor, w)) * size
    got = linalg.cholesky_update((factor * size).astype(np.float32), (w * size).astype(np.float32))
    np.testing.assert_allclose(np.asarray(got), wanted, rtol=1e-5, atol=1e-6 * size)


@pytest.mark.parametrize("shape", [(4, 4), (2, 5, 3), (3, 0), (2, 3, 5)], ids=str)
def test_permutations_of_pivots(shape):
    x = make(*shape).astype(np.float32)
    _, pivots, permutation = linalg.lu(x)
    got = vf.jit(lambda p: linalg.lu_pivots_to_permutation(p, shape[-2]))(pivots)
    np.testing.assert_array_equal(np.asarray(got), np.asarray(permutation))
    assert got.dtype == np.int32


@pytest.mark.wide
def test_symmetric_products():
    a, c = make(2, 4, 3), make(2, 4, 4)
    c = c + adjoint(c)
    wanted = 2 * a @ adjoint(a) + 0.5 * c
    for symmetrize in (False, True):
        got = linalg.symmetric_product(a, c, alpha=2.0, beta=0.5, symmetrize_output=symmetrize)
        np.testing.assert_allclose(np.asarray(got), wanted, **TOLERANCE)


@pytest.mark.wide
@pytest.mark.parametrize("condition", [1.0, 1e3, 1e12])
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_qdwh(dtype, condition):
    x = make(7, 4, dtype=dtype) @ np.diag(np.geomspace(1, 1 / condition, 4))
    u, h, steps, converged = linalg.qdwh(x)
    unitary, positive = scipy.linalg.polar(x)
    np.testing.assert_allclose(np.asarray(h), positive, **TOLERANCE)
    np.testing.assert_allclose(np.asarray(u), unitary, atol=1e-15 * condition + 1e-12)
    assert bool(converged) and 0 < int(steps) <= 7
    assert not bool(linalg.qdwh(x, max_iterations=1)[3])


@pytest.mark.wide
def test_tridiagonal_systems_are_differentiable():
    dl, d, du, b, weights = make(4), make(4, seed=1) + 4, make(4, seed=2), make(4, 2, seed=3), make(4, 2, seed=4)
    dense = lambda lower, main, upper, right: (
        vf.numpy.linalg.solve(vf.numpy.diag(main) + vf.numpy.diag(lower[1:], -1) + vf.numpy.diag(upper[:-1], 1), right) * weights
    ).sum()
    banded = lambda *operands: (linalg.tridiagonal_solve(*operands) * weights).sum()
    for got, wanted in zip(*[vf.grad(f, (0, 1, 2, 3))(dl, d, du, b) for f in (banded, dense)], strict=True):
        np.testing.assert_allclose(np.asarray(got), np.asarray(wanted), **TOLERANCE)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: linalg.qdwh(np.ones((2, 3), np.float32)), errors.ShapeError, "m >= n"),
        (lambda: linalg.lu_pivots_to_permutation(np.ones(2, np.float32), 2), errors.ArgumentTypeError, "integers"),
        (lambda: linalg.lu_pivots_to_permutation(np.ones(3, np.int32), 2), errors.ArgumentError, "at least 3"),
        (lambda: linalg.cholesky_update(np.eye(2, dtype="f"), np.ones(3, "f")), errors.ShapeError, "w_vector"),
        (lambda: linalg.symmetric_product(np.ones((2, 3), "f"), np.ones((3, 3), "f")), errors.ShapeError, "C"),
        (lambda: linalg.householder_product(np.ones((2, 3), "f"), np.ones(2, "f")), errors.ShapeError, "m >= n"),
        (lambda: linalg.ormqr(np.float32(1), np.ones(1, "f"), np.eye(2, dtype="f")), errors.ShapeError, "ormqr"),
        (lambda: linalg.tridiagonal_solve(*[np.ones(3, "f")] * 3, np.ones((2, 1), "f")), errors.ShapeError, "diagonals"),
        (lambda: vf.grad(lambda x: linalg.hessenberg(x)[0].sum())(np.eye(3, dtype="f")), errors.GradientError, "no derivative"),
    ],
)
def test_mistakes_raise(call, error, words):
    with pytest.raises(error, match=words):
        call()
