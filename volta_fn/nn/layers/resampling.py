"""Resampling of images: pixel shuffling and interpolation."""

from __future__ import annotations

from typing import Any, NamedTuple, Self

import numpy as np

from volta_fn import dtypes
from volta_fn import numpy as vnp
from volta_fn.core.array import Array
from volta_fn.dtypes import accumulator
from volta_fn.errors import ArgumentError, ShapeError
from volta_fn.nn.layers.common import batched_input, check_dtype, is_integer
from volta_fn.nn.module import Module, static

__all__ = ["PixelShuffle", "PixelUnshuffle", "Upsample"]


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


#: How many spatial axes each mode is for; None: any.
_MODES = {"nearest": None, "linear": 1, "bilinear": 2, "trilinear": 3}


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

    def nearest(self) -> np.ndarray:
        """Return the index of the nearest element of each sample."""
        i = np.arange(self.out)
        positions = i * self.size // self.out if self.scale is None else np.floor(i / self.scale).astype(np.int64)
        return np.minimum(positions, self.size - 1)

    def linear(self, align_corners: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the two neighbours of each sample and the weight of the second."""
        i = np.arange(self.out)
        if align_corners:
            positions = i * (self.size - 1) / max(self.out - 1, 1)
        else:
            step = self.size / self.out if self.scale is None else 1 / self.scale
            positions = np.maximum((i + 0.5) * step - 0.5, 0)
        before = positions.astype(np.int64)
        return before, np.minimum(before + 1, self.size - 1), positions - before


class Upsample(Module):
    """Interpolates along the spatial axes, of which there are one to three.

    Inputs are (N, C, L), (N, C, H, W) or (N, C, D, H, W); results are those of PyTorch.

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
        if self.mode not in _MODES:
            raise ArgumentError(f"Upsample: mode is one of {list(_MODES)}, got {self.mode!r}")
        if self.align_corners and self.mode == "nearest":
            raise ArgumentError("Upsample: align_corners goes with the linear modes, not with 'nearest'")
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
            mode: "nearest" repeats elements; "linear", "bilinear" and "trilinear" interpolate over one, two and three axes.
            align_corners: in the linear modes, whether the centres of the first and last elements of input and output coincide, instead of
                their outer edges.

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
        if self.mode == "nearest":
            for axis, grid in enumerate(grids, 2):
                value = vnp.take(value, grid.nearest(), axis) if grid.repeats is None else vnp.repeat(value, grid.repeats, axis)
            return value
        check_dtype("Upsample", value, dtypes.INEXACT)
        wide = value.astype(accumulator(value.dtype))
        for axis, grid in enumerate(grids, 2):
            before, after, share = grid.linear(self.align_corners)
            share = share.astype(dtypes.real_dtype(wide.dtype)).reshape(-1, *[1] * (value.ndim - axis - 1))
            wide = vnp.take(wide, before, axis) * (1 - share) + vnp.take(wide, after, axis) * share
        return wide.astype(value.dtype)

    def _grids(self, shape: tuple[int, ...]) -> list[_Grid]:
        given: Any = self.size if self.scale_factor is None else self.scale_factor
        per_axis = given if isinstance(given, tuple) else (given,) * len(shape)
        if len(per_axis) != len(shape):
            raise ShapeError(f"Upsample: {given} for the spatial axes of sizes {shape}; it needs one number per axis")
        exact = self.scale_factor is None
        grids = [_Grid(n, given if exact else int(n * given), None if exact else given) for n, given in zip(shape, per_axis, strict=True)]
        if any(grid.size == 0 or grid.out == 0 for grid in grids):
            raise ShapeError(f"Upsample: spatial axes of sizes {shape} cannot become {[grid.out for grid in grids]}; each needs elements")
        return grids
