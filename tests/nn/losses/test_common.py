"""What all losses have in common: reductions, shapes, dtypes, empty batches, NaN, and transforms."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import volta_fn as vf
from volta_fn import nn
from volta_fn.errors import ArgumentError, DTypeError, ShapeError

rng = np.random.default_rng(0)
X = rng.normal(size=(6, 4)).astype(np.float32)
Y = rng.normal(size=(6, 4)).astype(np.float32)
P = rng.uniform(0.1, 0.9, size=(6, 4)).astype(np.float32)
SIGNS = rng.choice([-1.0, 1.0], size=(6, 4)).astype(np.float32)
LABELS = rng.integers(0, 4, size=6, dtype=np.int32)

#: Every loss with arguments whose first axis is the batch.
LOSSES = {
    "mse_loss": (X, Y),
    "mae_loss": (X, Y),
    "huber_loss": (X, Y),
    "smooth_l1_loss": (X, Y),
    "gaussian_nll_loss": (X, Y, P),
    "poisson_nll_loss": (X, P),
    "cross_entropy": (X, LABELS),
    "nll_loss": (X, LABELS),
    "binary_cross_entropy": (P, P),
    "binary_cross_entropy_with_logits": (X, P),
    "sigmoid_focal_loss": (X, P),
    "kl_div": (X, P),
    "kl_divergence_gaussian": (X, Y),
    "hinge_loss": (X, SIGNS),
    "multi_margin_loss": (X, LABELS),
    "margin_ranking_loss": (X, Y, SIGNS),
    "cosine_embedding_loss": (X, Y, SIGNS[:, 0]),
    "triplet_margin_loss": (X, Y, P),
}
PAIRED = ["mse_loss", "mae_loss", "huber_loss", "smooth_l1_loss", "poisson_nll_loss", "hinge_loss", "kl_div", "kl_divergence_gaussian"]


@pytest.mark.parametrize("name", LOSSES)
def test_reductions_are_of_the_separate_losses(name):
    loss, arrays = getattr(nn, name), LOSSES[name]
    each = np.asarray(loss(*arrays, reduction="none"))
    assert each.shape[0] == 6
    np.testing.assert_allclose(loss(*arrays, reduction="mean"), each.mean(), rtol=1e-5)
    np.testing.assert_allclose(loss(*arrays, reduction="sum"), each.sum(), rtol=1e-5)
    with pytest.raises(ArgumentError, match="reduction must be 'mean', 'sum'"):
        loss(*arrays, reduction="average")


@pytest.mark.parametrize("name", LOSSES)
def test_vmap_and_jit_and_grad_agree_with_a_loop(name):
    loss, arrays = getattr(nn, name), LOSSES[name]
    batched = [vf.numpy.asarray(a.reshape(2, 3, *a.shape[1:])) for a in arrays]
    slopes = vf.jit(vf.vmap(vf.value_and_grad(loss)))(*batched)
    for i in range(2):
        value, slope = vf.value_and_grad(loss)(*[a[i] for a in batched])
        np.testing.assert_allclose(slopes[0][i], value, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(slopes[1][i], slope, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", LOSSES)
def test_the_mean_of_an_empty_batch_is_nan_and_its_sum_zero(name):
    loss, arrays = getattr(nn, name), [a[:0] for a in LOSSES[name]]
    assert np.isnan(loss(*arrays, reduction="mean")) and loss(*arrays, reduction="sum") == 0
    assert loss(*arrays, reduction="none").shape[0] == 0
    assert vf.grad(lambda x: loss(x, *arrays[1:], reduction="sum"))(vf.numpy.asarray(arrays[0])).shape == arrays[0].shape


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("name", LOSSES)
def test_half_precision_is_computed_in_float32(name, dtype):
    arrays = [a.astype(dtype) if a.dtype == np.float32 else a for a in LOSSES[name]]
    wide = [a.astype(np.float32) if a.dtype == dtype else a for a in arrays]
    loss = getattr(nn, name)
    result = loss(*arrays)
    assert result.dtype == dtype
    assert result == np.asarray(loss(*wide)).astype(dtype)
    assert vf.grad(loss)(vf.numpy.asarray(arrays[0]), *arrays[1:]).dtype == dtype


@pytest.mark.parametrize("name", LOSSES)
def test_nan_comes_out_where_it_went_in(name):
    first, *rest = LOSSES[name]
    broken = first.copy()
    broken[2, LABELS[2]] = np.nan
    each = np.asarray(getattr(nn, name)(broken, *rest, reduction="none")).reshape(6, -1)
    assert np.isnan(each).any(1).tolist() == [False, False, True, False, False, False]


@pytest.mark.parametrize("name", LOSSES)
def test_complex_numbers_are_refused(name):
    first, *rest = LOSSES[name]
    with pytest.raises(DTypeError, match="real numbers are needed, got complex64"):
        getattr(nn, name)(first.astype(np.complex64), *rest)


@pytest.mark.parametrize("name", PAIRED)
def test_shapes_that_would_broadcast_are_refused(name):
    loss = getattr(nn, name)
    with pytest.raises(ShapeError, match=r"same shape, got \(6, 1\) and \(6,\)"):
        loss(X[:, :1], Y[:, 0])
    number = np.float32(0.5)
    np.testing.assert_array_equal(loss(X, number), loss(X, np.full_like(X, number)))


@pytest.mark.wide
def test_integers_become_floats():
    assert nn.mse_loss(vf.numpy.array([1, 2]), vf.numpy.array([2, 4])) == np.float32(2.5)
    assert nn.mse_loss(vf.numpy.array([1, 2]), vf.numpy.array([2, 4])).dtype == np.float32
    assert nn.binary_cross_entropy_with_logits(X, SIGNS > 0).dtype == np.float32
    assert nn.mse_loss(X.astype(np.float64), X).dtype == np.float64
