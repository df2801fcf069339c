"""Dropout of elements and of channels, and the randomised leaky ReLU."""

from __future__ import annotations

from typing import Any, ClassVar, Self

from volta_fn import dtypes, random
from volta_fn import numpy as vnp
from volta_fn.core.array import Array, as_value
from volta_fn.errors import ArgumentError, ArgumentTypeError
from volta_fn.nn.layers.arguments import batched_input, check_dtype
from volta_fn.nn.module import Module, static

__all__ = ["AlphaDropout", "Dropout", "Dropout1d", "Dropout2d", "Dropout3d", "FeatureAlphaDropout", "RReLU"]


# ------------------------------------------------------------------------------
# Dropout of elements and of channels.
# ------------------------------------------------------------------------------


class Dropout(Module):
    """Zeroes each element with probability `p` in training (Srivastava et al. 2014).

    The other elements are divided by 1 - p, which preserves means. It is called ``drop(x, key=key, training=True)``; otherwise it returns
    its input, and the key may be None.

    Raises (when made):
        ArgumentError: `p` is no number between 0 and 1.

    >>> drop = vf.nn.Dropout.init(0.5)
    >>> drop(vf.numpy.ones(6), key=vf.random.key(0), training=True)
    Array([0., 0., 2., 2., 0., 2.], dtype=float32)
    >>> drop(vf.numpy.ones(3))
    Array([1., 1., 1.], dtype=float32)
    """

    p: float = static(default=0.5)

    _spatial: ClassVar[tuple[int, ...] | None] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.p, bool) or not isinstance(self.p, (int, float)) or not 0 <= self.p <= 1:
            raise ArgumentError(f"{type(self).__name__}: p is a probability, a number from 0 to 1, got {self.p!r}")

    @classmethod
    def init(cls, p: float = 0.5) -> Self:
        """Create the layer that drops with probability `p`."""
        return cls(p)

    def __call__(self, x: Any, *, key: Any = None, training: bool = False) -> Array:
        """Return the input, in training with dropped elements.

        Raises `ArgumentTypeError` if there is something to draw but no key, `DTypeError` for an input of integers.
        """
        value = as_value(x) if self._spatial is None else batched_input(type(self).__name__, x, self._spatial)
        check_dtype(type(self).__name__, value, dtypes.INEXACT)
        if not training or self.p == 0:
            return value
        if self.p == 1:
            return vnp.zeros_like(value)
        if key is None:
            raise ArgumentTypeError(f"{type(self).__name__}: in training it draws random numbers: call layer(x, key=key, training=True)")
        return self._dropped(value, random.bernoulli(key, 1 - self.p, self._mask_shape(value.shape)))

    def _mask_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return shape if self._spatial is None else (*shape[:2], *[1] * (len(shape) - 2))

    def _dropped(self, x: Array, kept: Array) -> Array:
        return vnp.where(kept, x / (1 - self.p), 0)


class Dropout1d(Dropout):
    """Zeroes channels of (N, C, L) (Tompson et al. 2015).

    Neighbouring elements of a channel are too similar to be dropped one by one.

    >>> vf.nn.Dropout1d.init(0.5)(vf.numpy.ones((1, 3, 2)), key=vf.random.key(1), training=True)
    Array([[[2., 2.],
            [0., 0.],
            [2., 2.]]], dtype=float32)
    """

    _spatial = (1,)


class Dropout2d(Dropout):
    """Zeroes channels of (N, C, H, W)."""

    _spatial = (2,)


class Dropout3d(Dropout):
    """Zeroes channels of (N, C, D, H, W)."""

    _spatial = (3,)


#: What selu tends to for large negative inputs.
_SELU_FLOOR = -1.7580993408473766


class AlphaDropout(Dropout):
    """Replaces elements by selu's least value, and preserves mean and variance.

    For networks with `selu` (Klambauer et al. 2017). It is called as `Dropout` is.

    >>> drop = vf.nn.AlphaDropout.init(0.5)
    >>> drop(vf.numpy.zeros(4), key=vf.random.key(0), training=True).round(4)
    Array([-0.7792, -0.7792,  0.7792,  0.7792], dtype=float32)
    """

    def _dropped(self, x: Array, kept: Array) -> Array:
        scale = ((1 - self.p) * (1 + self.p * _SELU_FLOOR**2)) ** -0.5
        return scale * (vnp.where(kept, x, _SELU_FLOOR) - self.p * _SELU_FLOOR)


class FeatureAlphaDropout(AlphaDropout):
    """`AlphaDropout` of channels, of inputs (N, C, …)."""

    def _mask_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return (*shape[:2], *[1] * (len(shape) - 2))


# ------------------------------------------------------------------------------
# The randomised leaky ReLU.
# ------------------------------------------------------------------------------


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
