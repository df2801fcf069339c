"""Interpolation along the spatial axes: `Upsample` and `interpolate`."""

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
from volta_fn.nn.pooling.adaptive import pool_means
from volta_fn.nn.sampling import cubic_weights

__all__ = ["Upsample", "interpolate"]


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
        given: Any = self.size if self.scale_factor is None else self.scale_factor
        per_axis = given if isinstance(given, tuple) else (given,) * len(shape)
        if len(per_axis) != len(shape):
            raise ShapeError(f"Upsample: {given} for the spatial axes of sizes {shape}; it needs one number per axis")
        exact = self.scale_factor is None
        grids = [_Grid(n, given if exact else int(n * given), None if exact else given) for n, given in zip(shape, per_axis, strict=True)]
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

    >>> nn.interpolate(vnp.array([[[1.0, 3.0]]]), scale_factor=2, mode="linear")
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
