"""Kullback-Leibler divergences against PyTorch, and where probabilities are zero."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.special

import volta_fn as vf
from tests.nn.losses.oracle import check
from volta_fn import nn

torch = pytest.importorskip("torch")
F = torch.nn.functional
rng = np.random.default_rng(0)
LOGITS = rng.normal(size=(2, 6, 5))
LOG_P, LOG_Q = scipy.special.log_softmax(LOGITS, -1)


@pytest.mark.filterwarnings("ignore:reduction:UserWarning")  # PyTorch points out that "mean" is not the divergence
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none", "batchmean"])
@pytest.mark.parametrize("log_target", [False, True])
def test_kl_div_matches_pytorch(log_target, reduction, dtype):
    options = {"log_target": log_target, "reduction": reduction}
    arrays = [LOG_P, LOG_Q if log_target else np.exp(LOG_Q)]
    check(lambda x, y: nn.kl_div(x, y, **options), lambda x, y: F.kl_div(x, y, **options), arrays, dtype, wrt=(0, 1))


@pytest.mark.parametrize("log_target", [False, True])
def test_impossible_targets_cost_nothing_whatever_the_prediction(log_target):
    predictions = vf.numpy.array([-np.inf, -2.0, -np.inf])
    targets = vf.numpy.array([0.0, 0.0, 1.0])
    if log_target:
        targets = vf.numpy.log(targets)
    value, slopes = vf.value_and_grad(lambda x: nn.kl_div(x, targets, log_target=log_target, reduction="none")[:2].sum())(predictions)
    assert value == 0 and np.asarray(slopes).tolist() == [0, 0, 0]
    assert nn.kl_div(predictions, targets, log_target=log_target, reduction="sum") == np.inf


def gaussian(mu: object, logvar: object) -> object:
    """Return the divergence from the standard normal distribution, by PyTorch's distributions."""
    normal = torch.distributions.Normal(mu, torch.exp(0.5 * logvar))
    return torch.distributions.kl_divergence(normal, torch.distributions.Normal(0.0, 1.0))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_kl_divergence_gaussian_matches_pytorch(dtype):
    check(lambda m, v: nn.kl_divergence_gaussian(m, v, reduction="none"), gaussian, LOGITS, dtype, wrt=(0, 1))


@pytest.mark.wide
def test_kl_divergence_gaussian_sums_by_default_and_keeps_small_digits():
    np.testing.assert_allclose(nn.kl_divergence_gaussian(*LOGITS), gaussian(*map(torch.tensor, LOGITS)).sum(), rtol=1e-12)
    np.testing.assert_allclose(nn.kl_divergence_gaussian(0.0, np.float32(1e-3)), 2.500833e-07, rtol=1e-3)
