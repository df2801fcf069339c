"""Eigenvalues, roots and least squares against NumPy and SciPy; second derivatives and perturbations against formulas and Optax."""

from __future__ import annotations

import numpy as np
import pytest

import volta_fn as vf
from volta_fn import optim, tree
from volta_fn.errors import ArgumentError, ShapeError
from volta_fn.optim import perturbations, second_order

RNG = np.random.default_rng(0)


def positive(n: int) -> np.ndarray:
    a = RNG.normal(size=(n, n))
    return a @ a.T + 0.1 * np.eye(n)


@pytest.mark.wide
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_power_iteration_finds_the_greatest_eigenvalue(dtype):
    matrix = positive(5).astype(dtype)
    values, vectors = np.linalg.eigh(matrix)
    value, vector = optim.power_iteration(matrix, num_iters=1000, error_tolerance=1e-7 if dtype == "float32" else 1e-14)
    assert value.dtype == vector.dtype == dtype
    rtol = {"float32": 1e-5, "float64": 1e-12}[dtype]
    np.testing.assert_allclose(value, values[-1], rtol=rtol)
    np.testing.assert_allclose(np.abs(vector), np.abs(vectors[:, -1]), rtol=1e3 * rtol, atol=rtol)  # half the digits of the residual


def test_power_iteration_of_functions_of_trees():
    start = {"a": vf.numpy.ones(2), "b": vf.numpy.ones(())}
    value, vector = optim.power_iteration(lambda v: {"a": 2 * v["a"], "b": -3 * v["b"]}, v0=start, num_iters=300)
    assert float(value) == pytest.approx(-3.0, rel=1e-5)
    np.testing.assert_allclose(np.abs(vector["b"]), 1.0, rtol=1e-5)
    with pytest.raises(ArgumentError):
        optim.power_iteration(lambda v: v)
    with pytest.raises(ShapeError):
        optim.power_iteration(np.ones((2, 3)))


@pytest.mark.wide
@pytest.mark.parametrize("p", [1, 2, 3, 4, 7])
def test_inverse_roots(p):
    matrix = positive(4)
    values, vectors = np.linalg.eigh(matrix)
    root, error = optim.matrix_inverse_pth_root(matrix, p, ridge_epsilon=0.0, error_tolerance=1e-12)
    np.testing.assert_allclose(root, vectors * values ** (-1 / p) @ vectors.T, rtol=1e-8, atol=1e-8)
    assert float(error) < 1e-8
    single, _ = optim.matrix_inverse_pth_root(np.array([[16.0]], "float32"), p)
    np.testing.assert_allclose(single, [[16 ** (-1 / p)]], rtol=1e-5)


def test_roots_refuse_what_has_none():
    with pytest.raises(ArgumentError):
        optim.matrix_inverse_pth_root(np.eye(2), 0)
    with pytest.raises(ShapeError):
        optim.matrix_inverse_pth_root(np.ones(3), 2)


@pytest.mark.wide
def test_nonnegative_least_squares():
    optimize = pytest.importorskip("scipy.optimize")
    a, b = RNG.normal(size=(6, 4)), RNG.normal(size=(6, 3))
    expected = np.stack([optimize.nnls(a, column)[0] for column in b.T], 1)
    np.testing.assert_allclose(optim.nnls(a, b, 3000), expected, atol=1e-8)
    np.testing.assert_allclose(optim.nnls(a, b[:, 0], 3000, L=np.linalg.norm(a.T @ a, 2)), expected[:, 0], atol=1e-8)
    assert not np.any(optim.nnls(np.zeros((3, 2)), np.ones(3), 5))
    with pytest.raises(ShapeError):
        optim.nnls(a, b[:3], 5)


@pytest.mark.wide
def test_second_derivatives():
    params = {"w": vf.numpy.asarray(RNG.normal(size=(2, 2))), "b": vf.numpy.asarray(RNG.normal(size=2))}
    x = RNG.normal(size=2)
    loss = lambda p, x, y: vf.numpy.sum(vf.numpy.sin(p["w"] @ x + p["b"]) ** 2) + y * vf.numpy.sum(p["b"] ** 3)
    full = vf.hessian(lambda flat: loss({"b": flat[:2], "w": flat[2:].reshape(2, 2)}, x, 0.5))(
        vf.numpy.concatenate([params["b"], params["w"].reshape(-1)])
    )
    v = RNG.normal(size=6)
    product = second_order.hvp(loss, v, params, x, 0.5)
    np.testing.assert_allclose(np.concatenate([product["b"], product["w"].reshape(-1)]), np.asarray(full) @ v, rtol=1e-10)
    np.testing.assert_allclose(second_order.hessian_diag(loss, params, x, 0.5), np.diag(full), rtol=1e-10)
    gradient = vf.grad(loss)(params, x, 0.5)
    expected = np.concatenate([gradient["b"], gradient["w"].reshape(-1)]) ** 2
    np.testing.assert_allclose(second_order.fisher_diag(loss, params, x, 0.5), expected, rtol=1e-10)


def test_scaled_gradients():
    function = lambda x: sum(vf.numpy.sum(leaf**2) for leaf in tree.leaves(optim.scale_gradient(x, 0.5)))
    point = {"a": vf.numpy.array([1.0, np.inf]), "b": vf.numpy.array(3.0)}
    assert np.isposinf(function(point))
    np.testing.assert_array_equal(vf.grad(function)(point)["a"], [1.0, np.inf])
    np.testing.assert_array_equal(vf.jvp(lambda x: optim.scale_gradient(x, 0.0), (2.0,), (1.0,)), [2.0, 0.0])


@pytest.mark.parametrize("noise", ["Normal", "Gumbel"])
@pytest.mark.parametrize("baseline", [True, False])
def test_perturbed_functions_are_optaxs(noise, baseline):
    """The same keys give the same samples."""
    jax, optax = pytest.importorskip("jax"), pytest.importorskip("optax")
    point = np.array([0.3, -0.2, 0.1], "float32")
    results = []
    for library, api, numpy in ((optim, vf, vf.numpy), (optax, jax, jax.numpy)):
        step = lambda x, numpy=numpy: numpy.where(x == numpy.max(x), numpy.arange(3.0), 0.0)
        module = library.perturbations
        smooth = module.make_perturbed_fun(step, 50, sigma=0.5, noise=getattr(module, noise)(), use_baseline=baseline)
        with jax.threefry_partitionable(True):
            key = api.random.key(7)
            both = api.jit(lambda x, smooth=smooth, key=key, api=api: (smooth(key, x), api.jacobian(lambda y: smooth(key, y))(x)))
            results.append([np.asarray(v) for v in both(point)])
    for ours, theirs in zip(*results, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


def test_perturbed_functions_of_trees():
    smooth = perturbations.make_perturbed_fun(lambda x: {"sum": x["a"] + x["b"]}, 2000, sigma=0.1, noise=perturbations.Normal())
    arguments = {"a": vf.numpy.ones(2), "b": vf.numpy.array(2.0)}
    np.testing.assert_allclose(smooth(vf.random.key(0), arguments)["sum"], 3.0, atol=0.02)  # 0.1 * sqrt(2 / 2000), six times
    slope = vf.grad(lambda x: vf.numpy.sum(smooth(vf.random.key(0), x)["sum"]))(arguments)
    np.testing.assert_allclose(slope["b"], 2.0, atol=0.6)  # about 2 / sqrt(2000) times some, six times
