"""Policies: each image gets what its operations make of it, with the strengths of the papers."""

from __future__ import annotations

import numpy as np
import pytest

import volta_fn as vf
from volta_fn import random
from volta_fn.errors import ArgumentError
from volta_fn.vision import random_changes, transforms

BYTES = np.random.default_rng(0).integers(0, 256, (4, 3, 16, 20)).astype(np.uint8)
MAKERS = {
    "rand_augment": lambda: transforms.rand_augment(),
    "trivial_augment_wide": lambda: transforms.trivial_augment_wide(interpolation="bilinear"),
    "imagenet": lambda: transforms.auto_augment("imagenet"),
    "cifar10": lambda: transforms.auto_augment("cifar10"),
    "svhn": lambda: transforms.auto_augment("svhn", fill=128),
}


@pytest.mark.parametrize("name", MAKERS)
def test_policies_are_keyed(name):
    transform = MAKERS[name]()
    for images in (BYTES, (BYTES / 255).astype(np.float32)):
        jitted = vf.jit(transform)
        result = np.asarray(jitted(random.key(0), images))
        assert result.dtype == images.dtype
        assert result.shape == images.shape
        np.testing.assert_array_equal(jitted(random.key(0), images), result)
        changed = [not np.array_equal(jitted(random.key(i), images), result) for i in range(1, 4)]
        assert any(changed)


def test_operations_are_those_of_the_functions():
    operations = random_changes._operations("nearest", 0)
    image = BYTES[0]
    wanted = {
        "Identity": image,
        "ShearX": transforms.affine(image, 0, (0, 0), 1.0, (np.degrees(np.arctan(0.25)), 0.0), center=(0, 0)),
        "ShearY": transforms.affine(image, 0, (0, 0), 1.0, (0.0, np.degrees(np.arctan(0.25))), center=(0, 0)),
        "TranslateX": np.pad(image, [(0, 0), (0, 0), (3, 0)])[..., :20],
        "TranslateY": np.pad(image, [(0, 0), (3, 0), (0, 0)])[:, :16],
        "Rotate": transforms.rotate(image, 30.0),
        "Brightness": transforms.adjust_brightness(image, 1.25),
        "Color": transforms.adjust_saturation(image, 1.25),
        "Contrast": transforms.adjust_contrast(image, 1.25),
        "Sharpness": transforms.adjust_sharpness(image, 1.25),
        "Posterize": transforms.posterize(image, 3),
        "Solarize": transforms.solarize(image, 255 * 0.25),
        "AutoContrast": transforms.autocontrast(image),
        "Equalize": transforms.equalize(image),
        "Invert": transforms.invert(image),
    }
    strengths = {"TranslateX": 3.7, "TranslateY": 3.2, "Rotate": 30.0, "Posterize": 3.0}
    assert set(operations) == set(wanted)
    for name, operation in operations.items():
        result = np.asarray(operation(image, np.float32(strengths.get(name, 0.25))))
        assert (result != np.asarray(wanted[name])).mean() < 0.01, name  # a position between two pixels may be rounded either way


def test_strengths():
    table = random_changes._magnitudes(31, 0.3, (10.0, 20.0), 30, 0.9, 4)
    assert {name: (row[0], row[-1]) for name, row in table.items()} == {
        "ShearX": (0, 0.3), "ShearY": (0, 0.3), "TranslateX": (0, 10), "TranslateY": (0, 20), "Rotate": (0, 30), "Brightness": (0, 0.9),
        "Color": (0, 0.9), "Contrast": (0, 0.9), "Sharpness": (0, 0.9), "Posterize": (8, 4), "Solarize": (1, 0),
    }  # fmt: skip
    assert table["Posterize"][[3, 4, 15]].tolist() == [8, 7, 6]


def test_signs_and_operations_vary():
    images = np.full((60, 3, 8, 8), 100, np.uint8)
    images[:, :, 4:] = 150
    changed = np.asarray(vf.jit(transforms.trivial_augment_wide())(random.key(1), images))
    means = changed.mean((1, 2, 3))
    assert (means > 126).any()
    assert (means < 124).any()
    assert len({image.tobytes() for image in changed}) > 20


def test_no_operations():
    np.testing.assert_array_equal(transforms.rand_augment(num_ops=0)(0, BYTES), BYTES)


def test_bad_arguments():
    with pytest.raises(ArgumentError, match="'imagenet', 'cifar10' or 'svhn'"):
        transforms.auto_augment("coco")
    with pytest.raises(ArgumentError, match="magnitude"):
        transforms.rand_augment(magnitude=31)
    with pytest.raises(ArgumentError, match="at least 2"):
        transforms.trivial_augment_wide(1)
