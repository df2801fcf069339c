"""Transforms against NumPy; random ones are keyed, and the same when jitted."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import volta_fn as vf
from volta_fn import data
from volta_fn.errors import ArgumentError, DataError, DTypeError, ShapeError

IMAGES = np.random.default_rng(0).integers(0, 256, (40, 3, 5, 6)).astype(np.uint8)


def unique_images(count: int, channels: int, height: int, width: int) -> np.ndarray:
    """Images all of whose pixels differ, none of them 0."""
    return 1 + np.arange(count * channels * height * width, dtype=np.float32).reshape(count, channels, height, width)


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32", "uint64"])
def test_to_float_maps_the_range(dtype):
    top = np.iinfo(dtype).max
    result = data.to_float(np.array([0, top // 5, top], dtype))
    assert result.dtype == np.float32
    np.testing.assert_allclose(result, [0, 0.2, 1], rtol=1e-6)
    assert (np.asarray(result)[[0, 2]] == [0, 1]).all()


@pytest.mark.parametrize(("dtype", "short"), [("int32", "i32"), ("float32", "f32"), ("bool", "bool")])
def test_to_float_is_for_unsigned_integers(dtype, short):
    with pytest.raises(DTypeError, match=rf"got {short}\[2\]"):
        data.to_float(np.zeros(2, dtype))


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_normalize_by_channel(dtype):
    x = (IMAGES / 255).astype(dtype)
    mean, std = [0.4, 0.5, 0.6], [0.2, 0.25, 0.3]
    expected = (x - np.array(mean, dtype)[:, None, None]) / np.array(std, dtype)[:, None, None]
    for images, wanted in ((x, expected), (x[0], expected[0])):
        actual = data.normalize(mean, std)(images)
        assert actual.dtype == np.dtype(dtype)
        np.testing.assert_allclose(actual, wanted, rtol=np.finfo(dtype).eps * 4, atol=np.finfo(dtype).eps)


def test_normalize_along_other_axes_and_by_numbers():
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.testing.assert_array_equal(data.normalize([1, 2, 3], 2.0, axis=1)(x), (x - [1, 2, 3]) / 2)
    np.testing.assert_array_equal(data.normalize(1.0, [1, 2], axis=-2)(x), (x - 1) / np.array([[1], [2]]))
    assert float(data.normalize(1.0, 2.0)(np.float32(5))) == 2.0


def test_normalize_refuses():
    for mean, std in ((0.0, 0.0), ([0, 0], [1, -1]), (0.0, float("nan")), ([[0]], 1.0)):
        with pytest.raises(ArgumentError, match="std positive"):
            data.normalize(mean, std)
    with pytest.raises(ArgumentError, match="mean has 2 numbers, std has 3"):
        data.normalize([0, 0], [1, 1, 1])
    with pytest.raises(DTypeError, match="to_float"):
        data.normalize(0.0, 1.0)(IMAGES)
    for shape in ((4, 5, 5), (3, 3)):
        with pytest.raises(ShapeError, match="axis -3 should have size 3"):
            data.normalize([0, 0, 0], 1.0)(np.zeros(shape, np.float32))


@given(st.lists(st.integers(0, 6), max_size=9))
def test_one_hot_is_rows_of_the_identity(labels):
    result = data.one_hot(7)(np.array(labels, np.int32))
    np.testing.assert_array_equal(result, np.eye(7, dtype=np.float32)[np.array(labels, int)])


@pytest.mark.wide
def test_one_hot_checks_labels():
    for label in (-1, 3):
        with pytest.raises(DataError, match=f"label {label} is not one of 0 … 2"):
            data.one_hot(3)(np.array([0, label]))
    with pytest.raises(DTypeError, match="labels are integers"):
        data.one_hot(3)(np.zeros(2))
    assert vf.jit(data.one_hot(3, "float16"))(np.int32([1])).dtype == np.float16


# random ones


RANDOM = [data.random_horizontal_flip(), data.random_crop(2), data.random_crop(0, (2, 3)), data.random_crop(1, (7, 8), 9)]


@pytest.mark.wide
@pytest.mark.parametrize("transform", RANDOM)
@pytest.mark.parametrize("images", [IMAGES, IMAGES[0], IMAGES[:0], IMAGES.reshape(4, 10, 3, 5, 6), IMAGES.astype(np.float64)])
def test_same_key_same_images(transform, images):
    first = transform(7, images)
    assert first.dtype == images.dtype
    assert first.shape[:-2] == images.shape[:-2]
    np.testing.assert_array_equal(first, transform(vf.random.key(7), images))
    np.testing.assert_array_equal(first, vf.jit(transform)(vf.random.key(7), images))


@pytest.mark.parametrize("transform", RANDOM[:3])
def test_another_key_gives_others(transform):
    assert (np.asarray(transform(7, IMAGES)) != np.asarray(transform(8, IMAGES))).any()


def test_flips_mirror_images():
    x = unique_images(200, 3, 4, 5)
    result = np.asarray(data.random_horizontal_flip()(0, x))
    same, mirrored = ((result == y).all(axis=(1, 2, 3)) for y in (x, x[..., ::-1]))
    assert (same ^ mirrored).all()
    assert 70 < mirrored.sum() < 130  # 200 coins: four standard deviations are 28
    np.testing.assert_array_equal(data.random_horizontal_flip(0.0)(0, x), x)
    np.testing.assert_array_equal(data.random_horizontal_flip(1.0)(0, x), x[..., ::-1])


@pytest.mark.parametrize(("padding", "size"), [(1, None), (0, (2, 3)), (2, (5, 4)), (0, None)])
def test_crops_are_windows_of_the_padded_image(padding, size):
    x = unique_images(300, 2, 3, 4)
    height, width = size or (3, 4)
    result = np.asarray(data.random_crop(padding, size, fill=-1)(1, x))
    padded = np.pad(x, [(0, 0), (0, 0), (padding, padding), (padding, padding)], constant_values=-1)
    windows = np.lib.stride_tricks.sliding_window_view(padded, (height, width), axis=(2, 3))
    matches = (windows == result[:, :, None, None]).all(axis=(1, 4, 5))
    assert (matches.sum(axis=(1, 2)) == 1).all()
    assert matches.any(axis=0).all()  # some image has each position


def test_crops_refuse():
    with pytest.raises(ArgumentError, match="padding is not negative"):
        data.random_crop(-1)
    with pytest.raises(ShapeError, match=r"window of \(9, 9\) does not fit images of \(5, 6\) padded by 1"):
        data.random_crop(1, (9, 9))(0, IMAGES)
    for fill in (-1, 0.5, 256):
        with pytest.raises(ArgumentError, match="is not a value of uint8"):
            data.random_crop(1, fill=fill)(0, IMAGES)
    with pytest.raises(ShapeError, match="channels, height, width"):
        data.random_horizontal_flip()(0, IMAGES[0, 0])
    with pytest.raises(ArgumentError, match="probability"):
        data.random_horizontal_flip(1.5)


# compositions


def test_compose_is_one_after_the_other():
    assert data.compose(lambda x: x + 1, lambda x: 10 * x)(2) == 30
    assert data.compose()(5) == 5


def test_compositions_with_random_transforms_take_a_key():
    noise = data.RandomTransform(lambda key, x: x + vf.random.normal(key, x.shape))
    both = data.compose(noise, vf.numpy.negative, noise)
    assert isinstance(both, data.RandomTransform)
    zeros = vf.numpy.zeros(4)
    first, second = np.asarray(data.compose(noise)(3, zeros)), np.asarray(both(3, zeros))
    assert (second + first != first).all()  # the second noise is none that was there before
    np.testing.assert_array_equal(both(3, zeros), both(vf.random.key(3), zeros))
    nested = data.compose(both, both)
    assert (np.asarray(nested(3, zeros)) != second).all()
