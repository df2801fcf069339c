"""Positions: torch's resampling, and maps against interpolation written out pixel by pixel."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

import volta_fn as vf
from volta_fn.errors import ArgumentError, ShapeError
from volta_fn.vision import transforms

BYTES = np.random.default_rng(0).integers(0, 256, (2, 3, 8, 11)).astype(np.uint8)
FLOATS = (BYTES / 255).astype(np.float32)
HEIGHT, WIDTH = 8, 11

Source = Callable[[float, float], tuple[float, float]]


def looked_up(images: np.ndarray, size: tuple[int, int], source: Source, interpolation: str, fill: float = 0.0) -> np.ndarray:
    """Return the image whose pixel with centre (x, y) is interpolated at ``source(x, y)``."""
    result = np.zeros((*images.shape[:2], *size))
    padded = np.pad(images.astype(float), [(0, 0), (0, 0), (1, 1), (1, 1)], constant_values=fill)
    for i, j in np.ndindex(*size):
        x, y = (p - 0.5 for p in source(j + 0.5, i + 0.5))
        if interpolation == "nearest":
            x, y = np.round(x), np.round(y)
        x, y = min(max(x, -1), WIDTH), min(max(y, -1), HEIGHT)
        left, top = min(math.floor(x), WIDTH - 1), min(math.floor(y), HEIGHT - 1)
        u, v = x - left, y - top
        corner = padded[:, :, top + 1 : top + 3, left + 1 : left + 3]
        result[:, :, i, j] = np.einsum("ncij,i,j->nc", corner, [1 - v, v], [1 - u, u])
    return result


def agrees(function: Callable[[object], vf.Array], size: tuple[int, int], source: Source, interpolation: str, fill: float = 0.0) -> None:
    for images in (FLOATS, BYTES):
        wanted = looked_up(images, size, source, interpolation, fill)
        for result in (function(images), vf.jit(function)(images)):
            assert result.dtype == images.dtype
            assert result.shape == wanted.shape
            off = np.abs(np.asarray(result) - wanted) > (1e-4 if images is FLOATS else 0.51)
            # A position between two pixels may be rounded either way.
            assert off.sum() <= (0 if interpolation == "bilinear" else 0.02 * wanted.size)


def turned(degrees: float, about: tuple[float, float]) -> Source:
    """Return the source of a counterclockwise rotation."""
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))

    def source(x: float, y: float) -> tuple[float, float]:
        right, down = x - about[0], y - about[1]
        return cos * right - sin * down + about[0], sin * right + cos * down + about[1]

    return source


@pytest.mark.parametrize("interpolation", ["nearest", "bilinear"])
@pytest.mark.parametrize("degrees", [25.0, -130.0])
def test_rotations(interpolation, degrees):
    middle = (WIDTH / 2, HEIGHT / 2)
    agrees(lambda x: transforms.rotate(x, degrees, interpolation), (HEIGHT, WIDTH), turned(degrees, middle), interpolation)
    agrees(lambda x: transforms.rotate(x, degrees, interpolation, center=(2, 3)), (HEIGHT, WIDTH), turned(degrees, (2, 3)), interpolation)


def test_right_angles_move_pixels():
    for degrees, times in ((90, 1), (180, 2), (270, 3), (-90, 3)):
        result = transforms.rotate(BYTES, degrees, expand=True)
        np.testing.assert_array_equal(result, np.rot90(BYTES, times, (2, 3)))
    np.testing.assert_array_equal(transforms.rotate(BYTES, 0), BYTES)


def test_expanded_rotations_hold_the_image():
    result = transforms.rotate(np.ones((1, 100, 200), np.float32), 30, "bilinear", expand=True)
    height, width = 100 * math.cos(math.pi / 6) + 200 * 0.5, 200 * math.cos(math.pi / 6) + 100 * 0.5
    assert abs(result.shape[1] - height) <= 2
    assert abs(result.shape[2] - width) <= 2
    np.testing.assert_allclose(float(result.sum()), 20000, rtol=0.01)
    with pytest.raises(ArgumentError, match="expand"):
        transforms.rotate(BYTES, 30, expand=True, center=(0, 0))


@pytest.mark.parametrize("interpolation", ["nearest", "bilinear"])
def test_affine_maps(interpolation):
    degrees, move, scale, shear, about = 20.0, (1.5, -2.0), 1.3, (12.0, -7.0), (4.0, 3.0)
    turn, (shear_x, shear_y) = math.radians(degrees), map(math.radians, shear)
    # The rotation less the shear along y, a shear along x, and lengths along x by the secant (the order of torchvision).
    cos, sin = math.cos(turn - shear_y) / math.cos(shear_y), math.sin(turn - shear_y) / math.cos(shear_y)
    forward = np.array([[cos, -cos * math.tan(shear_x) - math.sin(turn)], [sin, -sin * math.tan(shear_x) + math.cos(turn)]])
    matrix = np.linalg.inv(scale * forward)

    def source(x: float, y: float) -> tuple[float, float]:
        right, down = matrix @ [x - about[0] - move[0], y - about[1] - move[1]]
        return right + about[0], down + about[1]

    def mapped(x: object) -> vf.Array:
        return transforms.affine(x, degrees, move, scale, shear, interpolation, fill=0.0, center=about)

    agrees(mapped, (HEIGHT, WIDTH), source, interpolation)


def test_moves_and_colours():
    result = transforms.affine(BYTES, 0, (2, -1), 1.0, 0, fill=(9, 8, 7))
    np.testing.assert_array_equal(result[..., :-1, 2:], BYTES[..., 1:, :-2])
    np.testing.assert_array_equal(result[..., -1, :], np.broadcast_to([[9], [8], [7]], (2, 3, WIDTH)))
    agrees(
        lambda x: transforms.affine(x, 0, (0.5, 0.25), 1.0, 0, "bilinear"), (HEIGHT, WIDTH), lambda x, y: (x - 0.5, y - 0.25), "bilinear"
    )
    with pytest.raises(ShapeError, match="fill"):
        transforms.affine(BYTES, 0, (0, 0), 1.0, 0, fill=(1, 2))
    with pytest.raises(ArgumentError, match="scale"):
        transforms.affine(BYTES, 0, (0, 0), 0, 0)
    with pytest.raises(ArgumentError, match="'nearest' or 'bilinear'"):
        transforms.rotate(BYTES, 3, "bicubic")


@pytest.mark.parametrize("interpolation", ["nearest", "bilinear"])
def test_perspective(interpolation):
    start, end = [[0, 0], [10, 0], [10, 7], [0, 7]], [[2.1, 1.2], [9.3, 0.1], [8.4, 6.2], [1.3, 7.1]]
    rows, numbers = [], []
    for (x, y), (u, v) in zip(end, start, strict=True):
        rows += [[x, y, 1, 0, 0, 0, -u * x, -u * y], [0, 0, 0, x, y, 1, -v * x, -v * y]]
        numbers += [u, v]
    a, b, c, d, e, f, g, h = np.linalg.solve(np.array(rows, float), np.array(numbers, float))

    def source(x: float, y: float) -> tuple[float, float]:
        depth = g * x + h * y + 1
        return (a * x + b * y + c) / depth, (d * x + e * y + f) / depth

    agrees(lambda x: transforms.perspective(x, start, end, interpolation), (HEIGHT, WIDTH), source, interpolation)
    with pytest.raises(ShapeError, match="four points"):
        transforms.perspective(BYTES, start[:3], end[:3])


def test_flips_crops_and_borders():
    np.testing.assert_array_equal(transforms.horizontal_flip(BYTES), BYTES[..., ::-1])
    np.testing.assert_array_equal(transforms.vertical_flip(BYTES), BYTES[..., ::-1, :])
    np.testing.assert_array_equal(transforms.crop(BYTES, 1, 2, 3, 4), BYTES[..., 1:4, 2:6])
    around = np.pad(BYTES, [(0, 0), (0, 0), (5, 5), (5, 5)])
    np.testing.assert_array_equal(transforms.crop(BYTES, -2, 7, 12, 6), around[..., 3:15, 12:18])
    np.testing.assert_array_equal(transforms.center_crop(BYTES, (4, 5)), BYTES[..., 2:6, 3:8])
    np.testing.assert_array_equal(transforms.center_crop(BYTES, (10, 11)), around[..., 4:14, 5:16])
    for mode in ("constant", "edge", "reflect", "symmetric"):
        np.testing.assert_array_equal(
            transforms.pad(BYTES, (1, 2, 3, 4), 0, mode), np.pad(BYTES, [(0, 0), (0, 0), (2, 4), (1, 3)], mode=mode)
        )
    np.testing.assert_array_equal(transforms.pad(BYTES, (1, 2), 5), np.pad(BYTES, [(0, 0), (0, 0), (2, 2), (1, 1)], constant_values=5))
    with pytest.raises(ArgumentError, match="padding"):
        transforms.pad(BYTES, (1, 2, 3))


MODES = {"nearest": "nearest", "nearest-exact": "nearest-exact", "bilinear": "bilinear", "bicubic": "bicubic"}


@pytest.mark.parametrize("interpolation", MODES)
@pytest.mark.parametrize("antialias", [True, False])
def test_sizes(interpolation, antialias):
    torch = pytest.importorskip("torch")
    options = {"antialias": antialias, "align_corners": False} if interpolation.startswith("bi") else {}
    for size in ((5, 4), (20, 7)):
        wanted = torch.nn.functional.interpolate(torch.tensor(FLOATS), size, mode=MODES[interpolation], **options).numpy()
        np.testing.assert_allclose(transforms.resize(FLOATS, size, interpolation, antialias), wanted, atol=2e-6)
        rounded = np.asarray(transforms.resize(BYTES, size, interpolation, antialias)).astype(float)
        assert np.abs(rounded - np.clip(wanted, 0, 1) * 255).max() <= 0.501


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize(
    ("sizes", "new"),
    [((40, 70), (23, 33)), ((5, 300), (9, 65)), ((64, 31), (1, 500)), ((900, 6), (3, 6)), ((1, 1), (2, 40)), ((7, 9), (7, 90))],
)
def test_resized_integers_are_rounded_once(interpolation, sizes, new):
    """They are computed by rows and by blocks of columns, floats by products with whole matrices."""
    for dtype in ("uint8", "int16", "int32"):
        values = np.random.default_rng(3).integers(0, 256, (2, *sizes)).astype(dtype)
        exact = np.asarray(transforms.resize(values.astype(np.float64), new, interpolation))
        out = np.asarray(transforms.resize(values, new, interpolation))
        limits = np.iinfo(dtype)
        assert out.dtype == dtype and np.abs(out - np.clip(exact, limits.min, limits.max)).max() <= 0.5 + 1e-3


def test_one_number_is_the_shorter_side():
    assert transforms.resize(BYTES, 4).shape == (2, 3, 4, 5)
    assert transforms.resize(BYTES.swapaxes(2, 3), 16).shape == (2, 3, 22, 16)
    with pytest.raises(ArgumentError, match="interpolation"):
        transforms.resize(BYTES, 4, "cubic")
    with pytest.raises(ArgumentError, match="size"):
        transforms.resize(BYTES, (4, 0))


@pytest.mark.parametrize(("interpolation", "antialias"), [("nearest", True), ("bilinear", True), ("bilinear", False), ("bicubic", True)])
def test_resized_crops_are_crops_resized(interpolation, antialias):
    wanted = transforms.resize(FLOATS[..., 2:7, 3:9], (4, 9), interpolation, antialias)
    function = vf.jit(
        lambda top, left, height, width: transforms.resized_crop(FLOATS, top, left, height, width, (4, 9), interpolation, antialias)
    )
    np.testing.assert_allclose(function(2, 3, 5, 6), wanted, atol=2e-6)
    tall = np.random.default_rng(1).uniform(size=(2, 90, 11)).astype(np.float32)  # more rows to add than are added one by one
    wanted = transforms.resize(tall[:, 3:87, 1:9], (2, 5), interpolation, antialias)
    np.testing.assert_allclose(transforms.resized_crop(tall, 3, 1, 84, 8, (2, 5), interpolation, antialias), wanted, atol=2e-6)
    with pytest.raises(ArgumentError, match="antialias"):
        transforms.resized_crop(FLOATS, 0, 0, 2, 2, 2, "bicubic", antialias=False)


@pytest.mark.parametrize("dtype", ["int16", "int32", "int8"])
def test_negative_integers_are_interpolated(dtype):
    images = np.random.default_rng(0).integers(-100, 100, (1, 6, 6)).astype(dtype)
    wide = images.astype(np.float32)
    for function in (
        lambda x: transforms.resize(x, 9), lambda x: transforms.rotate(x, 20.0, "bilinear"), lambda x: transforms.gaussian_blur(x, 3),
        lambda x: transforms.affine(x, 10.0, (1, 0), 1.0, 0, "bilinear"),
    ):  # fmt: skip
        result, wanted = np.asarray(function(images)), np.asarray(function(wide))
        assert result.dtype == dtype and result.min() < 0
        np.testing.assert_allclose(result, wanted, atol=0.5001)
