"""The randomised leaky ReLU."""

from __future__ import annotations

from typing import Any, Self

from volta_fn import numpy as vnp
from volta_fn import random
from volta_fn.core.array import Array, as_value
from volta_fn.errors import ArgumentError, ArgumentTypeError
from volta_fn.nn.layers.common import check_dtype
from volta_fn.nn.module import Module, static

__all__ = ["RReLU"]


class RReLU(Module):
    """Leaky ReLU whose slope is drawn for each negative element in training.

    Slopes are uniform between `lower` and `upper` (Xu et al. 2015). It is called ``layer(x, key=key, training=True)``; otherwise the slope
    is their mean, and the key may be None.

    Raises (when made):
        ArgumentError: `lower` is greater than `upper`.

    >>> layer = vf.nn.RReLU.init()
    >>> layer(vf.numpy.array([-6.0, 2.0]), key=vf.random.key(0), training=True)
    Array([-1.9345839,  2.       ], dtype=float32)
    >>> layer(vf.numpy.array([-6.0, 2.0]))
    Array([-1.375,  2.   ], dtype=float32)
    """

    lower: float = static(default=1 / 8)
    upper: float = static(default=1 / 3)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.lower <= self.upper:
            raise ArgumentError(f"RReLU: lower must be at most upper, got {self.lower} and {self.upper}")

    @classmethod
    def init(cls, lower: float = 1 / 8, upper: float = 1 / 3) -> Self:
        """Create the layer with slopes between two numbers."""
        return cls(lower, upper)

    def __call__(self, x: Any, *, key: Any = None, training: bool = False) -> Array:
        """Return the input, its negative elements times their slopes.

        Raises `ArgumentTypeError` in training without a key, `DTypeError` unless the input is of floating dtype.
        """
        value = as_value(x)
        check_dtype("RReLU", value)
        if training and key is None:
            raise ArgumentTypeError("RReLU: in training it draws random numbers: call layer(x, key=key, training=True)")
        slope = random.uniform(key, value.shape, value.dtype, self.lower, self.upper) if training else (self.lower + self.upper) / 2
        return vnp.where(value >= 0, value, value * slope)
