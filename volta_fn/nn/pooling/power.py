"""Pooling by p-norms of windows that slide over the spatial axes."""

from __future__ import annotations

import math
from typing import Any, ClassVar, Self

from volta_fn import numpy as vnp
from volta_fn.core.array import Array
from volta_fn.errors import ArgumentError
from volta_fn.nn.activations import relu
from volta_fn.nn.module import Module, static
from volta_fn.nn.pooling.sliding import AvgPool1d, AvgPool2d, AvgPool3d

__all__ = ["LPPool1d", "LPPool2d", "LPPool3d"]


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

        Raises `ShapeError` for other axes than the layer's or windows larger than the input, `DTypeError` for integers.
        """
        powers = self.mean(vnp.asarray(x) ** self.norm_type)
        return (relu(powers) * math.prod(self.mean.kernel_size)) ** (1 / self.norm_type)


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
