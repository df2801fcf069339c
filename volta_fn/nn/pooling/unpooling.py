"""The partial inverse of max pooling: maxima where they were, and zeros."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar, Self

from volta_fn import numpy as vnp
from volta_fn.core.array import Array, as_value
from volta_fn.dtypes import INTEGERS
from volta_fn.errors import DTypeError, ShapeError
from volta_fn.nn.layers.common import batched_input, is_integer, per_axis
from volta_fn.nn.module import Module, static
from volta_fn.primitives.array_operations.index_checks import check_indices
from volta_fn.primitives.geometry import Ints

__all__ = ["MaxUnpool1d", "MaxUnpool2d", "MaxUnpool3d"]


class _MaxUnpool(Module):
    kernel_size: Ints = static()  # these fields also accept the shorter forms of `init`
    stride: Ints = static(default=None)
    padding: Ints = static(default=0)

    _rank: ClassVar[int] = 0

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

    def _output_sizes(self, sizes: Ints, given: Sequence[int] | None) -> Ints:
        """Return the spatial axes of the output."""
        default = [
            (size - 1) * stride + kernel - 2 * pad
            for size, kernel, stride, pad in zip(sizes, self.kernel_size, self.stride, self.padding, strict=True)
        ]
        wanted = default if given is None else list(given)[2:] if len(given) == self._rank + 2 else list(given)
        if len(wanted) != self._rank or not all(
            is_integer(size) and abs(size - usual) < stride for size, usual, stride in zip(wanted, default, self.stride, strict=True)
        ):
            raise ShapeError(
                f"{type(self).__name__}: output_size is {tuple(default)} or less than {self.stride} off along the axes, got {given}"
            )
        return tuple(wanted)


class MaxUnpool1d(_MaxUnpool):
    """Puts the maxima of `MaxPool1d` back where they were, among zeros.

    >>> maxima, indices = nn.MaxPool1d.init(2, return_indices=True)(jnp.array([[[1.0, 3.0, 2.0, 0.0]]]))
    >>> nn.MaxUnpool1d.init(2)(maxima, indices)
    Array([[[0., 3., 2., 0.]]], dtype=float32)
    """

    _rank = 1


class MaxUnpool2d(_MaxUnpool):
    """Puts the maxima of `MaxPool2d` back where they were, among zeros.

    >>> x = jnp.arange(15.0).reshape(1, 1, 3, 5)
    >>> maxima, indices = nn.MaxPool2d.init(2, return_indices=True)(x)
    >>> nn.MaxUnpool2d.init(2)(maxima, indices, output_size=x.shape)
    Array([[[[0., 0., 0., 0., 0.],
             [0., 6., 0., 8., 0.],
             [0., 0., 0., 0., 0.]]]], dtype=float32)
    """

    _rank = 2


class MaxUnpool3d(_MaxUnpool):
    """Puts the maxima of `MaxPool3d` back where they were, among zeros."""

    _rank = 3
