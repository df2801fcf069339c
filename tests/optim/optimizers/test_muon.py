"""Muon against Optax, its Newton-Schulz steps against the singular value decomposition."""

from __future__ import annotations

import numpy as np
import pytest

import volta_fn as vf
from tests.optim.oracle import MORE_SHAPES, assert_close, ours_and_theirs, random_tree
from volta_fn import optim, tree
from volta_fn.errors import ArgumentError, ShapeError


def numbers(library, **fields):
    """Dimension numbers of either library."""
    make = optim.MuonDimensionNumbers if library is optim else __import__("optax").contrib._muon.MuonDimensionNumbers
    return {"scalar": None, "row": None, "cube": make(**fields), "kernel": make((1, 2), -1)}


def of(library):
    """Return the state of Muon, which Optax has among its contributions."""
    return optim if library is optim else library.contrib


OPTIONS = {
    "plain": {},
    "decay": {"weight_decay": 0.1, "adam_weight_decay": 0.2, "adam_learning_rate": 0.02, "nesterov": False},
    "dion": {"ns_coeffs": "dion", "adaptive": True},
    "aol": {"preconditioning": "aol", "consistent_rms": 0.2},
    "spectral": {"preconditioning": "spectral", "ns_steps": 3},
    "schatten": {"preconditioning": "schatten"},
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", OPTIONS)
def test_agrees_with_optax(name, dtype):
    updates, _, params = ours_and_theirs(lambda o: of(o).muon(0.1, **OPTIONS[name]), dtype, 2, compiled=True)
    # polynomials of degree 5 to the power 5 amplify rounding; in float64 Optax keeps the coefficients in float64, too
    rtol = 1e-4 if dtype == "float32" else 1e-10
    assert_close(*updates, rtol=rtol)
    assert_close(*params, rtol=rtol)


@pytest.mark.wide
@pytest.mark.parametrize("axes", [{"reduction_axis": 0, "output_axis": (1, 2)}, {"reduction_axis": 2, "output_axis": 0}])
def test_dimension_numbers_agree_with_optax(axes):
    make = lambda o: of(o).muon(0.1, muon_weight_dimension_numbers=lambda params: numbers(o, **axes))
    for ours, theirs in ours_and_theirs(make, "float64", 2, MORE_SHAPES, compiled=True)[::2]:
        assert_close(ours, theirs, rtol=1e-10)


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64"])
@pytest.mark.parametrize("shape", [(4, 4), (3, 7), (7, 3)])
def test_newton_schulz_approaches_the_polar_factor(shape, dtype):
    x = random_tree(3, dtype, {"x": shape})["x"]
    u, _, v = np.linalg.svd(x, full_matrices=False)
    cubic = (1.5, -0.5, 0.0)  # converges to singular values of 1, not only near them
    q = optim.orthogonalize_via_newton_schulz(x, cubic, ns_steps=40)
    np.testing.assert_allclose(q, u @ v, atol=2e-5 if dtype != "float64" else 1e-10)
    assert q.dtype == np.dtype(dtype)
    values = np.linalg.svd(np.asarray(optim.orthogonalize_via_newton_schulz(x)), compute_uv=False)
    assert np.all((values > 0.5) & (values < 1.3))


def test_stacks_of_matrices_are_orthogonalised_one_by_one():
    x = random_tree(3, "float32", {"x": (2, 3, 4)})["x"]
    together = optim.orthogonalize_via_newton_schulz(x, dimension_numbers=optim.MuonDimensionNumbers(1, 2))
    np.testing.assert_allclose(together[1], optim.orthogonalize_via_newton_schulz(x[1]), rtol=1e-5, atol=1e-6)


def test_zero_gradients_and_empty_matrices_are_harmless():
    params = {"w": vf.numpy.zeros((3, 4)), "none": vf.numpy.zeros((0, 4))}
    optimizer = optim.muon(0.1)
    updates, _ = optimizer.update(params, optimizer.init(params), params)
    assert tree.all(tree.map(lambda u: bool(vf.numpy.all(u == 0)), updates))


@pytest.mark.wide
@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: optim.muon(0.1, ns_coeffs="none"), ArgumentError),
        (lambda: optim.orthogonalize_via_newton_schulz(np.ones(3)), ShapeError),
        (lambda: optim.orthogonalize_via_newton_schulz(np.ones((2, 2)), (1.0, 2.0)), ShapeError),
        (lambda: optim.orthogonalize_via_newton_schulz(np.ones((2, 2)), [(1.5, -0.5, 0.0)], ns_steps=2), ArgumentError),
        (lambda: optim.orthogonalize_via_newton_schulz(np.ones((2, 2)), preconditioning="none"), ArgumentError),
        (
            lambda: optim.orthogonalize_via_newton_schulz(np.ones((2, 2, 2)), dimension_numbers=optim.MuonDimensionNumbers(0, -3)),
            ArgumentError,
        ),
    ],
)
def test_impossible_settings_are_refused(call, error):
    with pytest.raises(error):
        call()
