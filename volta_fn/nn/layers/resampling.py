"""Rearrangements of pixels and channels."""

from __future__ import annotations

from typing import Any, Self

from volta_fn.core.array import Array, as_value
from volta_fn.errors import ArgumentError, ShapeError
from volta_fn.nn.layers.common import batched_input, is_integer
from volta_fn.nn.module import Module, static

__all__ = ["ChannelShuffle", "PixelShuffle", "PixelUnshuffle"]


class PixelShuffle(Module):
    """Reshapes (N, C · r², H, W) to (N, C, H · r, W · r) (Shi et al. 2016).

    Each group of r² channels becomes r × r pixels of one channel.

    >>> vf.nn.PixelShuffle.init(2)(vf.numpy.arange(4.0).reshape(1, 4, 1, 1))
    Array([[[[0., 1.],
             [2., 3.]]]], dtype=float32)
    """

    upscale_factor: int = static()

    @classmethod
    def init(cls, upscale_factor: int) -> Self:
        """Create the layer; `ArgumentError` unless the factor is a positive integer."""
        return cls(_factor(cls.__name__, "upscale_factor", upscale_factor))

    def __call__(self, x: Any) -> Array:
        """Return the larger image.

        Raises `ShapeError` unless the channels are a multiple of the factor's square.
        """
        value, r = batched_input("PixelShuffle", x, (2,)), self.upscale_factor
        n, c, h, w = value.shape
        if c % (r * r):
            raise ShapeError(f"PixelShuffle: the channels (axis 1) must be a multiple of {r}², got shape {value.shape}")
        pixels = value.reshape(n, c // (r * r), r, r, h, w).transpose(0, 1, 4, 2, 5, 3)
        return pixels.reshape(n, c // (r * r), h * r, w * r)


class PixelUnshuffle(Module):
    """Reshapes (N, C, H · r, W · r) to (N, C · r², H, W): inverse of `PixelShuffle`.

    >>> vf.nn.PixelUnshuffle.init(2)(vf.numpy.ones((1, 3, 8, 8))).shape
    (1, 12, 4, 4)
    """

    downscale_factor: int = static()

    @classmethod
    def init(cls, downscale_factor: int) -> Self:
        """Create the layer; `ArgumentError` unless the factor is a positive integer."""
        return cls(_factor(cls.__name__, "downscale_factor", downscale_factor))

    def __call__(self, x: Any) -> Array:
        """Return the smaller image.

        Raises `ShapeError` unless height and width are multiples of the factor.
        """
        value, r = batched_input("PixelUnshuffle", x, (2,)), self.downscale_factor
        n, c, h, w = value.shape
        if h % r or w % r:
            raise ShapeError(f"PixelUnshuffle: height and width must be multiples of {r}, got shape {value.shape}")
        pixels = value.reshape(n, c, h // r, r, w // r, r).transpose(0, 1, 3, 5, 2, 4)
        return pixels.reshape(n, c * r * r, h // r, w // r)


def _factor(layer: str, name: str, value: Any) -> int:
    if not is_integer(value, 1):
        raise ArgumentError(f"{layer}: {name} is an integer of at least 1, got {value!r}")
    return value


class ChannelShuffle(Module):
    """Interleaves groups of channels, along axis 1 (Zhang et al. 2018).

    >>> vf.nn.ChannelShuffle.init(2)(vf.numpy.arange(4.0).reshape(1, 4, 1))[0, :, 0]
    Array([0., 2., 1., 3.], dtype=float32)
    """

    groups: int = static()

    @classmethod
    def init(cls, groups: int) -> Self:
        """Create the layer; `ArgumentError` unless the number is a positive integer."""
        return cls(_factor(cls.__name__, "groups", groups))

    def __call__(self, x: Any) -> Array:
        """Return the first channels of all groups, then the second ones, ….

        Raises `ShapeError` unless the channels are a multiple of the groups.
        """
        value = as_value(x)
        if value.ndim < 2 or value.shape[1] % self.groups:
            raise ShapeError(f"ChannelShuffle: the channels (axis 1) must be a multiple of {self.groups}, got shape {value.shape}")
        n, c, *rest = value.shape
        return value.reshape(n, self.groups, c // self.groups, *rest).swapaxes(1, 2).reshape(value.shape)
