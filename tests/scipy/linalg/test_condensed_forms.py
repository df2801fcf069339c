"""Schur, Hessenberg and polar decompositions, against SciPy's where they are determined, else by what they are made of."""

import numpy as np
import pytest
import scipy.linalg

import volta_fn as vf
from volta_fn import errors
from volta_fn.scipy import linalg

TOLERANCE = {"rtol": 1e-10, "atol": 1e-10}


def make(*shape, dtype="float64", seed=0):
    x = np.random.default_rng(seed).standard_normal((*shape, 2))
    return (x[..., 0] + (1j * x[..., 1] if dtype == "complex128" else 0)).astype(dtype)


def adjoint(x):
    return x.swapaxes(-1, -2).conj()


@pytest.mark.wide
@pytest.mark.parametrize("shape", [(1, 1), (5, 5), (2, 4, 4), (0, 0)], ids=str)
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_schur_and_rsf2csf(shape, dtype):
    x = make(*shape, dtype=dtype)
    form, vectors = map(np.asarray, linalg.schur(x))
    np.testing.assert_allclose(vectors @ form @ adjoint(vectors), x, **TOLERANCE)
    for result in (linalg.schur(x, "complex"), linalg.rsf2csf(form, vectors)):
        form, vectors = map(np.asarray, result)
        assert form.dtype == vectors.dtype == np.complex128
        np.testing.assert_array_equal(form, np.triu(form))
        np.testing.assert_allclose(vectors @ form @ adjoint(vectors), x, **TOLERANCE)
        np.testing.assert_allclose(adjoint(vectors) @ vectors, np.broadcast_to(np.eye(shape[-1]), shape), **TOLERANCE)


@pytest.mark.wide
@pytest.mark.parametrize("size", [1, 3, 6])
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_hessenberg(size, dtype):
    x = make(size, size, dtype=dtype)
    form, vectors = linalg.hessenberg(x, calc_q=True)
    for got, wanted in zip((form, vectors), scipy.linalg.hessenberg(x, calc_q=True), strict=True):
        np.testing.assert_allclose(np.asarray(got), wanted, **TOLERANCE)
    np.testing.assert_array_equal(np.asarray(linalg.hessenberg(x)), np.asarray(form))
    stack = np.stack([x, 2 * x])
    form, vectors = map(np.asarray, linalg.hessenberg(stack, calc_q=True))
    np.testing.assert_allclose(vectors @ form @ adjoint(vectors), stack, **TOLERANCE)


@pytest.mark.wide
@pytest.mark.parametrize("method", ["qdwh", "svd"])
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("shape", [(4, 4), (6, 3), (3, 6)], ids=str)
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_polar(shape, side, method, dtype):
    x = make(*shape, dtype=dtype)
    for got, wanted in zip(linalg.polar(x, side, method=method), scipy.linalg.polar(x, side), strict=True):
        np.testing.assert_allclose(np.asarray(got), wanted, **TOLERANCE)
    stack = np.stack([x, x + 1])
    for got, one in zip(linalg.polar(stack, side, method=method), linalg.polar(x, side, method=method), strict=True):
        np.testing.assert_allclose(np.asarray(got)[0], np.asarray(one), **TOLERANCE)


@pytest.mark.wide
def test_polar_by_singular_values_is_differentiable():
    x, weights = make(3, 3), make(3, 3, seed=1)
    loss = lambda a: (linalg.polar(a, method="svd")[0] * weights).sum()
    gradient, direction = np.asarray(vf.grad(loss)(x)), make(3, 3, seed=2)
    plus, minus = (np.vdot(scipy.linalg.polar(x + sign * 1e-6 * direction)[0], weights) for sign in (1, -1))
    np.testing.assert_allclose(np.vdot(gradient, direction), (plus - minus) / 2e-6, rtol=1e-7)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: linalg.schur(np.eye(2), "imaginary"), errors.ArgumentError, "'real' or 'complex'"),
        (lambda: linalg.polar(np.eye(2), "top"), errors.ArgumentError, "side must be"),
        (lambda: linalg.rsf2csf(np.eye(2), np.eye(3)), errors.ShapeError, "one size"),
        (lambda: linalg.hessenberg(np.ones((2, 3))), errors.ShapeError, "square"),
        (lambda: vf.grad(lambda x: linalg.schur(x)[0].sum())(np.eye(2, dtype=np.float32)), errors.GradientError, "schur has no derivative"),
    ],
)
def test_mistakes_raise(call, error, words):
    with pytest.raises(error, match=words):
        call()


@pytest.mark.wide
def test_rsf2csf_rotates_as_scipy_and_broadcasts() -> None:
    rng = np.random.default_rng(0)
    t, z = rng.normal(size=(2, 4, 4)), rng.normal(size=(4, 4))
    form, vectors = vf.jit(linalg.rsf2csf)(t, z)
    for i in range(2):
        wanted = scipy.linalg.rsf2csf(t[i], z)
        np.testing.assert_allclose(form[i], wanted[0], atol=1e-12)
        np.testing.assert_allclose(vectors[i], wanted[1], atol=1e-12)
    with pytest.raises(errors.ShapeError, match="one size"):
        linalg.rsf2csf(t, z[:3, :3])


def test_short_fiedler_matrices_and_real_fourier_matrices() -> None:
    assert linalg.fiedler(3.0).tolist() == [[0.0]]
    assert linalg.fiedler_companion(np.ones((3, 1))).shape == (3, 0, 0)
    with pytest.raises(errors.DTypeError, match="complex"):
        linalg.dft(4, dtype="float32")
