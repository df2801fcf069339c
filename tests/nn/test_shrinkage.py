"""Shrinkage, thresholds, softmin and normalisation against PyTorch; samples of Gumbel-softmax against their probabilities."""

from __future__ import annotations

import numpy as np
import pytest

import volta_fn as vf
from tests.nn.torch_oracle import DTYPES, compare, numbers, torch
from volta_fn import nn

F = torch.nn.functional
CALLS = {
    "hardshrink": (lambda x: nn.hardshrink(x, 0.3), lambda x: F.hardshrink(x, 0.3)),
    "softshrink": (lambda x: nn.softshrink(x, 0.3), lambda x: F.softshrink(x, 0.3)),
    "tanhshrink": (nn.tanhshrink, F.tanhshrink),
    "threshold": (lambda x: nn.threshold(x, 0.2, -4.0), lambda x: F.threshold(x, 0.2, -4.0)),
    "softmin": (lambda x: nn.softmin(x, 1), lambda x: F.softmin(x, 1)),
    "normalize": (nn.normalize, F.normalize),
    "normalize, other": (lambda x: nn.normalize(x, 3, axis=-1, eps=2.5), lambda x: F.normalize(x, 3, dim=-1, eps=2.5)),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CALLS)
def test_agrees_with_torch(name, dtype):
    ours, theirs = CALLS[name]
    compare(nn.Lambda(ours), theirs, numbers((3, 4, 2), dtype))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_special_numbers(value):
    x = np.array([value], "float32")
    for name in ("hardshrink", "softshrink", "threshold"):
        ours, theirs = CALLS[name]
        np.testing.assert_array_equal(ours(x), theirs(torch.tensor(x)))


def test_gumbel_softmax_draws_by_probability():
    logits = vf.numpy.log(vf.numpy.array([0.1, 0.2, 0.7]))
    draws = nn.gumbel_softmax(vf.random.key(0), vf.numpy.broadcast_to(logits, (4000, 3)), hard=True)
    assert set(np.unique(draws)) == {0.0, 1.0}
    np.testing.assert_allclose(np.mean(draws, 0), [0.1, 0.2, 0.7], atol=0.04)  # five standard deviations
    relaxed = nn.gumbel_softmax(vf.random.key(0), logits[:, None], tau=0.5, axis=0)
    assert relaxed.shape == (3, 1)
    np.testing.assert_allclose(np.sum(relaxed), 1, rtol=1e-6)
    slopes = [vf.grad(lambda x, hard=hard: nn.gumbel_softmax(vf.random.key(0), x, hard=hard)[0])(logits) for hard in (False, True)]
    np.testing.assert_array_equal(*slopes)
