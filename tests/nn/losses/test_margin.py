"""Hinge and ranking losses against PyTorch and Optax."""

from __future__ import annotations

import numpy as np
import pytest

import volta_fn as vf
from tests.nn.losses.oracle import as_torch, check
from volta_fn import nn
from volta_fn.errors import DTypeError, ShapeError

torch = pytest.importorskip("torch")
F = torch.nn.functional
rng = np.random.default_rng(0)
X, Y = rng.normal(size=(2, 6, 5)) * 2
SIGNS = rng.choice([-1.0, 1.0], size=(6, 5))
LABELS = rng.integers(0, 5, size=6, dtype=np.int32)
WEIGHT = rng.uniform(0.5, 2, size=5)
EVERY = [pytest.mark.parametrize("dtype", ["float32", "float64"]), pytest.mark.parametrize("reduction", ["mean", "sum", "none"])]


def every(test: object) -> object:
    """Run a test for each dtype and reduction."""
    return EVERY[0](EVERY[1](test))


@every
def test_hinge_loss_matches_its_definition(reduction, dtype):
    def definition(x: object, y: object) -> object:
        each = torch.clamp(0.8 - x * y, min=0)
        return each if reduction == "none" else getattr(each, reduction)()

    check(lambda x, y: nn.hinge_loss(x, y, margin=0.8, reduction=reduction), definition, [X, SIGNS], dtype, wrt=(0, 1))


@pytest.mark.wide
def test_hinge_loss_matches_optax():
    optax = pytest.importorskip("optax")
    np.testing.assert_allclose(nn.hinge_loss(X, SIGNS, reduction="none"), optax.hinge_loss(X, SIGNS), rtol=1e-5, atol=1e-6)


@every
@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("weighted", [False, True])
def test_multi_margin_loss_matches_pytorch(weighted, p, reduction, dtype):
    options = {"p": p, "margin": 1.5, "reduction": reduction}
    ours, theirs = (WEIGHT.astype(dtype), as_torch(WEIGHT.astype(dtype))) if weighted else (None, None)
    check(
        lambda x: nn.multi_margin_loss(x, LABELS, ours, **options),
        lambda x: F.multi_margin_loss(x, as_torch(LABELS).long(), weight=theirs, **options),
        [X],
        dtype,
        second=False,  # PyTorch has none
    )


@pytest.mark.wide
def test_multi_margin_loss_of_one_example_and_of_a_wrong_label():
    np.testing.assert_allclose(nn.multi_margin_loss(X[0], 3), F.multi_margin_loss(as_torch(X[0]), torch.tensor(3)), rtol=1e-12)
    each = vf.jit(lambda y: nn.multi_margin_loss(X, y, reduction="none"))(np.array([0, 5, -1, 2, 3, 4]))
    assert np.isnan(each).tolist() == [False, True, True, False, False, False]


@every
def test_margin_ranking_loss_matches_pytorch(reduction, dtype):
    options = {"margin": 0.3, "reduction": reduction}
    check(
        lambda x, y, s: nn.margin_ranking_loss(x, y, s, **options),
        lambda x, y, s: F.margin_ranking_loss(x, y, s, **options),
        [X, Y, SIGNS],
        dtype,
        wrt=(0, 1),
    )


def test_there_is_no_slope_beyond_the_margin():
    assert np.asarray(vf.grad(lambda x: nn.hinge_loss(x, 1.0, reduction="sum"))(vf.numpy.array([1.5, 1e4, -1e4]))).tolist() == [0, 0, -1]


@pytest.mark.wide
@pytest.mark.parametrize(
    "call, error, words",
    [
        (lambda: nn.hinge_loss(X, SIGNS[:2]), ShapeError, "same shape"),
        (lambda: nn.multi_margin_loss(X, LABELS[:3]), ShapeError, r"labels of shape \(6,\)"),
        (lambda: nn.multi_margin_loss(X, SIGNS[:, 0]), DTypeError, "integers"),
        (lambda: nn.multi_margin_loss(X[None], LABELS[None]), ShapeError, r"\(N, C\) or \(C,\)"),
        (lambda: nn.multi_margin_loss(X, LABELS, WEIGHT[:2]), ShapeError, "weight of shape"),
        (lambda: nn.margin_ranking_loss(X, Y[0], 1), ShapeError, "same shape"),
        (lambda: nn.margin_ranking_loss(X, Y, SIGNS[0]), ShapeError, "same shape"),
    ],
)
def test_wrong_arguments_are_named(call, error, words):
    with pytest.raises(error, match=words):
        call()


@every
def test_hinge_embedding_loss_matches_pytorch(reduction, dtype):
    options, signs = {"margin": 0.7, "reduction": reduction}, SIGNS.astype(dtype)
    oracle = lambda x: F.hinge_embedding_loss(x, as_torch(signs), **options)
    check(lambda x: nn.hinge_embedding_loss(x, signs, **options), oracle, [X], dtype)


@every
def test_soft_margin_losses_match_pytorch(reduction, dtype):
    positive, weight = (SIGNS > 0).astype(dtype), WEIGHT.astype(dtype)
    check(
        lambda x: nn.soft_margin_loss(x, SIGNS.astype(dtype), reduction=reduction),
        lambda x: F.soft_margin_loss(x, as_torch(SIGNS.astype(dtype)), reduction=reduction),
        [X],
        dtype,
        second=False,  # PyTorch has none
    )
    check(
        lambda x: nn.multilabel_soft_margin_loss(x, positive, weight, reduction=reduction),
        lambda x: F.multilabel_soft_margin_loss(x, as_torch(positive), as_torch(weight), reduction=reduction),
        [X],
        dtype,
    )


@every
def test_multilabel_margin_loss_matches_pytorch(reduction, dtype):
    labels = np.array(
        [[0, 1, -1, 2, 3], [-1, 1, 2, 3, 4], [4, 3, 2, 1, 0], [2, -1, -1, 0, 0], [1, 4, 0, -1, 2], [3, -1, 1, 1, 1]], np.int32
    )
    check(
        lambda x: nn.multilabel_margin_loss(x, labels, reduction=reduction),
        lambda x: F.multilabel_margin_loss(x, as_torch(labels).long(), reduction=reduction),
        [X],
        dtype,
        second=False,  # PyTorch has none
    )


def test_multilabel_margin_loss_of_one_example_and_of_a_wrong_label():
    labels = np.array([1, 4, -1, 0, 0], np.int32)
    np.testing.assert_allclose(
        nn.multilabel_margin_loss(X[0], labels), F.multilabel_margin_loss(as_torch(X[0]), as_torch(labels).long()), rtol=1e-5
    )
    assert np.isnan(nn.multilabel_margin_loss(X[0], np.array([1, 5, -1, 0, 0])))
    assert np.isfinite(nn.multilabel_margin_loss(X[0], np.array([1, -1, 5, 0, 0])))
    with pytest.raises(ShapeError, match="one shape"):
        nn.multilabel_margin_loss(X, labels)


ZEROS, ONES = np.zeros((2, 3)), np.ones((2, 3))
#: Losses at the kink of their hinge, where both sides are equal.
TIES = {
    "margin_ranking_loss": ([ZEROS, ZEROS, ONES], {}),
    "hinge_embedding_loss": ([ONES, -ONES], {}),
    "cosine_embedding_loss": ([np.eye(2), np.eye(2)[::-1].copy(), -np.ones(2)], {}),
    "triplet_margin_loss": ([np.zeros((1, 1)), np.full((1, 1), 1.0), np.full((1, 1), 3.0)], {"margin": 2.0, "eps": 0.0}),
}


@pytest.mark.parametrize("name", TIES)
def test_derivatives_of_ties_are_pytorchs(name):
    arrays, options = TIES[name]
    loss, oracle = (lambda *x, library=library: getattr(library, name)(*x, reduction="sum", **options) for library in (nn, F))
    check(loss, oracle, arrays, "float32", second=False)
