"""Max pooling of windows at random distances (Graham 2014).

Of n elements, m windows of k elements each begin at floor((i + u) a) - floor(u a), with a = (n - k) / (m - 1) and a random u from 0 to 1;
the last one ends with the axis.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar, Self

import numpy as np

from volta_fn import numpy as vnp
from volta_fn import random
from volta_fn.core.array import Array, as_value
from volta_fn.core.trace import is_concrete
from volta_fn.dtypes import FLOATS, accumulator
from volta_fn.errors import ArgumentError, ArgumentTypeError, DTypeError, ShapeError
from volta_fn.nn.layers.common import batched_input, broadcasts_to, check_dtype, per_axis
from volta_fn.nn.module import Module, static
from volta_fn.nn.pooling.positions import at_positions, positions_of_maxima
from volta_fn.primitives.geometry import Ints

__all__ = ["FractionalMaxPool2d", "FractionalMaxPool3d"]


class _FractionalMaxPool(Module):
    kernel_size: Ints = static()  # these fields also accept the shorter forms of `init`
    output_size: Ints | None = static(default=None)
    output_ratio: tuple[float, ...] | None = static(default=None)
    return_indices: bool = static(default=False)

    _rank: ClassVar[int] = 0
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
        given: Any = self.output_ratio
        ratios = tuple(given) if isinstance(given, (tuple, list)) else (given,) * self._rank
        if len(ratios) != self._rank or not all(isinstance(ratio, float) and 0 < ratio < 1 for ratio in ratios):
            raise ArgumentError(
                f"{type(self).__name__}: output_ratio is a number between 0 and 1, or {self._rank} of these, one per axis, got {given!r}"
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
        """Return the number of windows along each axis."""
        counts = self.output_size
        if counts is None:
            counts = tuple([math.floor(size * ratio) for size, ratio in zip(sizes, self.output_ratio or (), strict=True)])
        if not all(1 <= count <= size - kernel + 1 for size, count, kernel in zip(sizes, counts, self.kernel_size, strict=True)):
            raise ShapeError(
                f"{type(self).__name__}: spatial axes {sizes} hold no {counts} windows of {self.kernel_size} elements at different places"
            )
        return counts

    def _samples(self, x: Array, key: Any, given: Any) -> Array:
        """Return the random numbers, of shape (N, C, spatial axes)."""
        name, shape, dtype = type(self).__name__, (*x.shape[:2], self._rank), accumulator(x.dtype)
        if (key is None) == (given is None):
            raise ArgumentTypeError(f"{name}: it draws random numbers: call layer(x, key=key), or layer(x, random_samples=numbers)")
        if given is None:
            return random.uniform(key, shape, dtype)
        samples = as_value(given)
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


class FractionalMaxPool2d(_FractionalMaxPool):
    """The maxima of windows of (N, C, H, W) at random distances.

    It is called ``layer(x, key=key)``.

    >>> nn.FractionalMaxPool2d.init(3, output_ratio=0.7)(jnp.ones((2, 3, 10, 20)), key=vf.random.key(0)).shape
    (2, 3, 7, 14)
    """

    _rank = 2
    _drawn = (1, 0)


class FractionalMaxPool3d(_FractionalMaxPool):
    """The maxima of windows of (N, C, D, H, W) at random distances.

    It is called ``layer(x, key=key)``.
    """

    _rank = 3
    _drawn = (0, 1, 2)
