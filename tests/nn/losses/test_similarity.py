"""Cosines, distances and the losses made of them against PyTorch, and at vectors of length zero."""

from __future__ import annotations

import numpy as np
import pytest

import volta_fn as vf
from tests.nn.losses.oracle import check
from volta_fn import nn
from volta_fn.errors import ShapeError

torch = pytest.importorskip("torch")
F = torch.nn.functional
rng = np.random.default_rng(0)
A, B, C = rng.normal(size=(3, 6, 5))
SIGNS = np.array([1.0, -1.0, 1.0, -1.0, -1.0, 0.0])
BOTH = pytest.mark.parametrize("dtype", ["float32", "float64"])
REDUCTIONS = pytest.mark.parametrize("reduction", ["mean", "sum", "none"])


@BOTH
@pytest.mark.parametrize("axis", [-1, 0])
def test_cosine_similarity_matches_pytorch(axis, dtype):
    ours, theirs = lambda x, y: nn.cosine_similarity(x, y, axis=axis), lambda x, y: F.cosine_similarity(x, y, dim=axis)
    check(ours, theirs, [A, B], dtype, wrt=(0, 1))
    check(ours, theirs, [A, B[:1]], dtype, wrt=(0, 1), second=False)


@BOTH
@pytest.mark.parametrize("p", [1.0, 2.0, 3.5])
def test_pairwise_distance_matches_pytorch(p, dtype):
    check(lambda x, y: nn.pairwise_distance(x, y, p=p), lambda x, y: F.pairwise_distance(x, y, p=p), [A, B], dtype, wrt=(0, 1))


@BOTH
@REDUCTIONS
def test_cosine_embedding_loss_matches_pytorch(reduction, dtype):
    options = {"margin": 0.1, "reduction": reduction}
    check(
        lambda x, y: nn.cosine_embedding_loss(x, y, SIGNS.astype(dtype), **options),
        lambda x, y: F.cosine_embedding_loss(x, y, torch.tensor(SIGNS), **options),
        [A, B],
        dtype,
        wrt=(0, 1),
    )


@BOTH
@REDUCTIONS
@pytest.mark.parametrize("swap", [False, True])
def test_triplet_margin_loss_matches_pytorch(swap, reduction, dtype):
    options = {"margin": 0.7, "swap": swap, "reduction": reduction}
    ours, theirs = lambda a, b, c: nn.triplet_margin_loss(a, b, c, **options), lambda a, b, c: F.triplet_margin_loss(a, b, c, **options)
    check(ours, theirs, [A, B, C], dtype, wrt=(0, 1, 2))


@pytest.mark.wide
def test_single_vectors():
    np.testing.assert_allclose(nn.cosine_embedding_loss(A[0], B[0], 1), 1 - nn.cosine_similarity(A[0], B[0]), rtol=1e-10)
    assert nn.triplet_margin_loss(A[0], B[0], C[0]).shape == ()


def test_zero_and_equal_vectors_have_finite_gradients():
    zeros, ones = vf.numpy.zeros(3), vf.numpy.ones(3)
    for loss in (
        lambda x: nn.cosine_similarity(x, ones),
        lambda x: nn.cosine_embedding_loss(x, ones, 1),
        lambda x: nn.pairwise_distance(x, zeros),
        lambda x: nn.pairwise_distance(x, zeros, eps=0.0),
        lambda x: nn.triplet_margin_loss(x, x, zeros),
    ):
        assert np.isfinite(vf.grad(loss)(zeros)).all()
    assert nn.cosine_similarity(zeros, ones) == 0


@pytest.mark.wide
@pytest.mark.parametrize(
    "call, words",
    [
        (lambda: nn.cosine_embedding_loss(A, B[0], SIGNS), "vectors of one shape"),
        (lambda: nn.cosine_embedding_loss(A, B, SIGNS[:3]), "targets of shape"),
        (lambda: nn.triplet_margin_loss(A, B, C[:3]), "vectors of one shape"),
        (lambda: nn.triplet_margin_loss(1.0, 2.0, 3.0), "vectors of one shape"),
    ],
)
def test_wrong_arguments_are_named(call, words):
    with pytest.raises(ShapeError, match=words):
        call()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("swap", [False, True])
def test_triplets_of_another_distance_match_pytorch(swap, dtype):
    options = {"margin": 0.7, "swap": swap, "reduction": "none"}
    generator = np.random.default_rng(3)
    check(
        lambda a, p, n: nn.triplet_margin_with_distance_loss(
            a, p, n, distance_function=lambda x, y: vf.numpy.sum((x - y) ** 2, -1), **options
        ),
        lambda a, p, n: torch.nn.functional.triplet_margin_with_distance_loss(
            a, p, n, distance_function=lambda x, y: ((x - y) ** 2).sum(-1), **options
        ),
        list(generator.normal(size=(3, 6, 2))),
        dtype,
        wrt=(0, 1, 2),
    )


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("p", [1.0, 2.0, 3.0])
def test_pdist_matches_pytorch(p, dtype):
    rows = np.random.default_rng(4).normal(size=(5, 3))
    check(lambda x: nn.pdist(x, p), lambda x: torch.nn.functional.pdist(x, p), [rows], dtype, second=False)
    assert nn.pdist(rows[:1]).shape == (0,)
    with pytest.raises(ShapeError):
        nn.pdist(rows[0])
