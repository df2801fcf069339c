"""Adaptive pooling, to a given output size, and global pooling.

Along an axis of n elements, window i of m extends from floor(i n / m) to ceil((i + 1) n / m). Windows of several axes are products of
windows of each, so the axes are pooled one after another, starting with the last.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np

from volta_fn import dtypes
from volta_fn import numpy as vnp
from volta_fn.core.array import Array, as_value
from volta_fn.dtypes import accumulator
from volta_fn.errors import ArgumentError, ShapeError
from volta_fn.nn.layers.common import batched_input, check_dtype, is_integer
from volta_fn.nn.module import Module, static
from volta_fn.nn.pooling.positions import positions_of_maxima

__all__ = ["AdaptiveAvgPool1d", "AdaptiveAvgPool2d", "AdaptiveAvgPool3d", "AdaptiveMaxPool1d", "AdaptiveMaxPool2d"]
__all__ += ["AdaptiveMaxPool3d", "GlobalAvgPool", "GlobalMaxPool"]


class _Reduction(NamedTuple):
    """A reduction of windows, and the dtypes that it takes.

    The arguments of `function` are an array, the axis, and a mask of the elements inside the window (None: all).
    """

    function: Callable[[Array, int, Any], Array]
    dtypes: frozenset[np.dtype]


def _mean(x: Array, axis: int, inside: Any) -> Array:
    return vnp.mean(x, axis, where=inside)


def _max(x: Array, axis: int, inside: Any) -> Array:
    """Return the maximum; its gradient goes to the first one.

    Elements that are not `inside` repeat one that is.
    """
    first = vnp.expand_dims(vnp.argmax(x, axis), axis)
    return vnp.squeeze(vnp.take_along_axis(x, first, axis), axis)


_MEAN = _Reduction(_mean, dtypes.INEXACT)
_MAX = _Reduction(_max, dtypes.REALS | dtypes.BOOL)


def _checked(layer: Module, x: Array, reduction: _Reduction) -> Array:
    """Return the input in the dtype to compute in, after a check."""
    if 0 in x.shape[2:]:
        raise ShapeError(f"{type(layer).__name__}: nothing to pool in spatial axes of size 0, got shape {x.shape}")
    check_dtype(type(layer).__name__, x, reduction.dtypes)
    return x.astype(accumulator(x.dtype))


def _pool_axis(x: Array, axis: int, size: int, reduction: _Reduction) -> Array:
    """Reduce `size` windows along `axis`."""
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


class _AdaptivePool(Module):
    output_size: tuple[int | None, ...] = static()  # also accepts the shorter forms of `init`

    _rank: ClassVar[int] = 0
    _reduction: ClassVar[_Reduction]

    def __post_init__(self) -> None:
        given: Any = self.output_size
        sizes = (given,) * self._rank if given is None or is_integer(given, 1) else given
        if not isinstance(sizes, (tuple, list)) or len(sizes) != self._rank or not all(n is None or is_integer(n, 1) for n in sizes):
            raise ArgumentError(
                f"{type(self).__name__}: output_size is an integer of at least 1 or None, or {self._rank} of these, one per axis, "
                f"got {given!r}"
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


class AdaptiveAvgPool1d(_AdaptivePool):
    """The means of a given number of windows of (N, C, L).

    >>> vf.nn.AdaptiveAvgPool1d.init(2)(vf.numpy.array([[[1.0, 2.0, 3.0]]]))
    Array([[[1.5, 2.5]]], dtype=float32)
    """

    _rank = 1
    _reduction = _MEAN


class AdaptiveAvgPool2d(_AdaptivePool):
    """The means of a given number of windows of (N, C, H, W).

    >>> vf.nn.AdaptiveAvgPool2d.init((6, None))(vf.numpy.ones((2, 3, 13, 9))).shape
    (2, 3, 6, 9)
    """

    _rank = 2
    _reduction = _MEAN


class AdaptiveAvgPool3d(_AdaptivePool):
    """The means of a given number of windows of (N, C, D, H, W)."""

    _rank = 3
    _reduction = _MEAN


class AdaptiveMaxPool1d(_AdaptiveMaxPool):
    """The maxima of a given number of windows of (N, C, L).

    >>> vf.nn.AdaptiveMaxPool1d.init(2)(vf.numpy.array([[[1.0, 2.0, 3.0]]]))
    Array([[[2., 3.]]], dtype=float32)
    """

    _rank = 1


class AdaptiveMaxPool2d(_AdaptiveMaxPool):
    """The maxima of a given number of windows of (N, C, H, W)."""

    _rank = 2


class AdaptiveMaxPool3d(_AdaptiveMaxPool):
    """The maxima of a given number of windows of (N, C, D, H, W)."""

    _rank = 3
