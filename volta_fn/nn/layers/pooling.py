"""Pooling: maxima, means and norms of windows over the spatial axes.

Windows have a size and a stride, or there is a given number of them: adaptive, global and fractional pooling.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np

from volta_fn import dtypes, lax, random
from volta_fn import numpy as vnp
from volta_fn.core.arrays.array import Array, as_value
from volta_fn.core.aval import broadcasts_to
from volta_fn.core.trace import is_concrete
from volta_fn.dtypes import FLOATS, INTEGERS, accumulator
from volta_fn.errors import ArgumentError, ArgumentTypeError, DTypeError, ShapeError
from volta_fn.nn.activations import relu
from volta_fn.nn.layers.arguments import SpatialLayer, batched_input, canonical_pads, check_dtype, is_integer, per_axis
from volta_fn.nn.module import Module, static
from volta_fn.primitives.array_operations.array_indexing import check_indices
from volta_fn.primitives.call import stop_gradient
from volta_fn.primitives.convolution import Ints, Padding, dilated, padtype_to_pads
from volta_fn.primitives.reduction import lowest

__all__ = [
    "AdaptiveAvgPool1d",
    "AdaptiveAvgPool2d",
    "AdaptiveAvgPool3d",
    "AdaptiveMaxPool1d",
    "AdaptiveMaxPool2d",
    "AdaptiveMaxPool3d",
    "AvgPool1d",
    "AvgPool2d",
    "AvgPool3d",
    "FractionalMaxPool2d",
    "FractionalMaxPool3d",
    "GlobalAvgPool",
    "GlobalMaxPool",
    "LPPool1d",
    "LPPool2d",
    "LPPool3d",
    "MaxPool1d",
    "MaxPool2d",
    "MaxPool3d",
    "MaxUnpool1d",
    "MaxUnpool2d",
    "MaxUnpool3d",
]

# Positions of the maxima of windows, counted row by row through the spatial axes.
#
# Max pooling may return them; unpooling puts the maxima back by them.


def positions_of_maxima(x: Array, taps: Sequence[Any]) -> Array:
    """Return the position of each window's first maximum in (N, C, *spatial).

    `taps` has for each spatial axis the positions of each window's elements: integers of shape (windows, taps), or (N, C, windows, taps)
    where they differ from channel to channel. A window's elements are in ascending order, and may repeat. The result has shape
    (N, C, *windows). Since windows are products of windows of each axis, the axes are searched one after another, starting with the last;
    so the first of equal elements wins, and NaN wins over all.
    """
    values = stop_gradient(x)
    positions = vnp.broadcast_to(vnp.arange(math.prod(x.shape[2:])).reshape(1, 1, *x.shape[2:]), x.shape)
    for axis in reversed(range(2, x.ndim)):
        candidates = _windows(values, taps[axis - 2], axis)
        first = vnp.expand_dims(vnp.argmax(candidates, axis + 1), axis + 1)
        values = _chosen(candidates, first, axis + 1)
        positions = _chosen(_windows(positions, taps[axis - 2], axis), first, axis + 1)
    return positions


def at_positions(x: Array, positions: Array) -> Array:
    """Return the elements of (N, C, *spatial) at `positions`, which have as many axes."""
    flat = x.reshape(*x.shape[:2], math.prod(x.shape[2:]))
    index = positions.reshape(*positions.shape[:2], math.prod(positions.shape[2:]))
    return vnp.take_along_axis(flat, index, 2).reshape(positions.shape)


def _windows(x: Array, taps: Any, axis: int) -> Array:
    """Return the elements of windows along `axis`, which becomes two: windows, taps."""
    if taps.ndim == 2:
        return vnp.take(x, np.asarray(taps), axis)
    index = taps.reshape(*taps.shape[:2], *[1] * (axis - 2), taps.shape[2] * taps.shape[3], *[1] * (x.ndim - axis - 1))
    elements = vnp.take_along_axis(x, index, axis)
    return elements.reshape(*x.shape[:axis], *taps.shape[2:], *x.shape[axis + 1 :])


def _chosen(candidates: Array, first: Array, axis: int) -> Array:
    return vnp.squeeze(vnp.take_along_axis(candidates, first, axis), axis)


# Pooling: the maxima or means of windows that slide over the spatial axes.


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


class _Pool(SpatialLayer):
    kernel_size: Ints = static()  # these fields also accept the shorter forms of `init`
    stride: Ints = static(default=None)
    padding: str | Padding = static(default=0)
    ceil_mode: bool = static(default=False)

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


class MaxPool1d(_MaxPool, rank=1):
    """The maxima of windows of (N, C, L).

    >>> vf.nn.MaxPool1d.init(2)(vf.numpy.array([[[1.0, 3.0, 2.0, 0.0]]]))
    Array([[[3., 2.]]], dtype=float32)
    """


class MaxPool2d(_MaxPool, rank=2):
    """The maxima of windows of (N, C, H, W).

    >>> vf.nn.MaxPool2d.init(3, stride=2, padding=1)(vf.numpy.ones((2, 64, 112, 112))).shape
    (2, 64, 56, 56)
    """


class MaxPool3d(_MaxPool, rank=3):
    """The maxima of windows of (N, C, D, H, W)."""


class AvgPool1d(_AvgPool, rank=1):
    """The means of windows of (N, C, L).

    >>> vf.nn.AvgPool1d.init(2)(vf.numpy.array([[[1.0, 3.0, 2.0, 0.0]]]))
    Array([[[2., 1.]]], dtype=float32)
    """


class AvgPool2d(_AvgPool, rank=2):
    """The means of windows of (N, C, H, W).

    >>> vf.nn.AvgPool2d.init((2, 4), padding="same")(vf.numpy.ones((2, 3, 7, 8))).shape
    (2, 3, 4, 2)
    """


class AvgPool3d(_AvgPool, rank=3):
    """The means of windows of (N, C, D, H, W)."""


# Pooling by p-norms of windows that slide over the spatial axes.


class _LPPool(Module):
    mean: AvgPool1d | AvgPool2d | AvgPool3d
    norm_type: float = static(default=2.0)

    _mean: ClassVar[Any] = None

    @classmethod
    def init(
        cls,
        norm_type: float,
        kernel_size: int | tuple[int, ...],
        stride: int | tuple[int, ...] | None = None,
        ceil_mode: bool = False,
    ) -> Self:
        """Create the layer.

        Args:
            norm_type: p, a positive number.
            kernel_size: the windows' number of elements along each spatial axis, or along all.
            stride: from one window to the next, likewise; None means the windows' size.
            ceil_mode: whether a last window that begins inside the input may extend beyond its end.

        Raises `ArgumentError` for other arguments.
        """
        if isinstance(norm_type, bool) or not isinstance(norm_type, (int, float)) or not norm_type > 0:
            raise ArgumentError(f"{cls.__name__}: norm_type is a positive number, got {norm_type!r}")
        return cls(cls._mean.init(kernel_size, stride=stride, ceil_mode=ceil_mode), float(norm_type))

    def __call__(self, x: Any) -> Array:
        """Return (Σ xᵖ)^(1/p) of each window, 0 where the sum is negative.

        Powers are in float32 at least. Raises `ShapeError` for other axes or windows larger than the input, `DTypeError` for integers.
        """
        value = as_value(x)
        check_dtype(type(self).__name__, value, dtypes.INEXACT)
        powers = self.mean(value.astype(accumulator(value.dtype)) ** self.norm_type)
        return ((relu(powers) * math.prod(self.mean.kernel_size)) ** (1 / self.norm_type)).astype(value.dtype)


class LPPool1d(_LPPool):
    """The p-norms of windows of (N, C, L).

    >>> vf.nn.LPPool1d.init(2, 2)(vf.numpy.array([[[3.0, 4.0, 5.0, 12.0]]]))
    Array([[[ 5., 13.]]], dtype=float32)
    """

    _mean = AvgPool1d


class LPPool2d(_LPPool):
    """The p-norms of windows of (N, C, H, W)."""

    _mean = AvgPool2d


class LPPool3d(_LPPool):
    """The p-norms of windows of (N, C, D, H, W)."""

    _mean = AvgPool3d


# The partial inverse of max pooling: maxima where they were, and zeros.


class _MaxUnpool(SpatialLayer):
    kernel_size: Ints = static()  # these fields also accept the shorter forms of `init`
    stride: Ints = static(default=None)
    padding: Ints = static(default=0)

    def __post_init__(self) -> None:
        name, rank = type(self).__name__, self._rank
        kernel = per_axis(name, "kernel_size", self.kernel_size, rank)
        stride = kernel if self.stride is None else per_axis(name, "stride", self.stride, rank)
        self.__dict__.update(kernel_size=kernel, stride=stride, padding=per_axis(name, "padding", self.padding, rank, 0))
        super().__post_init__()

    @classmethod
    def init(
        cls, kernel_size: int | tuple[int, ...], stride: int | tuple[int, ...] | None = None, padding: int | tuple[int, ...] = 0
    ) -> Self:
        """Create the layer with the arguments that the max pooling had.

        Args:
            kernel_size: the windows' number of elements along each spatial axis, or along all.
            stride: from one window to the next, likewise; None means the windows' size.
            padding: on both sides of each axis, likewise.

        Raises `ArgumentError` for other arguments.
        """
        return cls(kernel_size, stride, padding)  # type: ignore[arg-type]  # made tuples there

    def __call__(self, x: Any, indices: Any, output_size: Sequence[int] | None = None) -> Array:
        """Return zeros of shape (N, C, *output_size) with `x` at `indices`.

        Args:
            x: the maxima, of shape (N, C, *spatial).
            indices: their positions, of the same shape, which max pooling with ``return_indices=True`` returns. One outside the output
                raises; in a compiled program it is dropped, or with VOLTA_CHECK_INDICES=1 raises, too.
            output_size: the shape of the pooling's input, or its spatial axes alone, since inputs of several sizes have outputs of one;
                by default the least that the windows fill.

        Where an index occurs several times, one of the elements is kept.

        Raises:
            ShapeError: other axes than the layer's, indices of another shape, or an output size a stride or more off the default.
            DTypeError: indices that are not integers. OutOfBoundsError: a known index outside the output.
        """
        name = type(self).__name__
        value, index = batched_input(name, x, (self._rank,)), as_value(indices)
        if index.dtype not in INTEGERS:
            raise DTypeError(f"{name}: indices are integers, got {index.aval}")
        if index.shape != value.shape:
            raise ShapeError(f"{name}: each element needs an index, got shapes {value.shape} and {index.shape}")
        sizes = self._output_sizes(value.shape[2:], output_size)
        total, count = math.prod(sizes), math.prod(value.shape[2:])
        check_indices(index, 0, total, f"{name}: the index {{}} lies outside an output of spatial axes {sizes}; give output_size")
        flat = vnp.zeros((*value.shape[:2], total), value.dtype)
        elements, targets = value.reshape(*value.shape[:2], count), index.reshape(*value.shape[:2], count)
        return vnp.put_along_axis(flat, targets, elements, 2, inplace=False).reshape(*value.shape[:2], *sizes)

    def _output_sizes(self, sizes: Ints, output_size: Sequence[int] | None) -> Ints:
        default = [
            (size - 1) * stride + kernel - 2 * pad
            for size, kernel, stride, pad in zip(sizes, self.kernel_size, self.stride, self.padding, strict=True)
        ]
        spatial_sizes = (
            default if output_size is None else list(output_size)[2:] if len(output_size) == self._rank + 2 else list(output_size)
        )
        if len(spatial_sizes) != self._rank or not all(
            is_integer(size) and abs(size - usual) < stride for size, usual, stride in zip(spatial_sizes, default, self.stride, strict=True)
        ):
            raise ShapeError(
                f"{type(self).__name__}: output_size is {tuple(default)} or less than {self.stride} off along the axes, got {output_size}"
            )
        return tuple(spatial_sizes)


class MaxUnpool1d(_MaxUnpool, rank=1):
    """Puts the maxima of `MaxPool1d` back where they were, among zeros.

    >>> maxima, indices = nn.MaxPool1d.init(2, return_indices=True)(jnp.array([[[1.0, 3.0, 2.0, 0.0]]]))
    >>> nn.MaxUnpool1d.init(2)(maxima, indices)
    Array([[[0., 3., 2., 0.]]], dtype=float32)
    """


class MaxUnpool2d(_MaxUnpool, rank=2):
    """Puts the maxima of `MaxPool2d` back where they were, among zeros.

    >>> x = jnp.arange(15.0).reshape(1, 1, 3, 5)
    >>> maxima, indices = nn.MaxPool2d.init(2, return_indices=True)(x)
    >>> nn.MaxUnpool2d.init(2)(maxima, indices, output_size=x.shape)
    Array([[[[0., 0., 0., 0., 0.],
             [0., 6., 0., 8., 0.],
             [0., 0., 0., 0., 0.]]]], dtype=float32)
    """


class MaxUnpool3d(_MaxUnpool, rank=3):
    """Puts the maxima of `MaxPool3d` back where they were, among zeros."""


# Adaptive pooling, to a given output size, and global pooling.
#
# Along an axis of n elements, window i of m extends from floor(i n / m) to ceil((i + 1) n / m). Windows of several axes are products of
# windows of each, so the axes are pooled one after another, starting with the last.


class _Reduction(NamedTuple):
    """A reduction of windows, and the dtypes that it takes.

    The arguments of `function` are an array, the axis, and a mask of the elements inside the window (None: all).
    """

    function: Callable[[Array, int, Any], Array]
    dtypes: frozenset[np.dtype]


def _max(x: Array, axis: int, inside: Any) -> Array:
    """Return the maximum; its gradient goes to the first one.

    Elements that are not `inside` repeat one that is.
    """
    first = vnp.expand_dims(vnp.argmax(x, axis), axis)
    return vnp.squeeze(vnp.take_along_axis(x, first, axis), axis)


_MEAN = _Reduction(lambda x, axis, inside: vnp.mean(x, axis, where=inside), dtypes.INEXACT)
_MAX = _Reduction(_max, dtypes.REALS | dtypes.BOOL)


def _checked(layer: Module, x: Array, reduction: _Reduction) -> Array:
    """Return the input in the dtype to compute in, after a check."""
    if 0 in x.shape[2:]:
        raise ShapeError(f"{type(layer).__name__}: nothing to pool in spatial axes of size 0, got shape {x.shape}")
    check_dtype(type(layer).__name__, x, reduction.dtypes)
    return x.astype(accumulator(x.dtype))


def _pool_axis(x: Array, axis: int, size: int, reduction: _Reduction) -> Array:
    length = x.shape[axis]
    if length % size == 0:
        return reduction.function(x.reshape(*x.shape[:axis], size, length // size, *x.shape[axis + 1 :]), axis + 1, None)
    taps, inside = _taps(length, size)
    return reduction.function(vnp.take(x, taps, axis), axis + 1, inside.reshape(*inside.shape, *[1] * (x.ndim - axis - 1)))


def _taps(length: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the positions of each window's elements, and which are inside.

    Both have shape (size, taps); a tap past the window's end repeats its last element.
    """
    first = np.arange(size) * length // size
    last = -(-(np.arange(size) + 1) * length // size)
    taps = first[:, None] + np.arange(np.max(last - first))
    return np.minimum(taps, last[:, None] - 1), taps < last[:, None]


def pool_means(x: Array, axis: int, size: int) -> Array:
    """Return the means of `size` windows along `axis`."""
    return _pool_axis(x, axis, size, _MEAN)


class _AdaptivePool(SpatialLayer):
    output_size: tuple[int | None, ...] = static()  # also accepts the shorter forms of `init`

    _reduction: ClassVar[_Reduction]

    def __post_init__(self) -> None:
        option: Any = self.output_size
        sizes = (option,) * self._rank if option is None or is_integer(option, 1) else option
        if not isinstance(sizes, (tuple, list)) or len(sizes) != self._rank or not all(n is None or is_integer(n, 1) for n in sizes):
            raise ArgumentError(
                f"{type(self).__name__}: output_size is an integer of at least 1 or None, or {self._rank} of these, one per axis, "
                f"got {option!r}"
            )
        self.__dict__["output_size"] = tuple(sizes)
        super().__post_init__()

    @classmethod
    def init(cls, output_size: int | tuple[int | None, ...] | None) -> Self:
        """Create the layer with that output size per axis, or of all; None is the input's."""
        return cls(output_size)  # type: ignore[arg-type]  # made a tuple there

    def __call__(self, x: Any) -> Array:
        """Return the pooled windows, of shape (N, C, *output_size).

        Raises `ShapeError` for a wrong number of axes, or empty ones.
        """
        value = batched_input(type(self).__name__, x, (self._rank,))
        wide = _checked(self, value, self._reduction)
        for axis, size in reversed(list(enumerate(self.output_size, 2))):
            wide = wide if size is None else _pool_axis(wide, axis, size, self._reduction)
        return wide.astype(value.dtype)


class _AdaptiveMaxPool(_AdaptivePool):
    return_indices: bool = static(default=False)

    _reduction = _MAX

    @classmethod
    def init(cls, output_size: int | tuple[int | None, ...] | None, return_indices: bool = False) -> Self:
        """Create the layer with that output size per axis, or of all; None is the input's.

        With `return_indices` it returns the pair of the maxima and their positions.
        """
        return cls(output_size, return_indices)  # type: ignore[arg-type]  # made a tuple there

    def __call__(self, x: Any) -> Any:
        """Return the maxima, of shape (N, C, *output_size), or a pair if `return_indices`.

        The pair ends with the first maxima's positions, of the same shape, counted row by row through the spatial axes.
        Raises `ShapeError` for a wrong number of axes, or empty ones.
        """
        maxima = super().__call__(x)
        if not self.return_indices:
            return maxima
        value = as_value(x)
        sizes = zip(value.shape[2:], self.output_size, strict=True)
        return maxima, positions_of_maxima(value, [_taps(length, length if size is None else size)[0] for length, size in sizes])


class _GlobalPool(Module):
    keepdims: bool = static(default=False)

    _reduction: ClassVar[_Reduction]

    @classmethod
    def init(cls, *, keepdims: bool = False) -> Self:
        """Create the layer; with `keepdims` the spatial axes remain, with size 1."""
        return cls(keepdims)

    def __call__(self, x: Any) -> Array:
        """Return the pooled elements, of shape (N, C), or (N, C, 1, …) with keepdims.

        Raises `ShapeError` if there is nothing to pool.
        """
        value = as_value(x)
        if value.ndim < 3:
            raise ShapeError(f"{type(self).__name__}: the input has axes (N, C, *spatial), got shape {value.shape}")
        wide = _checked(self, value, self._reduction).reshape(*value.shape[:2], math.prod(value.shape[2:]))
        pooled = self._reduction.function(wide, 2, None).astype(value.dtype)
        return pooled.reshape(*pooled.shape, *[1] * (value.ndim - 2)) if self.keepdims else pooled


class GlobalAvgPool(_GlobalPool):
    """The mean of each channel of (N, C, *spatial).

    >>> vf.nn.GlobalAvgPool.init()(vf.numpy.ones((2, 512, 7, 7))).shape
    (2, 512)
    """

    _reduction = _MEAN


class GlobalMaxPool(_GlobalPool):
    """The maximum of each channel of (N, C, *spatial).

    >>> vf.nn.GlobalMaxPool.init(keepdims=True)(vf.numpy.ones((2, 8, 5))).shape
    (2, 8, 1)
    """

    _reduction = _MAX


class AdaptiveAvgPool1d(_AdaptivePool, rank=1):
    """The means of a given number of windows of (N, C, L).

    >>> vf.nn.AdaptiveAvgPool1d.init(2)(vf.numpy.array([[[1.0, 2.0, 3.0]]]))
    Array([[[1.5, 2.5]]], dtype=float32)
    """

    _reduction = _MEAN


class AdaptiveAvgPool2d(_AdaptivePool, rank=2):
    """The means of a given number of windows of (N, C, H, W).

    >>> vf.nn.AdaptiveAvgPool2d.init((6, None))(vf.numpy.ones((2, 3, 13, 9))).shape
    (2, 3, 6, 9)
    """

    _reduction = _MEAN


class AdaptiveAvgPool3d(_AdaptivePool, rank=3):
    """The means of a given number of windows of (N, C, D, H, W)."""

    _reduction = _MEAN


class AdaptiveMaxPool1d(_AdaptiveMaxPool, rank=1):
    """The maxima of a given number of windows of (N, C, L).

    >>> vf.nn.AdaptiveMaxPool1d.init(2)(vf.numpy.array([[[1.0, 2.0, 3.0]]]))
    Array([[[2., 3.]]], dtype=float32)
    """


class AdaptiveMaxPool2d(_AdaptiveMaxPool, rank=2):
    """The maxima of a given number of windows of (N, C, H, W)."""


class AdaptiveMaxPool3d(_AdaptiveMaxPool, rank=3):
    """The maxima of a given number of windows of (N, C, D, H, W)."""


# Max pooling of windows at random distances (Graham 2014).
#
# Of n elements, m windows of k elements each begin at floor((i + u) a) - floor(u a), with a = (n - k) / (m - 1) and a random u from 0
# to 1; the last one ends with the axis.


class _FractionalMaxPool(SpatialLayer):
    kernel_size: Ints = static()  # these fields also accept the shorter forms of `init`
    output_size: Ints | None = static(default=None)
    output_ratio: tuple[float, ...] | None = static(default=None)
    return_indices: bool = static(default=False)

    _drawn: ClassVar[tuple[int, ...]] = ()  # the spatial axes, in the order of their random numbers

    def __post_init__(self) -> None:
        name, rank = type(self).__name__, self._rank
        if (self.output_size is None) == (self.output_ratio is None):
            raise ArgumentError(f"{name}: give either output_size or output_ratio")
        self.__dict__["kernel_size"] = per_axis(name, "kernel_size", self.kernel_size, rank)
        if self.output_size is not None:
            self.__dict__["output_size"] = per_axis(name, "output_size", self.output_size, rank)
        else:
            self.__dict__["output_ratio"] = self._ratios()
        super().__post_init__()

    def _ratios(self) -> tuple[float, ...]:
        option: Any = self.output_ratio
        ratios = tuple(option) if isinstance(option, (tuple, list)) else (option,) * self._rank
        if len(ratios) != self._rank or not all(isinstance(ratio, float) and 0 < ratio < 1 for ratio in ratios):
            raise ArgumentError(
                f"{type(self).__name__}: output_ratio is a number between 0 and 1, or {self._rank} of these, one per axis, got {option!r}"
            )
        return ratios

    @classmethod
    def init(
        cls,
        kernel_size: int | tuple[int, ...],
        output_size: int | tuple[int, ...] | None = None,
        output_ratio: float | tuple[float, ...] | None = None,
        return_indices: bool = False,
    ) -> Self:
        """Create the layer.

        Args:
            kernel_size: the windows' number of elements along each spatial axis, or along all.
            output_size: the number of windows, likewise.
            output_ratio: the number of windows as a fraction of the input's size, between 0 and 1, likewise; give this or `output_size`.
            return_indices: whether to return the pair of the maxima and their positions.

        Raises `ArgumentError` for other arguments.
        """
        return cls(kernel_size, output_size, output_ratio, return_indices)  # type: ignore[arg-type]  # made tuples there

    def __call__(self, x: Any, *, key: Any = None, random_samples: Any = None) -> Any:
        """Return the maxima, of shape (N, C, *output_size), or a pair if `return_indices`.

        The pair ends with the first maxima's positions, of the same shape, counted row by row through the spatial axes.
        Gradients go there, too.

        Args:
            x: an array of shape (N, C, *spatial).
            key: to draw where windows begin, anew for each channel.
            random_samples: numbers from 0 to 1 in place of those drawn, which broadcast to PyTorch's shape: (N, C, 2), first for the width
                and then for the height, or (N, C, 3) for depth, height and width.

        Raises:
            ShapeError: other axes than the layer's, too many windows for the input, or `random_samples` of another shape.
            DTypeError: other numbers than floats. ArgumentError: samples outside 0 to 1.
            ArgumentTypeError: neither a key nor samples, or both.
        """
        name = type(self).__name__
        value = batched_input(name, x, (self._rank,))
        check_dtype(name, value)
        counts = self._counts(value.shape[2:])
        samples = self._samples(value, key, random_samples)
        taps = [self._taps(samples[..., self._drawn.index(axis)], axis, count, value.shape[axis + 2]) for axis, count in enumerate(counts)]
        positions = positions_of_maxima(value, taps)
        maxima = at_positions(value, positions)
        return (maxima, positions) if self.return_indices else maxima

    def _counts(self, sizes: Ints) -> Ints:
        counts = self.output_size
        if counts is None:
            counts = tuple([math.floor(size * ratio) for size, ratio in zip(sizes, self.output_ratio or (), strict=True)])
        if not all(1 <= count <= size - kernel + 1 for size, count, kernel in zip(sizes, counts, self.kernel_size, strict=True)):
            raise ShapeError(
                f"{type(self).__name__}: spatial axes {sizes} hold no {counts} windows of {self.kernel_size} elements at different places"
            )
        return counts

    def _samples(self, x: Array, key: Any, random_samples: Any) -> Array:
        """Return the random numbers, of shape (N, C, spatial axes)."""
        name, shape, dtype = type(self).__name__, (*x.shape[:2], self._rank), accumulator(x.dtype)
        if (key is None) == (random_samples is None):
            raise ArgumentTypeError(f"{name}: it draws random numbers: call layer(x, key=key), or layer(x, random_samples=numbers)")
        if random_samples is None:
            return random.uniform(key, shape, dtype)
        samples = as_value(random_samples)
        if samples.dtype not in FLOATS:
            raise DTypeError(f"{name}: random_samples are floats, got {samples.aval}")
        if not broadcasts_to(samples.shape, shape):
            raise ShapeError(f"{name}: random_samples of shape {samples.shape} do not broadcast to {shape}")
        if is_concrete(samples) and not ((np.asarray(samples) >= 0) & (np.asarray(samples) < 1)).all():
            raise ArgumentError(f"{name}: random_samples are at least 0 and less than 1")
        return vnp.broadcast_to(samples.astype(dtype), shape)

    def _taps(self, samples: Array, axis: int, count: int, size: int) -> Array:
        """Return the positions of each window's elements along an axis.

        Their shape is (N, C, windows, taps).
        """
        kernel = self.kernel_size[axis]
        step = (size - kernel) / max(count - 1, 1)
        moved = (vnp.arange(count - 1, dtype=samples.dtype) + samples[..., None]) * step
        starts = vnp.floor(moved).astype("int32") - vnp.floor(samples[..., None] * step).astype("int32")
        last = vnp.full((*samples.shape, 1), size - kernel, "int32")
        return vnp.concatenate([starts, last], -1)[..., None] + vnp.arange(kernel, dtype="int32")


class FractionalMaxPool2d(_FractionalMaxPool, rank=2):
    """The maxima of windows of (N, C, H, W) at random distances.

    It is called ``layer(x, key=key)``.

    >>> nn.FractionalMaxPool2d.init(3, output_ratio=0.7)(jnp.ones((2, 3, 10, 20)), key=vf.random.key(0)).shape
    (2, 3, 7, 14)
    """

    _drawn = (1, 0)


class FractionalMaxPool3d(_FractionalMaxPool, rank=3):
    """The maxima of windows of (N, C, D, H, W) at random distances.

    It is called ``layer(x, key=key)``.
    """

    _drawn = (0, 1, 2)
