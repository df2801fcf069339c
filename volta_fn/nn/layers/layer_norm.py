"""Layer, RMS, group and instance norms, which compute in float32 at least."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Self

from volta_fn import lax
from volta_fn import numpy as vnp
from volta_fn.core.array import Array, as_value
from volta_fn.dtypes import accumulator, finfo
from volta_fn.errors import ArgumentError, ShapeError
from volta_fn.nn.functional import standardize
from volta_fn.nn.layers.common import batched_input, check_dtype, check_features, check_sizes, is_integer
from volta_fn.nn.module import Module, static
from volta_fn.primitives.geometry import Ints

__all__ = ["GroupNorm", "InstanceNorm1d", "InstanceNorm2d", "InstanceNorm3d", "LayerNorm", "RMSNorm"]


class _Norm(Module):
    """Base of norms with learnt scales `weight` and offsets `bias`, or None."""

    weight: Array | None
    bias: Array | None

    def _scaled(self, x: Array, shape: Ints, dtype: Any) -> Array:
        """Scale and shift normalised numbers by the parameters in that shape."""
        if self.weight is not None:
            x = x * self.weight.reshape(shape)
        if self.bias is not None:
            x = x + self.bias.reshape(shape)
        return x.astype(dtype)


def _parameters(shape: Ints, affine: bool, bias: bool, dtype: Any) -> tuple[Array | None, Array | None]:
    """Return scales of 1 and offsets of 0, or None."""
    return vnp.ones(shape, dtype) if affine else None, vnp.zeros(shape, dtype) if affine and bias else None


def _wide(layer: Module, x: Array) -> Array:
    """Return the input in the dtype to compute in."""
    check_dtype(type(layer).__name__, x)
    return x.astype(accumulator(x.dtype))


def _normalized_shape(layer: str, shape: Any) -> Ints:
    sizes = (shape,) if is_integer(shape, 1) else shape
    if not isinstance(sizes, Sequence) or not sizes or not all(is_integer(size, 1) for size in sizes):
        raise ArgumentError(f"{layer}: normalized_shape is the size of the last axis or sizes of the last axes, at least 1, got {shape!r}")
    return tuple(sizes)


def _last_axes(layer: Module, x: Any, shape: Ints) -> tuple[Array, Ints]:
    """Return the input and the axes to normalise; `ShapeError` if their sizes differ."""
    value = as_value(x)
    if value.shape[-len(shape) :] != shape:
        raise ShapeError(f"{type(layer).__name__}: the last axes of the input have sizes {shape}, got shape {value.shape}")
    return value, tuple(range(value.ndim - len(shape), value.ndim))


class LayerNorm(_Norm):
    """Subtracts the mean of the last axes and divides by their standard deviation.

    See Ba et al. (2016). `weight` and `bias` have shape `normalized_shape` or are None.

    >>> norm = vf.nn.LayerNorm.init(3)
    >>> norm(vf.numpy.array([[1.0, 2.0, 3.0]])).round(3)
    Array([[-1.225,  0.   ,  1.225]], dtype=float32)
    """

    normalized_shape: Ints = static()
    eps: float = static(default=1e-5)

    @classmethod
    def init(
        cls, normalized_shape: int | Sequence[int], *, eps: float = 1e-5, affine: bool = True, bias: bool = True, dtype: Any = "float32"
    ) -> Self:
        """Create the layer: scales 1 if `affine`, offsets 0 if also `bias`.

        `eps` is added to the variance. Raises `ArgumentError` unless `normalized_shape` is a size or sizes of axes.
        """
        shape = _normalized_shape(cls.__name__, normalized_shape)
        return cls(*_parameters(shape, affine, bias, dtype), shape, eps)

    def __call__(self, x: Any) -> Array:
        """Return the normalised numbers.

        Raises `ShapeError` for other last axes than the layer's, `DTypeError` unless they are floats.
        """
        value, axes = _last_axes(self, x, self.normalized_shape)
        return self._scaled(standardize(_wide(self, value), axes, epsilon=self.eps), self.normalized_shape, value.dtype)


class RMSNorm(Module):
    """Divides by the root mean square of the last axes (Zhang & Sennrich 2019).

    `weight` has shape `normalized_shape` or is None.

    >>> norm = vf.nn.RMSNorm.init(2)
    >>> norm(vf.numpy.array([[3.0, 4.0]])).round(3)
    Array([[0.849, 1.131]], dtype=float32)
    """

    weight: Array | None
    normalized_shape: Ints = static()
    eps: float | None = static(default=None)

    @classmethod
    def init(cls, normalized_shape: int | Sequence[int], *, eps: float | None = None, affine: bool = True, dtype: Any = "float32") -> Self:
        """Create the layer: scales 1 if `affine`, else none.

        `eps` is added to the mean square; None means the distance from 1 to the next float. Raises `ArgumentError` unless
        `normalized_shape` is a size or sizes of axes.
        """
        shape = _normalized_shape(cls.__name__, normalized_shape)
        return cls(_parameters(shape, affine, False, dtype)[0], shape, eps)

    def __call__(self, x: Any) -> Array:
        """Return the normalised numbers.

        Raises `ShapeError` for other last axes than the layer's, `DTypeError` unless they are floats.
        """
        value, axes = _last_axes(self, x, self.normalized_shape)
        wide = _wide(self, value)
        eps = float(finfo(wide.dtype).eps) if self.eps is None else self.eps
        out = wide * lax.rsqrt(vnp.mean(lax.square(wide), axes, keepdims=True) + eps)
        return (out if self.weight is None else out * self.weight).astype(value.dtype)


class GroupNorm(_Norm):
    """Normalises each group of channels of (N, C, *spatial) (Wu & He 2018).

    `weight` and `bias` have shape (num_channels,) or are None. With one group this is a layer norm of each example, with as many groups as
    channels an instance norm.

    >>> vf.nn.GroupNorm.init(2, 6)(vf.numpy.ones((5, 6, 4, 4))).shape
    (5, 6, 4, 4)
    """

    num_groups: int = static()
    num_channels: int = static()
    eps: float = static(default=1e-5)

    @classmethod
    def init(cls, num_groups: int, num_channels: int, *, eps: float = 1e-5, affine: bool = True, dtype: Any = "float32") -> Self:
        """Create the layer: scales 1 and offsets 0 if `affine`, else none.

        `eps` is added to the variance. Raises `ArgumentError` unless `num_channels` is a multiple of `num_groups`.
        """
        check_sizes(cls.__name__, num_groups=num_groups, num_channels=num_channels)
        if num_groups == 0 or num_channels % num_groups:
            raise ArgumentError(f"{cls.__name__}: num_channels={num_channels} is no multiple of num_groups={num_groups}")
        return cls(*_parameters((num_channels,), affine, True, dtype), num_groups, num_channels, eps)

    def __call__(self, x: Any) -> Array:
        """Return the normalised numbers.

        Raises `ShapeError` for other channels than the layer's, `DTypeError` unless they are floats.
        """
        value = as_value(x)
        check_features(type(self).__name__, value, self.num_channels, axis=1)
        grouped = _wide(self, value).reshape(value.shape[0], self.num_groups, self.num_channels // self.num_groups, *value.shape[2:])
        out = standardize(grouped, tuple(range(2, grouped.ndim)), epsilon=self.eps).reshape(value.shape)
        return self._scaled(out, (-1, *[1] * (value.ndim - 2)), value.dtype)


class _InstanceNorm(_Norm):
    num_features: int = static()
    eps: float = static(default=1e-5)

    _rank: ClassVar[int] = 0

    @classmethod
    def init(cls, num_features: int, *, eps: float = 1e-5, affine: bool = False, dtype: Any = "float32") -> Self:
        """Create the layer: scales 1 and offsets 0 if `affine`, else none.

        `eps` is added to the variance.
        """
        check_sizes(cls.__name__, num_features=num_features)
        return cls(*_parameters((num_features,), affine, True, dtype), num_features, eps)

    def __call__(self, x: Any) -> Array:
        """Return the normalised numbers.

        Raises `ShapeError` for other axes or channels than the layer's, `DTypeError` unless they are floats.
        """
        value = batched_input(type(self).__name__, x, (self._rank,))
        check_features(type(self).__name__, value, self.num_features, axis=1)
        out = standardize(_wide(self, value), tuple(range(2, value.ndim)), epsilon=self.eps)
        return self._scaled(out, (-1, *[1] * self._rank), value.dtype)


class InstanceNorm1d(_InstanceNorm):
    """Normalises each channel of each example of (N, C, L) (Ulyanov et al. 2016).

    It always uses the channel's own mean and variance.

    >>> vf.nn.InstanceNorm1d.init(1)(vf.numpy.array([[[1.0, 2.0, 3.0]]])).round(3)
    Array([[[-1.225,  0.   ,  1.225]]], dtype=float32)
    """

    _rank = 1


class InstanceNorm2d(_InstanceNorm):
    """Normalises each channel of each example of (N, C, H, W)."""

    _rank = 2


class InstanceNorm3d(_InstanceNorm):
    """Normalises each channel of each example of (N, C, D, H, W)."""

    _rank = 3
