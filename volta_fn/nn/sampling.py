"""Images sampled at given positions: `grid_sample` and `affine_grid`."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

from volta_fn import numpy as vnp
from volta_fn.core.arrays.array import Array
from volta_fn.dtypes import FLOATS, accumulator
from volta_fn.errors import ArgumentError, DTypeError, ShapeError
from volta_fn.numpy.arguments import promote_inexact

__all__ = ["affine_grid", "grid_sample"]

_MODES = ("bilinear", "nearest", "bicubic")
_PADDING_MODES = ("zeros", "border", "reflection")

#: A sample along one axis: its position, a whole number as a float, and its weight.
Tap = tuple[Array, Array]


def affine_grid(theta: Any, size: Sequence[int], align_corners: bool = False) -> Array:
    """Return positions of a regular grid moved by affine maps, for `grid_sample`.

    Args:
        theta: the maps, of shape (N, 2, 3) for images and (N, 3, 4) for volumes.
        size: the output's: (N, C, H, W) or (N, C, D, H, W).
        align_corners: whether -1 and 1 are the centres of the first and last elements, instead of their outer edges.

    Returns positions of shape (N, H, W, 2) or (N, D, H, W, 3), x first. Raises `ShapeError` if the shapes do not fit.

    >>> nn.affine_grid(jnp.array([[[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]]), (1, 1, 2, 2))
    Array([[[[-0.5, -0.5],
             [ 0.5, -0.5]],
    <BLANKLINE>
            [[-0.5,  0.5],
             [ 0.5,  0.5]]]], dtype=float32)
    """
    (maps,) = promote_inexact("affine_grid", theta)
    rank = len(size) - 2
    if rank not in (2, 3) or maps.shape != (size[0], rank, rank + 1):
        raise ShapeError(
            f"affine_grid: size is (N, C, H, W) and theta (N, 2, 3), or (N, C, D, H, W) and (N, 3, 4), got {tuple(size)} and {maps.shape}"
        )
    axes = [_centres(n, align_corners, maps.dtype) for n in size[2:]]
    mesh = vnp.meshgrid(*axes, indexing="ij")[::-1]
    points = vnp.stack([*mesh, vnp.ones_like(mesh[0])], -1)
    return vnp.einsum("...j,nij->n...i", points, maps)


def _centres(count: int, align_corners: bool, dtype: Any) -> Array:
    """Return the positions of the elements of an axis from -1 to 1."""
    if align_corners:
        return vnp.linspace(-1, 1, count, dtype=dtype) if count > 1 else vnp.zeros(count, dtype)
    return (2 * vnp.arange(count, dtype=dtype) + 1) / max(count, 1) - 1


def grid_sample(input: Any, grid: Any, mode: str = "bilinear", padding_mode: str = "zeros", align_corners: bool = False) -> Array:
    """Interpolate images at given positions, with PyTorch's results.

    Args:
        input: images of shape (N, C, H, W), or volumes (N, C, D, H, W).
        grid: positions of shape (N, …, 2) or (N, …, 3) with as many axes as the input, x (along the last axis) first; -1 and 1 are the
            edges.
        mode: "bilinear" (trilinear for volumes), "nearest", or "bicubic" for images.
        padding_mode: what lies outside: "zeros", the nearest element ("border"), or a reflection of the image.
        align_corners: whether -1 and 1 are the centres of the first and last elements, instead of their outer edges.

    Returns samples of shape (N, C, …). It is differentiable by both arguments, but for the positions of "nearest". Raises `ShapeError` if
    the shapes do not fit, `ArgumentError` for other modes, `DTypeError` for complex numbers.

    >>> image = jnp.arange(4.0).reshape(1, 1, 2, 2)
    >>> nn.grid_sample(image, jnp.array([[[[0.0, 0.0], [-0.5, -0.5]]]]))
    Array([[[[1.5, 0. ]]]], dtype=float32)
    """
    images, positions = promote_inexact("grid_sample", input, grid)
    _check(images, positions, mode, padding_mode)
    wide, points = (x.astype(accumulator(images.dtype)) for x in (images, positions))
    taps = [
        _taps(_unnormalized(points[..., -1 - axis], size, align_corners), size, mode, padding_mode, align_corners)
        for axis, size in enumerate(images.shape[2:])
    ]
    return _weighted_sum(wide, taps).astype(images.dtype)


def _check(images: Array, positions: Array, mode: str, padding_mode: str) -> None:
    rank = images.ndim - 2
    if images.dtype not in FLOATS:
        raise DTypeError(f"grid_sample: real numbers are needed, got {images.dtype.name}")
    if mode not in _MODES or padding_mode not in _PADDING_MODES:
        raise ArgumentError(f"grid_sample: mode is one of {_MODES} and padding_mode of {_PADDING_MODES}, got {mode!r} and {padding_mode!r}")
    if mode == "bicubic" and rank != 2:
        raise ArgumentError("grid_sample: 'bicubic' is for images, (N, C, H, W); use 'bilinear' for volumes")
    if rank not in (2, 3) or positions.ndim != images.ndim or positions.shape[0] != images.shape[0] or positions.shape[-1] != rank:
        raise ShapeError(
            "grid_sample: input (N, C, H, W) and grid (N, …, …, 2) are needed, or one axis more each, "
            f"got {images.shape} and {positions.shape}"
        )
    if 0 in images.shape[2:]:
        raise ShapeError(f"grid_sample: there are no elements to interpolate in shape {images.shape}")


def _unnormalized(x: Array, size: int, align_corners: bool) -> Array:
    """Return positions from -1 to 1 as positions from the first element to the last."""
    return (x + 1) / 2 * (size - 1) if align_corners else ((x + 1) * size - 1) / 2


def _inside(x: Array, size: int, padding_mode: str, align_corners: bool) -> Array:
    """Return positions clamped to or reflected in the image, by the padding mode."""
    if padding_mode == "reflection":
        x = _reflected(x, 0.0 if align_corners else -0.5, size - 1 if align_corners else size)
    return x if padding_mode == "zeros" else vnp.clip(x, 0, size - 1)


def _reflected(x: Array, low: float, span: int) -> Array:
    """Return positions reflected at `low` and at ``low + span``."""
    if span == 0:
        return vnp.zeros_like(x)
    distance = vnp.abs(x - low)
    times, rest = vnp.floor(distance / span), vnp.fmod(distance, span)
    return vnp.where(times % 2 == 0, rest, span - rest) + low


def _taps(x: Array, size: int, mode: str, padding_mode: str, align_corners: bool) -> list[Tap]:
    """Return the elements along an axis that a sample is made of, with weights."""
    if mode == "bicubic":
        start = vnp.floor(x)
        weights = cubic_weights(x - start)
        return [(_inside(start + i - 1, size, padding_mode, align_corners), weight) for i, weight in enumerate(weights)]
    x = _inside(x, size, padding_mode, align_corners)
    if mode == "nearest":
        return [(vnp.round(x), vnp.ones_like(x))]
    start = vnp.floor(x)
    return [(start, 1 - (x - start)), (start + 1, x - start)]


def cubic_weights(t: Any) -> list[Any]:
    """Return the weights of four neighbours of a position `t` past the second.

    They are those of cubic convolution with a = -3/4 (Keys 1981).
    """
    a = -0.75

    def far(d: Any) -> Any:
        return ((a * d - 5 * a) * d + 8 * a) * d - 4 * a

    def near(d: Any) -> Any:
        return ((a + 2) * d - (a + 3)) * d * d + 1

    return [far(t + 1), near(t), near(1 - t), far(2 - t)]


def _weighted_sum(images: Array, taps: list[list[Tap]]) -> Array:
    """Return the sum over all combinations of taps, one of each axis."""
    count, channels, *sizes = images.shape
    flat = images.reshape(count, channels, math.prod(sizes))
    shape = taps[0][0][0].shape
    total = vnp.zeros((count, channels, *shape[1:]), images.dtype)
    for combination in itertools.product(*taps):
        index, weight, valid = vnp.zeros(shape, "int32"), vnp.ones(shape, images.dtype), vnp.ones(shape, bool)
        for (position, share), size in zip(combination, sizes, strict=True):
            index = index * size + vnp.clip(vnp.nan_to_num(position), 0, size - 1).astype("int32")
            weight, valid = weight * share, valid & ~((position < 0) | (position > size - 1))
        values = vnp.take_along_axis(flat, index.reshape(count, 1, math.prod(shape[1:])), 2).reshape(total.shape)
        total = total + vnp.where(valid[:, None], values, 0) * weight[:, None]
    return total
