"""Padding and resampling: columns, pixel shuffles, interpolation, and samples."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np

from volta_fn import dtypes, lax
from volta_fn import numpy as vnp
from volta_fn.core.arrays.array import Array, as_value
from volta_fn.core.aval import check_option
from volta_fn.dtypes import FLOATS, accumulator
from volta_fn.errors import ArgumentError, DTypeError, ShapeError
from volta_fn.nn.layers.arguments import SpatialLayer, batched_input, check_dtype, is_integer, per_axis
from volta_fn.nn.layers.pooling import pool_means
from volta_fn.nn.module import Module, static
from volta_fn.numpy.arguments import promote_inexact
from volta_fn.primitives.convolution import Ints, Padding, dilated
from volta_fn.scipy.interpolation import cubic_pieces

__all__ = [
    "ChannelShuffle",
    "CircularPad1d",
    "CircularPad2d",
    "CircularPad3d",
    "ConstantPad1d",
    "ConstantPad2d",
    "ConstantPad3d",
    "Fold",
    "PixelShuffle",
    "PixelUnshuffle",
    "ReflectionPad1d",
    "ReflectionPad2d",
    "ReflectionPad3d",
    "ReplicationPad1d",
    "ReplicationPad2d",
    "ReplicationPad3d",
    "Unfold",
    "Upsample",
    "ZeroPad1d",
    "ZeroPad2d",
    "ZeroPad3d",
    "affine_grid",
    "grid_sample",
    "interpolate",
]

# Padding of the spatial axes: with a constant, reflected, repeated and circular.
#
# `padding` is one number for all sides, or two numbers for each axis in PyTorch's order, which begins with the last axis: (left, right,
# top, bottom, front, back).


class _Pad(SpatialLayer):
    padding: Ints = static()  # also accepts one integer

    _mode: ClassVar[str] = "constant"

    def __post_init__(self) -> None:
        sides = 2 * self._rank
        padding: Any = (self.padding,) * sides if is_integer(self.padding, None) else self.padding
        if not isinstance(padding, (tuple, list)) or len(padding) != sides or not all(is_integer(n, None) for n in padding):
            raise ArgumentError(f"{type(self).__name__}: padding is an integer or {sides} of them, last axis first, got {self.padding!r}")
        self.__dict__["padding"] = tuple(padding)
        super().__post_init__()

    @classmethod
    def init(cls, padding: int | tuple[int, ...]) -> Self:
        """Create the layer.

        Args:
            padding: for all sides, or for each: (left, right) of the last axis, then of the one before, …. Negative numbers crop.

        Raises `ArgumentError` for other arguments.
        """
        return cls(padding)  # type: ignore[arg-type]  # made a tuple there

    def __call__(self, x: Any) -> Array:
        """Return the padded array, of the input's dtype.

        Raises `ShapeError` for other axes than the layer's, or for an axis that is too short.
        """
        value = batched_input(type(self).__name__, x, (self._rank,))
        pairs = list(zip(self.padding[::2], self.padding[1::2], strict=True))[::-1]
        for axis, (pair, size) in enumerate(zip(pairs, value.shape[2:], strict=True), 2):
            self._check(axis, size, *pair)
        crops = [slice(max(-low, 0), size - max(-high, 0)) for (low, high), size in zip(pairs, value.shape[2:], strict=True)]
        pads: Padding = ((0, 0), (0, 0), *[(max(low, 0), max(high, 0)) for low, high in pairs])
        return self._padded(value[(slice(None), slice(None), *crops)], pads)

    def _check(self, axis: int, size: int, low: int, high: int) -> None:
        """Check that the axis is long enough."""
        if size + min(low, 0) + min(high, 0) < 0:
            raise ShapeError(f"{type(self).__name__}: {(low, high)} crops more than the {size} elements of axis {axis}")

    def _padded(self, x: Array, pads: Padding) -> Array:
        return vnp.pad(x, pads, mode=self._mode)


class _ConstantPad(_Pad):
    value: float = static(default=0.0)

    @classmethod
    def init(cls, padding: int | tuple[int, ...], value: float = 0.0) -> Self:
        """Create the layer.

        Args:
            padding: for all sides, or for each: (left, right) of the last axis, then of the one before, …. Negative numbers crop.
            value: the elements of the padding.

        Raises `ArgumentError` for other arguments.
        """
        return cls(padding, value)  # type: ignore[arg-type]  # made a tuple there

    def _padded(self, x: Array, pads: Padding) -> Array:
        return vnp.pad(x, pads, constant_values=self.value)


class _FromInside(_Pad):
    _spare: ClassVar[int] = 0  # how many elements more than the padding an axis needs

    def _check(self, axis: int, size: int, low: int, high: int) -> None:
        super()._check(axis, size, low, high)
        if size < max(low, high) + self._spare or (size == 0 and max(low, high) > 0):
            raise ShapeError(
                f"{type(self).__name__}: axis {axis} has {size} elements, too few to take {(low, high)} elements of padding from"
            )


class _ReflectionPad(_FromInside):
    _mode = "reflect"
    _spare = 1


class _CircularPad(_FromInside):
    _mode = "wrap"


class _ReplicationPad(_Pad):
    _mode = "edge"

    def _check(self, axis: int, size: int, low: int, high: int) -> None:
        super()._check(axis, size, low, high)
        if size == 0 and max(low, high) > 0:
            raise ShapeError(f"{type(self).__name__}: axis {axis} has no elements to repeat")


class ConstantPad1d(_ConstantPad, rank=1):
    """Pads (N, C, L) with a constant.

    >>> vf.nn.ConstantPad1d.init((1, 2), 9.0)(vf.numpy.array([[[1.0, 2.0]]]))
    Array([[[9., 1., 2., 9., 9.]]], dtype=float32)
    """


class ConstantPad2d(_ConstantPad, rank=2):
    """Pads (N, C, H, W) with a constant."""


class ConstantPad3d(_ConstantPad, rank=3):
    """Pads (N, C, D, H, W) with a constant."""


class ZeroPad1d(_Pad, rank=1):
    """Pads (N, C, L) with zeros.

    >>> vf.nn.ZeroPad1d.init((1, -1))(vf.numpy.array([[[1.0, 2.0]]]))
    Array([[[0., 1.]]], dtype=float32)
    """


class ZeroPad2d(_Pad, rank=2):
    """Pads (N, C, H, W) with zeros.

    >>> vf.nn.ZeroPad2d.init((1, 1, 2, 0))(vf.numpy.ones((1, 3, 4, 5))).shape
    (1, 3, 6, 7)
    """


class ZeroPad3d(_Pad, rank=3):
    """Pads (N, C, D, H, W) with zeros."""


class ReflectionPad1d(_ReflectionPad, rank=1):
    """Pads (N, C, L) with its reflection, without the elements at the edges.

    >>> vf.nn.ReflectionPad1d.init(2)(vf.numpy.array([[[1.0, 2.0, 3.0]]]))
    Array([[[3., 2., 1., 2., 3., 2., 1.]]], dtype=float32)
    """


class ReflectionPad2d(_ReflectionPad, rank=2):
    """Pads (N, C, H, W) with its reflection, without the elements at the edges."""


class ReflectionPad3d(_ReflectionPad, rank=3):
    """Pads (N, C, D, H, W) with its reflection, without the elements at the edges."""


class ReplicationPad1d(_ReplicationPad, rank=1):
    """Pads (N, C, L) with the elements at its edges.

    >>> vf.nn.ReplicationPad1d.init(2)(vf.numpy.array([[[1.0, 2.0]]]))
    Array([[[1., 1., 1., 2., 2., 2.]]], dtype=float32)
    """


class ReplicationPad2d(_ReplicationPad, rank=2):
    """Pads (N, C, H, W) with the elements at its edges."""


class ReplicationPad3d(_ReplicationPad, rank=3):
    """Pads (N, C, D, H, W) with the elements at its edges."""


class CircularPad1d(_CircularPad, rank=1):
    """Pads (N, C, L) with elements of its other end.

    >>> vf.nn.CircularPad1d.init((1, 2))(vf.numpy.array([[[1.0, 2.0, 3.0]]]))
    Array([[[3., 1., 2., 3., 1., 2.]]], dtype=float32)
    """


class CircularPad2d(_CircularPad, rank=2):
    """Pads (N, C, H, W) with elements of its other ends."""


class CircularPad3d(_CircularPad, rank=3):
    """Pads (N, C, D, H, W) with elements of its other ends."""


# Windows of images as columns, and sums of columns as images.


class _Windows(Module):
    kernel_size: Ints = static()  # these fields also accept one integer
    dilation: Ints = static(default=1)
    padding: Ints = static(default=0)
    stride: Ints = static(default=1)

    def __post_init__(self) -> None:
        name = type(self).__name__
        for field, least in (("kernel_size", 1), ("dilation", 1), ("padding", 0), ("stride", 1)):
            self.__dict__[field] = per_axis(name, field, getattr(self, field), 2, least)
        super().__post_init__()

    def _positions(self, sizes: Ints) -> Ints:
        """Return the number of windows along each axis of an image."""
        reaches = list(map(dilated, self.kernel_size, self.dilation))
        padded = [size + 2 * pad for size, pad in zip(sizes, self.padding, strict=True)]
        if any(reach > size for reach, size in zip(reaches, padded, strict=True)):
            raise ShapeError(f"{type(self).__name__}: windows reach over {tuple(reaches)} elements, the padded image has {tuple(padded)}")
        return tuple([(size - reach) // step + 1 for size, reach, step in zip(padded, reaches, self.stride, strict=True)])

    def _offsets(self) -> list[Ints]:
        return [tuple(map(int.__mul__, taps, self.dilation)) for taps in itertools.product(*map(range, self.kernel_size))]


class Unfold(_Windows):
    """Lays out each window of (N, C, H, W) as a column of (N, C · elements, windows).

    >>> vf.nn.Unfold.init(2)(vf.numpy.arange(6.0).reshape(1, 1, 2, 3))
    Array([[[0., 1.],
            [1., 2.],
            [3., 4.],
            [4., 5.]]], dtype=float32)
    """

    @classmethod
    def init(
        cls,
        kernel_size: int | tuple[int, int],
        dilation: int | tuple[int, int] = 1,
        padding: int | tuple[int, int] = 0,
        stride: int | tuple[int, int] = 1,
    ) -> Self:
        """Create the layer; other numbers than these raise `ArgumentError`.

        Args:
            kernel_size: height and width of a window, or both.
            dilation: from one element of a window to the next.
            padding: zeros on both sides of each axis.
            stride: from one window to the next.
        """
        return cls(kernel_size, dilation, padding, stride)  # type: ignore[arg-type]  # made tuples there

    def __call__(self, x: Any) -> Array:
        """Return the columns.

        Raises `ShapeError` for an input of other axes, or smaller than a window.
        """
        value = batched_input("Unfold", x, (2,))
        counts = self._positions(value.shape[2:])
        padded = vnp.pad(value, ((0, 0), (0, 0), *[(pad, pad) for pad in self.padding]))
        slices = [padded[(..., *self._slices(offset, counts))] for offset in self._offsets()]
        return vnp.stack(slices, 2).reshape(value.shape[0], -1 if value.shape[0] else value.shape[1] * len(slices), math.prod(counts))

    def _slices(self, offset: Ints, counts: Ints) -> list[slice]:
        return [slice(low, low + (n - 1) * step + 1, step) for low, n, step in zip(offset, counts, self.stride, strict=True)]


class Fold(_Windows):
    """Adds up columns of `Unfold` to an image; elements of several windows are summed.

    >>> vf.nn.Fold.init((2, 3), 2)(vf.numpy.ones((1, 4, 2)))
    Array([[[[1., 2., 1.],
             [1., 2., 1.]]]], dtype=float32)
    """

    output_size: Ints = static(default=1)

    def __post_init__(self) -> None:
        self.__dict__["output_size"] = per_axis("Fold", "output_size", self.output_size, 2)
        super().__post_init__()

    @classmethod
    def init(
        cls,
        output_size: int | tuple[int, int],
        kernel_size: int | tuple[int, int],
        dilation: int | tuple[int, int] = 1,
        padding: int | tuple[int, int] = 0,
        stride: int | tuple[int, int] = 1,
    ) -> Self:
        """Create the layer; other numbers than these raise `ArgumentError`.

        Args:
            output_size: height and width of the image, or both.
            kernel_size: height and width of a window, or both.
            dilation: from one element of a window to the next.
            padding: on both sides of each axis, which the image lacks.
            stride: from one window to the next.
        """
        return cls(kernel_size, dilation, padding, stride, output_size)  # type: ignore[arg-type]  # made tuples there

    def __call__(self, x: Any) -> Array:
        """Return the image (N, C, H, W) of columns (N, C · elements, windows).

        Raises `ShapeError` for columns that are not those of such an image.
        """
        value, counts, offsets = as_value(x), self._positions(self.output_size), self._offsets()
        if value.ndim != 3 or value.shape[1] % len(offsets) or value.shape[2] != math.prod(counts):
            expected = f"(N, C · {len(offsets)}, {math.prod(counts)})"
            raise ShapeError(f"Fold: an image of {self.output_size} is made of columns of shape {expected}, got {value.shape}")
        columns = value.reshape(value.shape[0], value.shape[1] // len(offsets), len(offsets), *counts)
        spread = [lax.pad(columns[:, :, i], vnp.zeros((), value.dtype), self._pads(offset, counts)) for i, offset in enumerate(offsets)]
        image = functools.reduce(lax.add, spread)
        return image[(..., *[slice(pad, pad + size) for pad, size in zip(self.padding, self.output_size, strict=True)])]

    def _pads(self, offset: Ints, counts: Ints) -> list[tuple[int, int, int]]:
        """Return the padding that moves one element of each window to where it is."""
        pads = [(0, 0, 0), (0, 0, 0)]
        for low, n, step, size, pad in zip(offset, counts, self.stride, self.output_size, self.padding, strict=True):
            pads.append((low, size + 2 * pad - low - (n - 1) * step - 1, step - 1))
        return pads


# Rearrangements of pixels and channels.


class PixelShuffle(Module):
    """Reshapes (N, C · r², H, W) to (N, C, H · r, W · r) (Shi et al. 2016).

    Each group of r² channels becomes r × r pixels of one channel.

    >>> vf.nn.PixelShuffle.init(2)(vf.numpy.arange(4.0).reshape(1, 4, 1, 1))
    Array([[[[0., 1.],
             [2., 3.]]]], dtype=float32)
    """

    upscale_factor: int = static()

    @classmethod
    def init(cls, upscale_factor: int) -> Self:
        """Create the layer; `ArgumentError` unless the factor is a positive integer."""
        return cls(_factor(cls.__name__, "upscale_factor", upscale_factor))

    def __call__(self, x: Any) -> Array:
        """Return the larger image.

        Raises `ShapeError` unless the channels are a multiple of the factor's square.
        """
        value, r = batched_input("PixelShuffle", x, (2,)), self.upscale_factor
        n, c, h, w = value.shape
        if c % (r * r):
            raise ShapeError(f"PixelShuffle: the channels (axis 1) must be a multiple of {r}², got shape {value.shape}")
        pixels = value.reshape(n, c // (r * r), r, r, h, w).transpose(0, 1, 4, 2, 5, 3)
        return pixels.reshape(n, c // (r * r), h * r, w * r)


class PixelUnshuffle(Module):
    """Reshapes (N, C, H · r, W · r) to (N, C · r², H, W): inverse of `PixelShuffle`.

    >>> vf.nn.PixelUnshuffle.init(2)(vf.numpy.ones((1, 3, 8, 8))).shape
    (1, 12, 4, 4)
    """

    downscale_factor: int = static()

    @classmethod
    def init(cls, downscale_factor: int) -> Self:
        """Create the layer; `ArgumentError` unless the factor is a positive integer."""
        return cls(_factor(cls.__name__, "downscale_factor", downscale_factor))

    def __call__(self, x: Any) -> Array:
        """Return the smaller image.

        Raises `ShapeError` unless height and width are multiples of the factor.
        """
        value, r = batched_input("PixelUnshuffle", x, (2,)), self.downscale_factor
        n, c, h, w = value.shape
        if h % r or w % r:
            raise ShapeError(f"PixelUnshuffle: height and width must be multiples of {r}, got shape {value.shape}")
        pixels = value.reshape(n, c, h // r, r, w // r, r).transpose(0, 1, 3, 5, 2, 4)
        return pixels.reshape(n, c * r * r, h // r, w // r)


def _factor(layer: str, name: str, value: Any) -> int:
    if not is_integer(value, 1):
        raise ArgumentError(f"{layer}: {name} is an integer of at least 1, got {value!r}")
    return value


class ChannelShuffle(Module):
    """Interleaves groups of channels, along axis 1 (Zhang et al. 2018).

    >>> vf.nn.ChannelShuffle.init(2)(vf.numpy.arange(4.0).reshape(1, 4, 1))[0, :, 0]
    Array([0., 2., 1., 3.], dtype=float32)
    """

    groups: int = static()

    @classmethod
    def init(cls, groups: int) -> Self:
        """Create the layer; `ArgumentError` unless the number is a positive integer."""
        return cls(_factor(cls.__name__, "groups", groups))

    def __call__(self, x: Any) -> Array:
        """Return the first channels of all groups, then the second ones, ….

        Raises `ShapeError` unless the channels are a multiple of the groups.
        """
        value = as_value(x)
        if value.ndim < 2 or value.shape[1] % self.groups:
            raise ShapeError(f"ChannelShuffle: the channels (axis 1) must be a multiple of {self.groups}, got shape {value.shape}")
        n, c, *rest = value.shape
        return value.reshape(n, self.groups, c // self.groups, *rest).swapaxes(1, 2).reshape(value.shape)


# Interpolation along the spatial axes: `Upsample` and `interpolate`.

#: How many spatial axes each mode is for; None: any.
_MODES = {"nearest": None, "nearest-exact": None, "linear": 1, "bilinear": 2, "trilinear": 3, "bicubic": 2, "area": None}
_INTERPOLATING = ("linear", "bilinear", "trilinear", "bicubic")


class _Grid(NamedTuple):
    """The `out` sample positions along an axis of `size`; scale None is out / size."""

    size: int
    out: int
    scale: float | None

    @property
    def repeats(self) -> int | None:
        """The number of repetitions of each element, or None if they differ."""
        times, rest = divmod(self.out, self.size)
        return times if rest == 0 and self.scale in (None, times) else None

    @property
    def step(self) -> float:
        """The distance of two samples."""
        return self.size / self.out if self.scale is None else 1 / self.scale

    def nearest(self, exact: bool) -> np.ndarray:
        """Return the index of the nearest element of each sample, or of its centre."""
        i = np.arange(self.out)
        if exact:
            positions = np.floor((i + 0.5) * self.step).astype(np.int64)
        else:
            positions = i * self.size // self.out if self.scale is None else np.floor(i / self.scale).astype(np.int64)
        return np.minimum(positions, self.size - 1)

    def _positions(self, align_corners: bool) -> np.ndarray:
        i = np.arange(self.out)
        return i * (self.size - 1) / max(self.out - 1, 1) if align_corners else (i + 0.5) * self.step - 0.5

    def taps(self, cubic: bool, align_corners: bool) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return the neighbours of each sample with their weights."""
        positions = self._positions(align_corners)
        if not cubic:
            positions = np.maximum(positions, 0)
        before = np.floor(positions).astype(np.int64)
        share = positions - before
        weights = cubic_weights(share) if cubic else [1 - share, share]
        first = before - 1 if cubic else before
        return [(np.clip(first + i, 0, self.size - 1), weight) for i, weight in enumerate(weights)]


class Upsample(Module):
    """Interpolates along the spatial axes, of which there are one to three.

    Inputs are (N, C, L), (N, C, H, W) or (N, C, D, H, W). Results are those of PyTorch, except where a scale factor
    leaves all sizes as they are: PyTorch copies the input then, this layer interpolates.

    >>> vf.nn.Upsample.init(scale_factor=2)(vf.numpy.array([[[1.0, 3.0]]]))
    Array([[[1., 1., 3., 3.]]], dtype=float32)
    >>> vf.nn.Upsample.init(size=(6, 9), mode="bilinear", align_corners=True)(vf.numpy.ones((2, 3, 4, 4))).shape
    (2, 3, 6, 9)
    """

    size: int | tuple[int, ...] | None = static(default=None)
    scale_factor: float | tuple[float, ...] | None = static(default=None)
    mode: str = static(default="nearest")
    align_corners: bool = static(default=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.size is None) == (self.scale_factor is None):
            raise ArgumentError(f"Upsample: give size or scale_factor, and not both, got {self.size!r} and {self.scale_factor!r}")
        check_option(self.mode, "Upsample: mode", _MODES)
        if self.align_corners and self.mode not in _INTERPOLATING:
            raise ArgumentError(f"Upsample: align_corners goes with the modes {_INTERPOLATING}, not with {self.mode!r}")
        sizes = self.size if isinstance(self.size, tuple) else (self.size,)
        if self.size is not None and not all(is_integer(n, 1) for n in sizes):
            raise ArgumentError(f"Upsample: size is an integer of at least 1, or one for each spatial axis, got {self.size!r}")
        factors = self.scale_factor if isinstance(self.scale_factor, tuple) else (self.scale_factor,)
        if self.scale_factor is not None and not all(isinstance(f, (int, float)) and 0 < f < np.inf for f in factors):
            raise ArgumentError(f"Upsample: scale_factor is a positive number, or one for each spatial axis, got {self.scale_factor!r}")

    @classmethod
    def init(
        cls,
        size: int | tuple[int, ...] | None = None,
        scale_factor: float | tuple[float, ...] | None = None,
        mode: str = "nearest",
        align_corners: bool = False,
    ) -> Self:
        """Create the layer.

        Args:
            size: of each spatial axis of the output, or of all.
            scale_factor: the factor of each spatial axis, or of all; output sizes are rounded down.
            mode: "nearest" repeats elements, "nearest-exact" those nearest to the centres of the output's; "linear", "bilinear" and
                "trilinear" interpolate over one, two and three axes, "bicubic" over two by cubic convolution; "area" takes means.
            align_corners: where elements are interpolated, whether the centres of the first and last elements of input and output
                coincide, instead of their outer edges.

        Raises `ArgumentError` for other arguments.
        """
        return cls(size, scale_factor, mode, align_corners)

    def __call__(self, x: Any) -> Array:
        """Return the interpolated elements; float16 and bfloat16 interpolate in float32.

        Raises `ShapeError` for an input of other axes than the mode's or without elements along one of them, `DTypeError` for
        integers in a linear mode.
        """
        rank = _MODES[self.mode]
        value = batched_input("Upsample", x, (1, 2, 3) if rank is None else (rank,))
        grids = self._grids(value.shape[2:])
        if self.mode in ("nearest", "nearest-exact"):
            for axis, grid in enumerate(grids, 2):
                index = grid.nearest(self.mode == "nearest-exact")
                value = vnp.take(value, index, axis) if grid.repeats is None else vnp.repeat(value, grid.repeats, axis)
            return value
        check_dtype("Upsample", value, dtypes.INEXACT)
        wide = value.astype(accumulator(value.dtype))
        for axis, grid in enumerate(grids, 2):
            wide = pool_means(wide, axis, grid.out) if self.mode == "area" else self._interpolated(wide, axis, grid)
        return wide.astype(value.dtype)

    def _interpolated(self, x: Array, axis: int, grid: _Grid) -> Array:
        """Return the weighted sum of each sample's neighbours along an axis."""
        total = None
        for index, weight in grid.taps(self.mode == "bicubic", self.align_corners):
            factors = weight.astype(dtypes.real_dtype(x.dtype)).reshape(-1, *[1] * (x.ndim - axis - 1))
            term = vnp.take(x, index, axis) * factors
            total = term if total is None else total + term
        return vnp.asarray(total)

    def _grids(self, shape: tuple[int, ...]) -> list[_Grid]:
        option: Any = self.size if self.scale_factor is None else self.scale_factor
        per_axis = option if isinstance(option, tuple) else (option,) * len(shape)
        if len(per_axis) != len(shape):
            raise ShapeError(f"Upsample: {option} for the spatial axes of sizes {shape}; it needs one number per axis")
        exact = self.scale_factor is None
        grids = [
            _Grid(n, option if exact else int(n * option), None if exact else option) for n, option in zip(shape, per_axis, strict=True)
        ]
        if any(grid.size == 0 or grid.out == 0 for grid in grids):
            raise ShapeError(f"Upsample: spatial axes of sizes {shape} cannot become {[grid.out for grid in grids]}; each needs elements")
        return grids


def interpolate(
    input: Any,
    size: int | tuple[int, ...] | None = None,
    scale_factor: float | tuple[float, ...] | None = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
) -> Array:
    """Apply `Upsample`, whose arguments it has.

    `recompute_scale_factor` says whether positions follow from the sizes, which are rounded, instead of from the factor.

    >>> nn.interpolate(jnp.array([[[1.0, 3.0]]]), scale_factor=2, mode="linear")
    Array([[[1. , 1.5, 2.5, 3. ]]], dtype=float32)
    """
    layer = Upsample(_tuple(size), _tuple(scale_factor), mode, bool(align_corners))
    if recompute_scale_factor and scale_factor is not None:
        value = batched_input("interpolate", input, (1, 2, 3))
        sizes = tuple([grid.out for grid in layer._grids(value.shape[2:])])
        layer = Upsample(sizes, None, mode, bool(align_corners))
    return layer(input)


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


# Images sampled at given positions: `grid_sample` and `affine_grid`.


_SAMPLING_MODES = ("bilinear", "nearest", "bicubic")
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
    if mode not in _SAMPLING_MODES or padding_mode not in _PADDING_MODES:
        raise ArgumentError(
            f"grid_sample: mode is one of {_SAMPLING_MODES} and padding_mode of {_PADDING_MODES}, got {mode!r} and {padding_mode!r}"
        )
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
    near, far = cubic_pieces(-0.75)
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
