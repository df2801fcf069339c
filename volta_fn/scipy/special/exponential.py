"""Sums of exponentials along axes, without overflow and with finite derivatives."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

from volta_fn import dtypes
from volta_fn import numpy as vnp
from volta_fn.core.array import Array
from volta_fn.jit import jit
from volta_fn.jit.fused import fused
from volta_fn.numpy.arguments import narrowed, wide
from volta_fn.primitives.barriers import stop_gradient
from volta_fn.primitives.declare import promote_args
from volta_fn.transforms.custom.custom_jvp import custom_jvp

Axis = int | Sequence[int] | None


def _static_axis(axis: Axis) -> int | tuple[int, ...] | None:
    return axis if type(axis) is int or not isinstance(axis, Sequence) else tuple(axis)  # isinstance with an ABC is slow


def _shift(values: Array, axis: Axis, where: Any) -> Array:
    """Return the largest element (0 if infinite) as a constant to differentiation."""
    largest = stop_gradient(vnp.max(values.real, axis, keepdims=True, where=where, initial=-math.inf))
    return vnp.where(vnp.isfinite(largest), largest, 0)


@fused
def logsumexp(a: Any, axis: Axis = None, b: Any = None, keepdims: bool = False, return_sign: bool = False, where: Any = None) -> Any:
    """Return log(sum(b exp(a))) along `axis` (default: all), without overflow.

    Args:
        a: an array.
        axis: the dimensions to sum along.
        b: weights, which broadcast to `a`; a weight of zero removes its element, even an infinite one.
        keepdims: whether those dimensions stay, with size 1.
        return_sign: return a pair of the log of the sum's absolute value and its sign (for complex numbers: its direction); otherwise a
            negative sum gives NaN.
        where: bool mask; other elements are ignored.

    An empty sum gives -inf. The derivative is the softmax, and 0 where every element is -inf.

    >>> vf.scipy.special.logsumexp(vf.numpy.array([1000.0, 1000.0]))
    Array(1000.6932, dtype=float32)
    """
    weights: Array | None = None
    if b is None:
        (values,) = promote_args("logsumexp", (a,), dtypes.INEXACT)
    else:
        values, factors = promote_args("logsumexp", (a, b), dtypes.INEXACT)
        values, weights = vnp.where(factors == 0, -math.inf, values), wide(factors)
    narrow = values
    values = wide(values)
    if where is not None:
        values = vnp.where(where, values, -math.inf)  # lest their derivatives be NaN
    shift = _shift(values, axis, where)
    terms = vnp.exp(values - shift)
    total = vnp.sum(terms if weights is None else terms * weights, axis, keepdims=True, where=where)
    sign = vnp.sign(total)
    size = vnp.abs(total) if return_sign else total
    empty = size == 0
    out, sign = narrowed(vnp.where(empty, -math.inf, vnp.log(vnp.where(empty, 1, size)) + shift), narrow), narrowed(sign, narrow)
    if not keepdims:
        out, sign = vnp.squeeze(out, axis), vnp.squeeze(sign, axis)
    return (out, sign) if return_sign else out


def softmax(x: Any, axis: Axis = -1, where: Any = None) -> Array:
    """Return exp(x) over its sum along `axis`; elements not in `where` are 0.

    >>> vf.nn.softmax(vf.numpy.array([1000.0, 1000.0]))
    Array([0.5, 0.5], dtype=float32)
    """
    (values,) = promote_args("softmax", (x,), dtypes.INEXACT)
    return _softmax_program(values, _static_axis(axis), where)


@functools.partial(custom_jvp, nondiff_argnums=(1,))
def _softmax(x: Array, axis: Axis, where: Any) -> Array:
    terms = vnp.exp(x - _shift(x, axis, where))
    if where is None:
        return terms / vnp.sum(terms, axis, keepdims=True)
    terms = vnp.where(where, terms, 0)
    total = vnp.sum(terms, axis, keepdims=True)
    return terms / vnp.where(total == 0, 1, total)  # `where` may be all False


def _softmax_in_full(x: Array, axis: Axis, where: Any) -> Array:
    return narrowed(_softmax(wide(x), axis, where), x)


_softmax_program = jit(_softmax_in_full, static_argnums=1)


@_softmax.defjvp
def _(axis: Axis, primals: Any, tangents: Any) -> tuple[Array, Array]:
    (x, where), (tangent, _) = primals, tangents
    out = _softmax(x, axis, where)
    return out, out * (tangent - vnp.sum(out * tangent, axis, keepdims=True))


def log_softmax(x: Any, axis: Axis = -1, where: Any = None) -> Array:
    """Return log(softmax(x)), precise for small values; -inf outside `where`.

    >>> vf.nn.log_softmax(vf.numpy.array([0.0, 1000.0]))
    Array([-1000.,     0.], dtype=float32)
    """
    (values,) = promote_args("log_softmax", (x,), dtypes.INEXACT)
    return _log_softmax_program(values, _static_axis(axis), where)


@functools.partial(custom_jvp, nondiff_argnums=(1,))
def _log_softmax(x: Array, axis: Axis, where: Any) -> Array:
    shifted = x - _shift(x, axis, where)
    out = shifted - vnp.log(vnp.sum(vnp.exp(shifted), axis, keepdims=True, where=where))
    return out if where is None else vnp.where(where, out, -math.inf)


def _log_softmax_in_full(x: Array, axis: Axis, where: Any) -> Array:
    return narrowed(_log_softmax(wide(x), axis, where), x)


_log_softmax_program = jit(_log_softmax_in_full, static_argnums=1)


@_log_softmax.defjvp
def _(axis: Axis, primals: Any, tangents: Any) -> tuple[Array, Array]:
    (x, where), (tangent, _) = primals, tangents
    out = _log_softmax(x, axis, where)
    change = tangent - vnp.sum(vnp.exp(out) * tangent, axis, keepdims=True)
    return out, change if where is None else vnp.where(where, change, 0)
