"""Random changes: keyed, the same when jitted, of each image by itself, and with the distributions that they are documented to have."""

from __future__ import annotations

import numpy as np
import pytest

import volta_fn as vf
from volta_fn import data, random
from volta_fn.errors import ArgumentError, ShapeError
from volta_fn.vision import transforms

BYTES = np.random.default_rng(0).integers(0, 256, (6, 3, 12, 14)).astype(np.uint8)
FLOATS = (BYTES / 255).astype(np.float32)

MAKERS = {
    "color_jitter": lambda: transforms.color_jitter(0.4, 0.3, (0.5, 1.5), 0.1),
    "random_affine": lambda: transforms.random_affine(20, (0.1, 0.2), (0.8, 1.2), (-5, 5, -3, 3), "bilinear"),
    "random_erasing": lambda: transforms.random_erasing(0.7),
    "random_gaussian_blur": lambda: transforms.random_gaussian_blur(3),
    "random_grayscale": lambda: transforms.random_grayscale(0.5),
    "random_perspective": lambda: transforms.random_perspective(),
    "random_resized_crop": lambda: transforms.random_resized_crop((8, 6)),
    "random_rotation": lambda: transforms.random_rotation((10, 80)),
    "random_vertical_flip": transforms.random_vertical_flip,
    "random_apply": lambda: transforms.random_apply(transforms.autocontrast),
}


@pytest.mark.parametrize("name", MAKERS)
def test_transforms_are_keyed_and_keep_dtypes(name):
    transform = MAKERS[name]()
    for images in (BYTES, FLOATS):
        result = transform(3, images)
        assert result.dtype == images.dtype
        jitted = np.asarray(vf.jit(transform)(random.key(3), images)).astype(float)
        if images is BYTES:  # sums in another order may be truncated to another byte
            assert np.abs(jitted - np.asarray(result).astype(float)).max() <= 1
        else:
            np.testing.assert_allclose(jitted, result, atol=1e-5)
        np.testing.assert_array_equal(transform(3, images), result)
        assert not np.array_equal(transform(4, images), result)
    assert transform(0, FLOATS[0]).ndim == 3
    assert transform(0, FLOATS.reshape(2, 3, *FLOATS.shape[1:])).shape[:2] == (2, 3)
    same = np.asarray(transform(5, np.stack([FLOATS[0]] * 6)))
    assert len({image.tobytes() for image in same}) > 1


def test_chains_of_a_loader():
    augment = data.compose(data.to_float, transforms.random_resized_crop(8), transforms.color_jitter(0.2), data.normalize(0.5, 0.25))
    dataset = data.ArrayDataset(BYTES)
    loaded = [list(data.DataLoader(dataset, 3, key=0, augment=augment, workers=workers)) for workers in (0, 2)]
    for alone, together in zip(*loaded, strict=True):
        np.testing.assert_array_equal(alone, together)
        assert alone.shape == (3, 3, 8, 8)


def test_crops_lie_in_the_image_and_have_their_areas_and_ratios():
    rows, columns = np.mgrid[0:40, 0:60].astype(np.float32)
    images = np.broadcast_to(np.stack([rows, columns]), (300, 2, 40, 60))
    crops = np.asarray(transforms.random_resized_crop(2, scale=(0.2, 0.4), ratio=(0.5, 2.0), antialias=False)(0, images))
    # Pixels of a 2 by 2 crop are half a side apart.
    height, width = 2 * (crops[:, 0, 1, 0] - crops[:, 0, 0, 0]), 2 * (crops[:, 1, 0, 1] - crops[:, 1, 0, 0])
    share, ratio = height * width / 2400, width / height
    assert share.min() > 0.18
    assert share.max() < 0.43
    assert share.max() - share.min() > 0.15
    assert ratio.min() > 0.45
    assert ratio.max() < 2.2
    top, left = crops[:, 0, 0, 0] + 0.5 - height / 4, crops[:, 1, 0, 0] + 0.5 - width / 4
    assert top.min() > -0.01
    assert left.min() > -0.01
    assert (top + height).max() < 40.01
    assert (left + width).max() < 60.01


def test_crops_that_do_not_fit_are_the_middle():
    image = np.arange(3 * 4 * 40, dtype=np.float32).reshape(3, 4, 40)
    crop = transforms.random_resized_crop((4, 8), scale=(4.0, 5.0), ratio=(1.0, 2.0))(0, image)
    np.testing.assert_allclose(crop, image[..., 16:24], rtol=1e-6)


def test_probabilities():
    images = np.broadcast_to(np.float32([[[1, 2], [3, 4]]]), (2000, 1, 2, 2))
    for maker in (transforms.random_vertical_flip, lambda p: transforms.random_erasing(p, scale=(0.2, 0.3), ratio=(1, 1))):
        for probability in (0.0, 0.3, 1.0):
            changed = (np.asarray(maker(probability)(1, images)) != images).any((1, 2, 3)).mean()
            assert abs(changed - probability) < 0.05, probability


def test_rotations_have_their_range():
    line = np.zeros((200, 1, 41, 41), np.float32)
    line[..., 20, 21:] = 1  # points right
    y, x = np.mgrid[0:41, 0:41] - 20.0
    turned = np.asarray(transforms.random_rotation((20, 70), "bilinear")(0, line))[:, 0]
    angles = np.degrees(np.arctan2(-(turned * y).sum((1, 2)), (turned * x).sum((1, 2))))
    assert 18 < angles.min() < 26
    assert 64 < angles.max() < 72


def test_jitter_of_one_kind_is_its_factor():
    changed = np.asarray(transforms.color_jitter(brightness=(0.25, 0.5))(0, np.ones((200, 3, 1, 1), np.float32)))
    assert 0.25 <= changed.min() < 0.27
    assert 0.48 < changed.max() <= 0.5
    np.testing.assert_array_equal(transforms.color_jitter()(0, BYTES), BYTES)


def test_noise_erases():
    changed = np.asarray(transforms.random_erasing(1.0, value="random")(0, np.full((50, 3, 20, 20), 9, np.float32)))
    noise = changed[changed != 9]
    assert 0.8 < noise.std() < 1.2
    with pytest.raises(ArgumentError, match="normal numbers"):
        transforms.random_erasing(1.0, value="random")(0, BYTES)


def test_bad_arguments():
    for make, message in (
        (lambda: transforms.random_apply(transforms.invert, 1.5), "probability"),
        (lambda: transforms.random_resized_crop(4, scale=(0.5, 0.1)), "ascending"),
        (lambda: transforms.color_jitter(hue=0.7), "hue"),
        (lambda: transforms.color_jitter(brightness=-1), "not negative"),
        (lambda: transforms.random_affine(3, translate=(2, 0)), "shares"),
        (lambda: transforms.random_perspective(2.0), "distortion_scale"),
        (lambda: transforms.random_gaussian_blur(3, (0.0, 1.0)), "sigma"),
    ):
        with pytest.raises(ArgumentError, match=message):
            make()
    with pytest.raises(ShapeError, match="keeps the shape"):
        transforms.random_apply(lambda x: transforms.center_crop(x, 3))(0, BYTES)
