"""Adaptive, global and fractional pooling, to a given output size."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np

from volta_fn import dtypes, random
from volta_fn import numpy as vnp
from volta_fn.core.arrays.array import Array, as_value
from volta_fn.core.trace import is_concrete
from volta_fn.dtypes import FLOATS, accumulator
from volta_fn.errors import ArgumentError, ArgumentTypeError, DTypeError, ShapeError
from volta_fn.nn.layers.arguments import SpatialLayer, batched_input, broadcasts_to, check_dtype, is_integer, per_axis
from volta_fn.nn.layers.pooling import at_positions, positions_of_maxima
from volta_fn.nn.module import Module, static
from volta_fn.primitives.convolution import Ints

__all__ = [
    "AdaptiveAvgPool1d", "AdaptiveAvgPool2d", "AdaptiveAvgPool3d", "AdaptiveMaxPool1d", "AdaptiveMaxPool2d", "AdaptiveMaxPool3d",
    "FractionalMaxPool2d", "FractionalMaxPool3d", "GlobalAvgPool", "GlobalMaxPool",
]  # fmt: skip


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
