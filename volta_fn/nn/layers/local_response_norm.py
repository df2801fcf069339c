"""Local response normalisation over neighbouring channels."""

from __future__ import annotations

from typing import Any, Self

import numpy as np

from volta_fn import lax
from volta_fn import numpy as vnp
from volta_fn.core.array import Array, as_value
from volta_fn.dtypes import accumulator
from volta_fn.errors import ArgumentError, ShapeError
from volta_fn.nn.layers.common import check_dtype, is_integer
from volta_fn.nn.module import Module, static

__all__ = ["LocalResponseNorm"]


class LocalResponseNorm(Module):
    """Divides by (k + alpha · mean of squares of neighbouring channels)^beta.

    See Krizhevsky et al. (2012). Channels lie along axis 1.

    >>> vf.nn.LocalResponseNorm.init(3, alpha=1.0)(vf.numpy.ones((1, 3, 2))).round(3)
    Array([[[0.682, 0.682],
            [0.595, 0.595],
            [0.682, 0.682]]], dtype=float32)
    """

    size: int = static()
    alpha: float = static(default=1e-4)
    beta: float = static(default=0.75)
    k: float = static(default=1.0)

    @classmethod
    def init(cls, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> Self:
        """Create the layer over `size` channels; `ArgumentError` unless that is positive."""
        if not is_integer(size, 1):
            raise ArgumentError(f"LocalResponseNorm: size is an integer of at least 1, got {size!r}")
        return cls(size, alpha, beta, k)

    def __call__(self, x: Any) -> Array:
        """Return the normalised array; float16 and bfloat16 compute in float32.

        Raises `ShapeError` for an input without channels, `DTypeError` for one that is not of floats.
        """
        value = as_value(x)
        check_dtype("LocalResponseNorm", value)
        if value.ndim < 3:
            raise ShapeError(f"LocalResponseNorm: the input has axes (N, C, …, at least one more), got shape {value.shape}")
        wide = value.astype(accumulator(value.dtype))
        window = tuple([self.size if axis == 1 else 1 for axis in range(value.ndim)])
        pads = [(self.size // 2, (self.size - 1) // 2) if axis == 1 else (0, 0) for axis in range(value.ndim)]
        total = lax.reduce_window(vnp.square(wide), np.zeros((), wide.dtype), lax.add, window, (1,) * value.ndim, pads)
        return (wide / (self.k + self.alpha * total / self.size) ** self.beta).astype(value.dtype)
