"""Colours against their formulas in NumPy, pixel by pixel where that says more."""

from __future__ import annotations

import colorsys
from collections.abc import Callable

import numpy as np
import pytest

import volta_fn as vf
from volta_fn.errors import ArgumentError, DTypeError, ShapeError
from volta_fn.vision import transforms

RANDOM = np.random.default_rng(0)
BYTES = RANDOM.integers(0, 256, (2, 3, 9, 7)).astype(np.uint8)
BYTES[1, :, :3, :3] = 80  # gray
FLOATS = (BYTES / 255).astype(np.float32)


def gray(images: np.ndarray) -> np.ndarray:
    return np.einsum("nchw,c->nhw", images.astype(float), [0.2989, 0.587, 0.114])[:, None]


def agrees(function: Callable[[object], vf.Array], wanted: Callable[[np.ndarray], np.ndarray], whole: bool = False) -> None:
    """Bytes and floats are those wanted, traced and batched too; `wanted` is of numbers in the range of the images."""
    for images, top in ((BYTES, 255), (FLOATS, 1)):
        numbers = np.clip(wanted(images), 0, top)
        for result in (function(images), vf.jit(function)(images), vf.vmap(function)(images)):
            assert result.dtype == images.dtype
            assert result.shape == images.shape
            if top == 1:
                np.testing.assert_allclose(result, numbers, atol=2e-6)
            else:  # truncated; a number just below an integer may be rounded to it in float32
                difference = numbers - np.asarray(result).astype(float)
                assert (difference > -1e-3).all()
                assert (difference < 1 + 1e-3).all()
                assert whole is False or (difference == 0).all()


@pytest.mark.parametrize("factor", [0.0, 0.4, 1.0, 1.8])
def test_factors(factor):
    def contrasted(images: np.ndarray) -> np.ndarray:
        shade = gray(images)
        mean = (np.floor(shade) if images.dtype == np.uint8 else shade).mean((1, 2, 3), keepdims=True)
        return factor * images.astype(float) + (1 - factor) * mean

    def saturated(images: np.ndarray) -> np.ndarray:
        shade = gray(images)
        return factor * images.astype(float) + (1 - factor) * (np.floor(shade) if images.dtype == np.uint8 else shade)

    agrees(lambda x: transforms.adjust_brightness(x, factor), lambda x: x.astype(float) * factor)
    agrees(lambda x: transforms.adjust_contrast(x, factor), contrasted)
    agrees(lambda x: transforms.adjust_saturation(x, factor), saturated)


@pytest.mark.parametrize("turn", [-0.5, -0.2, 0.0, 0.35])
def test_hue(turn):
    def turned(images: np.ndarray) -> np.ndarray:
        result = np.zeros(images.shape)
        for n, i, j in np.ndindex(images.shape[0], *images.shape[2:]):
            hue, saturation, value = colorsys.rgb_to_hsv(*(images[n, :, i, j].astype(float) / (255 if images.dtype == np.uint8 else 1)))
            result[n, :, i, j] = colorsys.hsv_to_rgb((hue + turn) % 1, saturation, value)
        return result

    np.testing.assert_allclose(transforms.adjust_hue(FLOATS, turn), turned(FLOATS), atol=1e-5)
    np.testing.assert_allclose(np.asarray(transforms.adjust_hue(BYTES, turn)).astype(float), turned(BYTES) * 255, atol=1.01)
    np.testing.assert_array_equal(transforms.adjust_hue(BYTES, 0.0), BYTES)


def test_gray_images():
    result = transforms.rgb_to_grayscale(BYTES, 3)
    np.testing.assert_array_equal(result, np.repeat(np.floor(gray(BYTES) + 1e-4), 3, 1))
    one = BYTES[:, :1]
    np.testing.assert_array_equal(transforms.rgb_to_grayscale(one), one)
    np.testing.assert_array_equal(transforms.adjust_saturation(one, 3.0), one)
    np.testing.assert_array_equal(transforms.adjust_hue(one, 0.3), one)


def test_gamma():
    np.testing.assert_allclose(transforms.adjust_gamma(FLOATS, 0.5, 0.9), np.clip(0.9 * np.sqrt(FLOATS), 0, 1), atol=1e-6)
    wanted = np.floor(np.clip(np.sqrt(BYTES / 255), 0, 1) * 255.999)
    assert np.abs(np.asarray(transforms.adjust_gamma(BYTES, 0.5)).astype(float) - wanted).max() <= 1


def test_levels():
    agrees(transforms.invert, lambda x: (255 if x.dtype == np.uint8 else 1) - x.astype(float), whole=True)
    np.testing.assert_array_equal(transforms.solarize(BYTES, 100), np.where(BYTES >= 100, 255 - BYTES, BYTES))
    np.testing.assert_allclose(transforms.solarize(FLOATS, 0.4), np.where(FLOATS >= 0.4, 1 - FLOATS, FLOATS))
    for bits in range(9):
        np.testing.assert_array_equal(transforms.posterize(BYTES, bits), BYTES >> (8 - bits) << (8 - bits) if bits else 0 * BYTES)
        np.testing.assert_array_equal(vf.jit(transforms.posterize)(BYTES, bits), transforms.posterize(BYTES, bits))
        np.testing.assert_allclose(
            transforms.posterize(FLOATS, bits), np.clip(np.floor(FLOATS * 2**bits), 0, 2**bits - 1) / 2**bits, atol=1e-6
        )


def test_autocontrast():
    images = BYTES // 3 + 40
    images[0, 1] = 9  # one colour
    low, high = (f(images, (2, 3), keepdims=True).astype(float) for f in (np.min, np.max))
    wanted = np.where(high > low, (images - low) * 255 / np.maximum(high - low, 1), images)
    result = np.asarray(transforms.autocontrast(images)).astype(float)
    assert (wanted - result > -1e-3).all()
    assert (wanted - result < 1 + 1e-3).all()
    assert result[1].min() == 0
    assert result[1].max() == 255
    np.testing.assert_array_equal(result[0, 1], 9)


def test_equalize_follows_the_table_of_pil():
    images = (RANDOM.normal(100, 25, (2, 3, 40, 30)).clip(0, 255)).astype(np.uint8)
    images[0, 2] = 7
    images[1, 0] = images[1, 0] // 128 * 50  # two colours
    wanted = np.zeros_like(images)
    for n, c in np.ndindex(2, 3):
        counts = np.bincount(images[n, c].ravel(), minlength=256)
        step = (counts.sum() - counts[counts.nonzero()[0][-1]]) // 255
        table, total = list(range(256)), step // 2
        if step:
            for level in range(256):
                table[level] = min(total // step, 255)
                total += counts[level]
        wanted[n, c] = np.array(table)[images[n, c]]
    for result in (transforms.equalize(images), vf.jit(transforms.equalize)(images)):
        np.testing.assert_array_equal(result, wanted)
    np.testing.assert_allclose(transforms.equalize((images / 255).astype(np.float32)), wanted / 255, atol=1e-6)


def test_factors_by_image():
    factors = np.float32([0.5, 1.5])
    result = vf.vmap(transforms.adjust_contrast)(BYTES, factors)
    for i in (0, 1):
        np.testing.assert_array_equal(result[i], transforms.adjust_contrast(BYTES[i], float(factors[i])))


def test_empty_images():
    none = np.zeros((0, 3, 4, 4), np.uint8)
    for function in (transforms.autocontrast, transforms.equalize, transforms.invert, transforms.rgb_to_grayscale):
        assert function(none).shape[0] == 0
    assert transforms.autocontrast(np.zeros((3, 0, 4), np.float32)).shape == (3, 0, 4)


def test_bad_arguments():
    with pytest.raises(ShapeError, match="channels, height, width"):
        transforms.invert(BYTES[0, 0])
    with pytest.raises(ShapeError, match="1 or 3 channels"):
        transforms.adjust_contrast(BYTES[:, :2], 1.0)
    with pytest.raises(ArgumentError, match="not negative"):
        transforms.adjust_brightness(BYTES, -1.0)
    with pytest.raises(ArgumentError, match=r"-0\.5 to 0\.5"):
        transforms.adjust_hue(BYTES, 0.6)
    with pytest.raises(DTypeError, match="bytes or floats"):
        transforms.equalize(BYTES.astype(np.int32))
    with pytest.raises(DTypeError, match="real floats"):
        transforms.invert(BYTES.astype(np.complex64))
