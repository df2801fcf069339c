"""Windows of images as columns, and sums of columns as images."""

from __future__ import annotations

import functools
import itertools
import math
from typing import Any, Self

from volta_fn import lax
from volta_fn import numpy as vnp
from volta_fn.core.array import Array, as_value
from volta_fn.errors import ShapeError
from volta_fn.nn.layers.common import batched_input, per_axis
from volta_fn.nn.module import Module, static
from volta_fn.primitives.geometry import Ints, dilated

__all__ = ["Fold", "Unfold"]


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
        """Return the offset of each element of a window."""
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
            wanted = f"(N, C · {len(offsets)}, {math.prod(counts)})"
            raise ShapeError(f"Fold: an image of {self.output_size} is made of columns of shape {wanted}, got {value.shape}")
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
