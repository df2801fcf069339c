"""Square roots and other functions of matrices, against SciPy's."""

import numpy as np
import pytest
import scipy.linalg

import volta_fn as vf
from volta_fn import config, errors
from volta_fn.scipy import linalg


def make(*shape, dtype="float64", seed=0):
    x = np.random.default_rng(seed).standard_normal((*shape, 2))
    return (x[..., 0] + (1j * x[..., 1] if dtype == "complex128" else 0)).astype(dtype)


@pytest.mark.wide
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("size", [0, 1, 2, 6])
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_square_roots(size, dtype, compiled):
    x = make(size, size, dtype=dtype)
    root = np.asarray((vf.jit(linalg.sqrtm) if compiled else linalg.sqrtm)(x))
    assert root.dtype == np.complex128
    np.testing.assert_allclose(root @ root, x, rtol=1e-10, atol=1e-10)
    assert (np.linalg.eigvals(root).real >= -1e-12).all(), "it is not the principal root"
    stack = np.stack([x, x @ x])
    np.testing.assert_allclose(np.asarray(linalg.sqrtm(stack)[0]), root, rtol=1e-10, atol=1e-10)


def test_a_zero_matrix_is_its_own_root():
    np.testing.assert_array_equal(np.asarray(linalg.sqrtm(np.zeros((3, 3), np.float32))), np.zeros((3, 3)))


@pytest.mark.parametrize("compiled", [False, True])
def test_singular_matrices_have_a_root_or_nan(compiled):
    sqrtm = vf.jit(linalg.sqrtm) if compiled else linalg.sqrtm
    basis = np.linalg.qr(make(3, 3))[0]
    idempotent = np.array([[0.0, 0.0, 1.0], [0.0, 0.0, 1.0], [0.0, 0.0, 1.0]])  # two eigenvalues are exactly zero
    for x in (idempotent, np.array([[0.0, 2.0], [0.0, 4.0]]), basis @ np.diag([0.0, 0.0, 4.0]) @ basis.T):
        root = np.asarray(sqrtm(x.astype(np.float32)))
        np.testing.assert_allclose(root @ root, x, atol=2e-3)  # eigenvalues of the size of float32's rounding have roots of 3e-4
    nilpotent = np.triu(np.full((4, 4), 3.0, np.float32), 1)
    roots = np.asarray(sqrtm(np.stack([nilpotent, np.eye(4, dtype=np.float32)])))
    assert np.isnan(roots[0]).any()
    np.testing.assert_allclose(roots[1], np.eye(4), rtol=1e-6)


@pytest.mark.wide
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("size", [1, 2, 6])
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_functions(size, dtype, compiled):
    x = make(size, size, dtype=dtype)
    function = lambda a: linalg.funm(a, vf.numpy.exp, disp=False)
    got, error = (vf.jit(function) if compiled else function)(x)
    np.testing.assert_allclose(np.asarray(got), scipy.linalg.expm(x), rtol=1e-9, atol=1e-9)
    assert np.finfo(np.float64).eps <= float(error) < 1e-12


def test_of_the_identity():
    np.testing.assert_allclose(np.asarray(linalg.funm(np.eye(3, dtype=np.float32), vf.numpy.exp)), np.e * np.eye(3), rtol=1e-6)


def test_a_stack_is_refused():
    with pytest.raises(errors.ShapeError, match="map over a stack"):
        linalg.funm(np.zeros((2, 3, 3), np.float32), vf.numpy.exp)


@pytest.mark.parametrize("x", [np.zeros((2, 2)), np.zeros((3, 2, 2)), 1e-30 * np.eye(2), np.array([[0.0, np.inf], [0.0, 0.0]])])
def test_exponentials_of_zeros_are_finite_throughout(x):
    x = x.astype(np.float32)
    with config.debug_infs(np.isfinite(x).all()):
        result = np.asarray(linalg.expm(x))
    np.testing.assert_array_equal(result, np.broadcast_to(np.eye(2) if np.isfinite(x).all() else np.nan, x.shape))


@pytest.mark.parametrize("function", [linalg.expm, lambda a: linalg.expm_frechet(a, a)])
def test_narrow_floats_are_refused(function):
    with pytest.raises(errors.DTypeError, match="expm computes in float32"):
        function(np.eye(2, dtype=np.float16))
