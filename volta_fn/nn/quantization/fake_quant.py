"""Rounding in training as quantisation will, with derivatives that pass through."""

from __future__ import annotations

from typing import Any

from volta_fn import dtypes
from volta_fn import numpy as vnp
from volta_fn.core.arrays.array import Array, as_value
from volta_fn.errors import ArgumentError, DTypeError, ShapeError
from volta_fn.primitives.call import stop_gradient
from volta_fn.primitives.declare import to_dtype

__all__ = ["fake_quant"]


def fake_quant(x: Any, scale: Any, zero_point: Any = 0, quant_min: int = -128, quant_max: int = 127, *, axis: int | None = None) -> Array:
    """Round numbers to those that integers represent, and return them as floats.

    The result is ``(clip(round(x / scale + zero_point), quant_min, quant_max) - zero_point) * scale``. The derivative by `x` passes
    through where the integer lies within the bounds, and is 0 elsewhere (Bengio et al. 2013); that by `scale` and `zero_point` is 0. Both
    are PyTorch's, of `fake_quantize_per_tensor_affine` and, with an axis, of `fake_quantize_per_channel_affine`.

    Args:
        x: floats.
        scale: a number above 0; with an axis, one for each channel.
        zero_point: the integer that stands for 0, of the shape of the scale or a scalar.
        quant_min, quant_max: the bounds of the integers.
        axis: the axis of the channels; None: one scale for all.

    Raises:
        ArgumentError: the bounds are not integers in order. DTypeError: `x` is not float. ShapeError: scales do not fit.

    >>> nn.fake_quant(vf.numpy.array([0.04, 0.26, 200.0]), 0.1).round(3)
    Array([ 0. ,  0.3, 12.7], dtype=float32)
    >>> vf.grad(lambda x: nn.fake_quant(x, 0.1).sum())(vf.numpy.array([0.04, 0.26, 200.0]))
    Array([1., 1., 0.], dtype=float32)
    """
    value = as_value(x)
    if value.dtype not in dtypes.FLOATS:
        raise DTypeError(f"fake_quant: x is float, got {value.aval}")
    if not (isinstance(quant_min, int) and isinstance(quant_max, int)) or quant_min >= quant_max:
        raise ArgumentError(f"fake_quant: quant_min < quant_max are integers, got {quant_min!r} and {quant_max!r}")
    wide = dtypes.accumulator(value.dtype)
    step, zero = [_by_channel(stop_gradient(to_dtype(each, wide)), value, axis) for each in (scale, zero_point)]
    codes = vnp.round(stop_gradient(value).astype(wide) * (1 / step) + zero)
    inside = (codes >= quant_min) & (codes <= quant_max)
    rounded = ((vnp.clip(codes, quant_min, quant_max) - zero) * step).astype(value.dtype)
    return stop_gradient(rounded) + vnp.where(inside, value - stop_gradient(value), 0)


def _by_channel(values: Array, x: Array, axis: int | None) -> Array:
    """Reshape a number for each channel to broadcast along the axis."""
    if values.ndim == 0:
        return values
    if axis is None or not -x.ndim <= axis < x.ndim or values.shape != (x.shape[axis],):
        raise ShapeError(
            f"fake_quant: scale and zero_point are scalars, or with axis=… one number for each entry of that axis; got {values.shape} for "
            f"x of shape {x.shape} and axis={axis}"
        )
    return values.reshape([-1 if i == axis % x.ndim else 1 for i in range(x.ndim)])
