"""Blurring, sharpening and erasing against loops in NumPy."""

from __future__ import annotations

import numpy as np
import pytest

import volta_fn as vf
from volta_fn.errors import ArgumentError, ShapeError
from volta_fn.vision import transforms

BYTES = np.random.default_rng(0).integers(0, 256, (2, 3, 8, 10)).astype(np.uint8)
FLOATS = (BYTES / 255).astype(np.float32)


def blurred(images: np.ndarray, sizes: tuple[int, int], sigmas: tuple[float, float]) -> np.ndarray:
    """Return the weighted mean of each pixel's neighbours, the edges reflected."""
    weights = []
    for size, sigma in zip(sizes, sigmas, strict=True):
        row = np.exp(-(((np.arange(size) - size // 2) / sigma) ** 2) / 2)
        weights.append(row / row.sum())
    padded = np.pad(images.astype(float), [(0, 0)] * 2 + [(sizes[1] // 2,) * 2, (sizes[0] // 2,) * 2], mode="reflect")
    result = np.zeros(images.shape)
    for i, j in np.ndindex(*images.shape[2:]):
        result[:, :, i, j] = np.einsum("ncij,i,j->nc", padded[:, :, i : i + sizes[1], j : j + sizes[0]], weights[1], weights[0])
    return result


@pytest.mark.parametrize(("sizes", "sigmas"), [((5, 3), (1.3, 0.6)), ((1, 7), (1.0, 2.0))])
def test_gaussian_blur(sizes, sigmas):
    np.testing.assert_allclose(transforms.gaussian_blur(FLOATS, sizes, sigmas), blurred(FLOATS, sizes, sigmas), atol=1e-6)
    result = vf.jit(lambda x: transforms.gaussian_blur(x, sizes, sigmas))(BYTES)
    assert result.dtype == np.uint8
    assert np.abs(np.asarray(result) - blurred(BYTES, sizes, sigmas)).max() <= 0.501


def test_default_and_traced_deviations():
    wanted = blurred(FLOATS, (5, 5), (1.1, 1.1))
    np.testing.assert_allclose(transforms.gaussian_blur(FLOATS, 5), wanted, atol=1e-6)
    np.testing.assert_allclose(vf.jit(lambda s: transforms.gaussian_blur(FLOATS, 5, s))(1.1), wanted, atol=1e-6)
    with pytest.raises(ArgumentError, match="odd"):
        transforms.gaussian_blur(FLOATS, 4)
    with pytest.raises(ArgumentError, match="positive"):
        transforms.gaussian_blur(FLOATS, 3, 0.0)
    with pytest.raises(ShapeError, match="17 pixels does not fit"):
        transforms.gaussian_blur(FLOATS, 17)


@pytest.mark.parametrize("factor", [0.0, 0.5, 2.0])
def test_sharpness(factor):
    kernel = np.array([[1, 1, 1], [1, 5, 1], [1, 1, 1]]) / 13
    for images, top in ((BYTES, 255), (FLOATS, 1)):
        x = images.astype(float)
        wanted = x.copy()
        for i, j in np.ndindex(6, 8):
            mean = np.einsum("ncij,ij->nc", x[:, :, i : i + 3, j : j + 3], kernel)
            mean = np.round(mean) if top == 255 else mean
            wanted[:, :, i + 1, j + 1] = np.clip(factor * x[:, :, i + 1, j + 1] + (1 - factor) * mean, 0, top)
        result = transforms.adjust_sharpness(images, factor)
        assert result.dtype == images.dtype
        np.testing.assert_allclose(result, np.trunc(wanted) if top == 255 else wanted, atol=1e-5)
    small = BYTES[:, :, :2]
    np.testing.assert_array_equal(transforms.adjust_sharpness(small, 0.0), small)


def test_erase():
    wanted = BYTES.copy()
    wanted[..., 2:5, 3:9] = 7
    np.testing.assert_array_equal(transforms.erase(BYTES, 2, 3, 3, 6, 7), wanted)
    np.testing.assert_array_equal(vf.jit(transforms.erase)(BYTES, 2, 3, 3, 6, 7), wanted)
    wanted[..., 2:5, 3:9] = [[[1]], [[2]], [[3]]]
    np.testing.assert_array_equal(transforms.erase(BYTES, 2, 3, 3, 6, np.array([1, 2, 3]).reshape(3, 1, 1)), wanted)
