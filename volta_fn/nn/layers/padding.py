"""Padding of the spatial axes: with a constant, reflected, repeated and circular.

`padding` is one number for all sides, or two numbers for each axis in PyTorch's order, which begins with the last axis: (left, right, top,
bottom, front, back).
"""

from __future__ import annotations

from typing import Any, ClassVar, Self

from volta_fn import numpy as vnp
from volta_fn.core.array import Array
from volta_fn.errors import ArgumentError, ShapeError
from volta_fn.nn.layers.arguments import batched_input
from volta_fn.nn.module import Module, static
from volta_fn.primitives.convolution import Ints, Padding

__all__ = ["CircularPad1d", "CircularPad2d", "CircularPad3d", "ConstantPad1d", "ConstantPad2d", "ConstantPad3d", "ReflectionPad1d"]
__all__ += ["ReflectionPad2d", "ReflectionPad3d", "ReplicationPad1d", "ReplicationPad2d", "ReplicationPad3d", "ZeroPad1d", "ZeroPad2d"]
__all__ += ["ZeroPad3d"]


class _Pad(Module):
    padding: Ints = static()  # also accepts one integer

    _rank: ClassVar[int] = 0
    _mode: ClassVar[str] = "constant"

    def __post_init__(self) -> None:
        sides = 2 * self._rank
        given: Any = (self.padding,) * sides if _is_integer(self.padding) else self.padding
        if not isinstance(given, (tuple, list)) or len(given) != sides or not all(map(_is_integer, given)):
            raise ArgumentError(f"{type(self).__name__}: padding is an integer or {sides} of them, last axis first, got {self.padding!r}")
        self.__dict__["padding"] = tuple(given)
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


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


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


class ConstantPad1d(_ConstantPad):
    """Pads (N, C, L) with a constant.

    >>> vf.nn.ConstantPad1d.init((1, 2), 9.0)(vf.numpy.array([[[1.0, 2.0]]]))
    Array([[[9., 1., 2., 9., 9.]]], dtype=float32)
    """

    _rank = 1


class ConstantPad2d(_ConstantPad):
    """Pads (N, C, H, W) with a constant."""

    _rank = 2


class ConstantPad3d(_ConstantPad):
    """Pads (N, C, D, H, W) with a constant."""

    _rank = 3


class ZeroPad1d(_Pad):
    """Pads (N, C, L) with zeros.

    >>> vf.nn.ZeroPad1d.init((1, -1))(vf.numpy.array([[[1.0, 2.0]]]))
    Array([[[0., 1.]]], dtype=float32)
    """

    _rank = 1


class ZeroPad2d(_Pad):
    """Pads (N, C, H, W) with zeros.

    >>> vf.nn.ZeroPad2d.init((1, 1, 2, 0))(vf.numpy.ones((1, 3, 4, 5))).shape
    (1, 3, 6, 7)
    """

    _rank = 2


class ZeroPad3d(_Pad):
    """Pads (N, C, D, H, W) with zeros."""

    _rank = 3


class ReflectionPad1d(_ReflectionPad):
    """Pads (N, C, L) with its reflection, without the elements at the edges.

    >>> vf.nn.ReflectionPad1d.init(2)(vf.numpy.array([[[1.0, 2.0, 3.0]]]))
    Array([[[3., 2., 1., 2., 3., 2., 1.]]], dtype=float32)
    """

    _rank = 1


class ReflectionPad2d(_ReflectionPad):
    """Pads (N, C, H, W) with its reflection, without the elements at the edges."""

    _rank = 2


class ReflectionPad3d(_ReflectionPad):
    """Pads (N, C, D, H, W) with its reflection, without the elements at the edges."""

    _rank = 3


class ReplicationPad1d(_ReplicationPad):
    """Pads (N, C, L) with the elements at its edges.

    >>> vf.nn.ReplicationPad1d.init(2)(vf.numpy.array([[[1.0, 2.0]]]))
    Array([[[1., 1., 1., 2., 2., 2.]]], dtype=float32)
    """

    _rank = 1


class ReplicationPad2d(_ReplicationPad):
    """Pads (N, C, H, W) with the elements at its edges."""

    _rank = 2


class ReplicationPad3d(_ReplicationPad):
    """Pads (N, C, D, H, W) with the elements at its edges."""

    _rank = 3


class CircularPad1d(_CircularPad):
    """Pads (N, C, L) with elements of its other end.

    >>> vf.nn.CircularPad1d.init((1, 2))(vf.numpy.array([[[1.0, 2.0, 3.0]]]))
    Array([[[3., 1., 2., 3., 1., 2.]]], dtype=float32)
    """

    _rank = 1


class CircularPad2d(_CircularPad):
    """Pads (N, C, H, W) with elements of its other ends."""

    _rank = 2


class CircularPad3d(_CircularPad):
    """Pads (N, C, D, H, W) with elements of its other ends."""

    _rank = 3
