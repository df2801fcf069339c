"""Binary cross entropies and the focal loss against PyTorch, and with logits of any size."""

from __future__ import annotations

import numpy as np
import pytest

import volta_fn as vf
from tests.nn.losses.oracle import as_torch, check
from volta_fn import nn
from volta_fn.errors import ArgumentError, ShapeError

torch = pytest.importorskip("torch")
F = torch.nn.functional
rng = np.random.default_rng(0)
X, P, Y = rng.normal(size=(6, 5)) * 4, rng.uniform(0.02, 0.98, size=(6, 5)), rng.uniform(size=(6, 5))
W, POSITIVE = rng.uniform(0.5, 2, size=(6, 1)), rng.uniform(0.5, 3, size=5)
BOTH = pytest.mark.parametrize("dtype", ["float32", "float64"])
REDUCTIONS = pytest.mark.parametrize("reduction", ["mean", "sum", "none"])


@BOTH
@REDUCTIONS
@pytest.mark.parametrize("weight", [None, W])
def test_binary_cross_entropy_matches_pytorch(weight, reduction, dtype):
    theirs = None if weight is None else as_torch(weight.astype(dtype))
    ours = None if weight is None else weight.astype(dtype)
    check(
        lambda x, y: nn.binary_cross_entropy(x, y, ours, reduction=reduction),
        lambda x, y: F.binary_cross_entropy(x, y, theirs, reduction=reduction),
        [P, Y],
        dtype,
        wrt=(0, 1),
    )


ENDS = [[0.0, 0.0, 1.0, 1.0, 1e-30], [0.0, 1.0, 0.0, 1.0, 0.5]]


def test_probabilities_of_zero_and_one_are_clamped_as_in_pytorch():
    check(nn.binary_cross_entropy, F.binary_cross_entropy, ENDS, "float32", second=False)


@pytest.mark.wide
def test_the_greatest_slope_in_float64():
    # PyTorch's limit of 10⁻¹² is rounded to float32 here.
    slopes = vf.grad(lambda p: nn.binary_cross_entropy(p, np.array(ENDS[1]), reduction="sum"))(vf.numpy.array(ENDS[0], "float64"))
    np.testing.assert_allclose(slopes, [0, -1e12, 1e12, 0, -0.5e12], rtol=1e-14)


@BOTH
@REDUCTIONS
@pytest.mark.parametrize("weighted", [False, True])
def test_logits_match_pytorch(weighted, reduction, dtype):
    ours = {"weight": W.astype(dtype), "pos_weight": POSITIVE.astype(dtype)} if weighted else {}
    theirs = {name: as_torch(value) for name, value in ours.items()}
    check(
        lambda x, y: nn.binary_cross_entropy_with_logits(x, y, reduction=reduction, **ours),
        lambda x, y: F.binary_cross_entropy_with_logits(x, y, reduction=reduction, **theirs),
        [X, Y],
        dtype,
        wrt=(0, 1),
    )


@pytest.mark.parametrize("size", [20.0, 88.0, 1e4, 1e30])
def test_huge_logits_are_exact(size):
    logits, targets = vf.numpy.array([size, size, -size, -size]), vf.numpy.array([0.0, 1.0, 0.0, 1.0])
    each = np.asarray(nn.binary_cross_entropy_with_logits(logits, targets, reduction="none"))
    small = np.exp(-size)  # log(1 + exp(-size)), far below what can be told from it
    tiny = np.finfo(np.float32).tiny  # below which a GPU may have only zeros
    np.testing.assert_allclose(each, np.float32([size, small, small, size]), rtol=1e-6, atol=tiny)
    slopes = vf.grad(lambda x: nn.binary_cross_entropy_with_logits(x, targets, reduction="sum"))(logits)
    np.testing.assert_allclose(slopes, np.float32([1, -small, small, -1]), rtol=1e-6, atol=tiny)


def test_the_derivatives_at_zero_are_those_of_the_sigmoid():
    loss = nn.binary_cross_entropy_with_logits
    assert vf.grad(loss)(0.0, 1.0) == -0.5 and vf.grad(vf.grad(loss))(0.0, 1.0) == 0.25


def test_probabilities_outside_their_range_give_nan():
    each = nn.binary_cross_entropy(vf.numpy.array([-0.1, 0.5, 1.1]), vf.numpy.array([1.0, 1.0, 1.0]), reduction="none")
    assert np.isnan(each).tolist() == [True, False, True]


def focal(x: object, y: object, alpha: float | None, gamma: float) -> object:
    """Return the focal loss by its definition."""
    p = torch.sigmoid(x)
    entropy = F.binary_cross_entropy_with_logits(x, y, reduction="none")
    share = 1.0 if alpha is None else alpha * y + (1 - alpha) * (1 - y)
    return share * entropy * (1 - (p * y + (1 - p) * (1 - y))) ** gamma


@BOTH
@pytest.mark.parametrize("alpha, gamma", [(0.25, 2.0), (None, 2.0), (0.6, 0.5), (None, 0.0)])
def test_the_focal_loss_matches_its_definition(alpha, gamma, dtype):
    options = {"alpha": alpha, "gamma": gamma}
    hard = (Y > 0.5).astype(float)
    check(lambda x, y: nn.sigmoid_focal_loss(x, y, reduction="none", **options), lambda x, y: focal(x, y, **options), [X / 2, hard], dtype)


def test_the_focal_loss_matches_optax():
    jax, optax = pytest.importorskip("jax"), pytest.importorskip("optax")
    x, y = X.astype(np.float32), (Y > 0.5).astype(np.float32)
    expected = jax.jit(lambda x, y: optax.sigmoid_focal_loss(x, y, alpha=0.25, gamma=2.0))(x, y)
    np.testing.assert_allclose(nn.sigmoid_focal_loss(x, y, reduction="none"), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("gamma", [0.5, 2.0])
def test_the_focal_loss_of_huge_logits_is_finite_with_its_gradient(gamma):
    logits, targets = vf.numpy.array([1e4, 1e4, -1e4]), vf.numpy.array([1.0, 0.0, 0.0])
    value, slopes = vf.value_and_grad(lambda x: nn.sigmoid_focal_loss(x, targets, alpha=None, gamma=gamma, reduction="sum"))(logits)
    assert value == 1e4 and np.asarray(slopes).tolist() == [0, 1, 0]


@pytest.mark.wide
@pytest.mark.parametrize(
    "call, error, words",
    [
        (lambda: nn.binary_cross_entropy(P, Y[:2]), ShapeError, "same shape"),
        (lambda: nn.binary_cross_entropy(P, Y, np.ones(3)), ShapeError, "weight of shape"),
        (lambda: nn.binary_cross_entropy(P, Y, np.ones((2, 6, 5))), ShapeError, "weight of shape"),
        (lambda: nn.binary_cross_entropy_with_logits(X, Y, pos_weight=np.ones(6)), ShapeError, "pos_weight of shape"),
        (lambda: nn.sigmoid_focal_loss(X, Y, gamma=-1.0), ArgumentError, "gamma"),
    ],
)
def test_wrong_arguments_are_named(call, error, words):
    with pytest.raises(error, match=words):
        call()
