"""Pooling: the maxima or means of windows that slide over the spatial axes."""

from __future__ import annotations

from functools import reduce
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np

from volta_fn import dtypes, lax
from volta_fn.core.array import Array
from volta_fn.dtypes import accumulator
from volta_fn.errors import ArgumentError, ShapeError
from volta_fn.nn.layers.common import batched_input, canonical_pads, check_dtype, per_axis
from volta_fn.nn.module import Module, static
from volta_fn.nn.pooling.positions import positions_of_maxima
from volta_fn.primitives.geometry import Ints, Padding, dilated, padtype_to_pads
from volta_fn.primitives.reduction import lowest

__all__ = ["AvgPool1d", "AvgPool2d", "AvgPool3d", "MaxPool1d", "MaxPool2d", "MaxPool3d"]


class _Windows(NamedTuple):
    """The geometry of windows along one axis of `size` elements with padding.

    `number` windows of length `reach` (including holes) start every `stride` elements. In ceil mode the last window may extend `beyond` the
    padding.
    """

    number: int
    stride: int
    reach: int
    size: int
    low: int
    high: int

    @property
    def beyond(self) -> int:
        """How far the last window extends beyond the padded elements."""
        return max((self.number - 1) * self.stride + self.reach - (self.low + self.size + self.high), 0)

    def elements(self, with_padding: bool) -> np.ndarray:
        """Return the number of elements of each window, with or without padding."""
        first = np.arange(self.number) * self.stride - self.low
        last = first + self.reach
        if with_padding:
            return np.minimum(last, self.size + self.high) - first
        return np.minimum(last, self.size) - np.maximum(first, 0)

    def taps(self, dilation: int) -> np.ndarray:
        """Return the positions of each window's elements, of shape (number, taps).

        A tap in the padding repeats the window's first inside. Raises `ShapeError` if there is none.
        """
        taps = np.arange(self.number)[:, None] * self.stride - self.low + np.arange(0, self.reach, dilation)
        inside = (taps >= 0) & (taps < self.size)
        if not inside.any(1).all():
            raise ShapeError(f"return_indices: a window with dilation {dilation} has no element of an axis of {self.size}; pad less")
        return np.where(inside, taps, np.take_along_axis(taps, np.argmax(inside, 1)[:, None], 1))


class _Pool(Module):
    kernel_size: Ints = static()  # these fields also accept the shorter forms of `init`
    stride: Ints = static(default=None)
    padding: str | Padding = static(default=0)
    ceil_mode: bool = static(default=False)

    _rank: ClassVar[int] = 0

    def __post_init__(self) -> None:
        name, rank = type(self).__name__, self._rank
        kernel = per_axis(name, "kernel_size", self.kernel_size, rank)
        pads = canonical_pads(name, self.padding, rank)
        self.__dict__.update(
            kernel_size=kernel, stride=kernel if self.stride is None else per_axis(name, "stride", self.stride, rank), padding=pads
        )
        super().__post_init__()
        if not isinstance(pads, str) and any(2 * max(pair) > reach for pair, reach in zip(pads, self._reach(), strict=True)):
            raise ArgumentError(f"{name}: padding {pads} is more than half of what the windows reach over, {self._reach()}")

    def _reach(self) -> Ints:
        """Return the lengths of the windows, including holes."""
        return self.kernel_size

    def _windows(self, sizes: Ints) -> list[_Windows]:
        reaches = self._reach()
        pads = padtype_to_pads(sizes, reaches, self.stride, self.padding)
        windows = []
        for axis, (size, reach, stride, (low, high)) in enumerate(zip(sizes, reaches, self.stride, pads, strict=True)):
            room = low + size + high - reach
            count = (-(-room // stride) if self.ceil_mode else room // stride) + 1
            if self.ceil_mode and (count - 1) * stride >= size + low:  # a window must begin inside
                count -= 1
            if room < 0 or size == 0:
                raise ShapeError(
                    f"{type(self).__name__}: windows reach over {reach} elements of spatial axis {axis}, where the padded input has "
                    f"{low} + {size} + {high}"
                )
            windows.append(_Windows(count, stride, reach, size, low, high))
        return windows

    def _reduce(self, x: Array, windows: list[_Windows], initial: Any, combine: Any, dilation: Ints) -> Array:
        pads = ((0, 0), (0, 0), *[(w.low, w.high + w.beyond) for w in windows])
        return lax.reduce_window(x, initial, combine, (1, 1, *self.kernel_size), (1, 1, *self.stride), pads, None, (1, 1, *dilation))


class _MaxPool(_Pool):
    dilation: Ints = static(default=1)
    return_indices: bool = static(default=False)

    def __post_init__(self) -> None:
        self.__dict__["dilation"] = per_axis(type(self).__name__, "dilation", self.dilation, self._rank)
        super().__post_init__()

    @classmethod
    def init(
        cls,
        kernel_size: int | tuple[int, ...],
        *,
        stride: int | tuple[int, ...] | None = None,
        padding: int | str | tuple[Any, ...] = 0,
        dilation: int | tuple[int, ...] = 1,
        return_indices: bool = False,
        ceil_mode: bool = False,
    ) -> Self:
        """Create the layer.

        Args:
            kernel_size: the windows' number of elements along each spatial axis, or along all.
            stride: from one window to the next, likewise; None means the windows' size.
            padding: on both sides of each axis, at most half a window, as a number, a number per axis or a (low, high) pair per axis;
                "valid" is no padding, "same" makes the output's sizes ceil(size / stride). It is never a window's maximum.
            dilation: from one element of a window to the next.
            return_indices: whether to return the pair of the maxima and their positions, as `MaxUnpool2d` and the like need them.
            ceil_mode: whether a last window that begins inside the input may extend beyond its end.

        Raises `ArgumentError` for other arguments.
        """
        geometry: dict[str, Any] = {"stride": stride, "padding": padding, "dilation": dilation, "return_indices": return_indices}
        return cls(kernel_size, ceil_mode=ceil_mode, **geometry)  # type: ignore[arg-type]  # made a tuple there

    def __call__(self, x: Any) -> Any:
        """Return the maxima, of shape (N, C, *spatial), or a pair if `return_indices`.

        The pair ends with the first maxima's positions, of the same shape, counted row by row through the spatial axes.
        Gradients go there, too. Raises `ShapeError` for other axes than the layer's or windows larger than the input,
        `DTypeError` for complex numbers.
        """
        name = type(self).__name__
        value = batched_input(name, x, (self._rank,))
        check_dtype(name, value, dtypes.REALS | dtypes.BOOL)
        windows = self._windows(value.shape[2:])
        maxima = self._reduce(value, windows, lowest(value.dtype), lax.max, self.dilation)
        if not self.return_indices:
            return maxima
        return maxima, positions_of_maxima(value, [window.taps(step) for window, step in zip(windows, self.dilation, strict=True)])

    def _reach(self) -> Ints:
        return tuple(map(dilated, self.kernel_size, self.dilation))


class _AvgPool(_Pool):
    count_include_pad: bool = static(default=True)

    @classmethod
    def init(
        cls,
        kernel_size: int | tuple[int, ...],
        *,
        stride: int | tuple[int, ...] | None = None,
        padding: int | str | tuple[Any, ...] = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
    ) -> Self:
        """Create the layer.

        Args:
            kernel_size: the windows' number of elements along each spatial axis, or along all.
            stride: from one window to the next, likewise; None means the windows' size.
            padding: zeros on both sides of each axis, at most half a window, as a number, a number per axis or a (low, high) pair per
                axis; "valid" is no padding, "same" makes the output's sizes ceil(size / stride).
            ceil_mode: whether a last window that begins inside the input may extend beyond its end; elements beyond never count.
            count_include_pad: whether the padding counts in the means.

        Raises `ArgumentError` for other arguments.
        """
        geometry: dict[str, Any] = {"stride": stride, "padding": padding, "ceil_mode": ceil_mode}
        return cls(kernel_size, count_include_pad=count_include_pad, **geometry)  # type: ignore[arg-type]  # made a tuple there

    def __call__(self, x: Any) -> Array:
        """Return the means, of shape (N, C, *spatial); sums are in float32 at least.

        Raises `ShapeError` for other axes than the layer's or windows larger than the input, `DTypeError` for integers.
        """
        name = type(self).__name__
        value = batched_input(name, x, (self._rank,))
        check_dtype(name, value, dtypes.INEXACT)
        windows = self._windows(value.shape[2:])
        wide = value.astype(accumulator(value.dtype))
        total = self._reduce(wide, windows, np.zeros((), wide.dtype), lax.add, (1,) * self._rank)
        counts = reduce(np.multiply.outer, [window.elements(self.count_include_pad) for window in windows])
        return (total / counts.astype(dtypes.real_dtype(wide.dtype))).astype(value.dtype)


class MaxPool1d(_MaxPool):
    """The maxima of windows of (N, C, L).

    >>> vf.nn.MaxPool1d.init(2)(vf.numpy.array([[[1.0, 3.0, 2.0, 0.0]]]))
    Array([[[3., 2.]]], dtype=float32)
    """

    _rank = 1


class MaxPool2d(_MaxPool):
    """The maxima of windows of (N, C, H, W).

    >>> vf.nn.MaxPool2d.init(3, stride=2, padding=1)(vf.numpy.ones((2, 64, 112, 112))).shape
    (2, 64, 56, 56)
    """

    _rank = 2


class MaxPool3d(_MaxPool):
    """The maxima of windows of (N, C, D, H, W)."""

    _rank = 3


class AvgPool1d(_AvgPool):
    """The means of windows of (N, C, L).

    >>> vf.nn.AvgPool1d.init(2)(vf.numpy.array([[[1.0, 3.0, 2.0, 0.0]]]))
    Array([[[2., 1.]]], dtype=float32)
    """

    _rank = 1


class AvgPool2d(_AvgPool):
    """The means of windows of (N, C, H, W).

    >>> vf.nn.AvgPool2d.init((2, 4), padding="same")(vf.numpy.ones((2, 3, 7, 8))).shape
    (2, 3, 4, 2)
    """

    _rank = 2


class AvgPool3d(_AvgPool):
    """The means of windows of (N, C, D, H, W)."""

    _rank = 3
