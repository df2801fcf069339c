"""Mixed batches: labels have the weights that the images show."""

from __future__ import annotations

import numpy as np
import pytest

import volta_fn as vf
from volta_fn import random
from volta_fn.errors import ArgumentError, ArgumentTypeError, DTypeError, ShapeError
from volta_fn.vision import transforms

LABELS = np.int32([0, 2, 1])
IMAGES = np.ones((3, 2, 9, 11), np.float32) * np.float32([1, 2, 4]).reshape(3, 1, 1, 1)


@pytest.mark.parametrize("name", ["mixup", "cutmix"])
def test_labels_follow_the_images(name):
    transform = getattr(transforms, name)(3)
    shares = []
    for seed in range(8):
        mixed, targets = vf.jit(transform)(random.key(seed), (IMAGES, LABELS))
        share = np.asarray(targets)[np.arange(3), LABELS]
        np.testing.assert_allclose(share, share[0], rtol=1e-6)
        np.testing.assert_allclose(targets.sum(1), 1, rtol=1e-6)
        np.testing.assert_allclose(np.asarray(targets)[np.arange(3), np.roll(LABELS, 1)], 1 - share, atol=1e-6)
        wanted = share[0] * np.float32([1, 2, 4]) + (1 - share[0]) * np.float32([4, 1, 2])
        np.testing.assert_allclose(np.asarray(mixed).mean((1, 2, 3)), wanted, rtol=1e-5)
        shares.append(share[0])
    assert max(shares) - min(shares) > 0.2


def test_a_rectangle_is_pasted():
    mixed = np.asarray(transforms.cutmix(3)(1, (IMAGES.astype(np.uint8), LABELS))[0])
    assert mixed.dtype == np.uint8
    pasted = mixed[1, 0] == 1
    assert 0 < pasted.sum() < pasted.size
    assert (pasted == np.outer(pasted.any(1), pasted.any(0))).all()


def test_probabilities_mix_too():
    soft = np.float32([[0.5, 0.5], [1, 0], [0, 1]])
    mixed, targets = transforms.mixup(2)(0, (IMAGES, soft))
    share = (float(mixed[1, 0, 0, 0]) - 1) / (2 - 1)
    np.testing.assert_allclose(targets, share * soft + (1 - share) * np.roll(soft, 1, 0), atol=1e-5)


def test_bad_arguments():
    with pytest.raises(DTypeError, match="to_float"):
        transforms.mixup(3)(0, (IMAGES.astype(np.uint8), LABELS))
    with pytest.raises(ArgumentTypeError, match="pair"):
        transforms.mixup(3)(0, IMAGES)
    with pytest.raises(ShapeError, match=r"\(N, 3\)"):
        transforms.cutmix(3)(0, (IMAGES, LABELS[:2]))
    with pytest.raises(ArgumentError, match="positive"):
        transforms.mixup(3, alpha=0)
