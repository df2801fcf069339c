"""Counters, norms, squared magnitudes, and moving averages with bias correction."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from volta_fn import dtypes, lax, tree
from volta_fn import numpy as vnp
from volta_fn.core.array import Array, as_value
from volta_fn.errors import DTypeError
from volta_fn.optim.tree_rules import map_with_state, scaled_by, widened, widest_real

__all__ = ["abs_sq", "all_finite", "bias_correction", "global_norm", "safe_increment", "safe_int32_increment", "safe_norm"]
__all__ += ["safe_root_mean_squares", "update_infinity_moment", "update_moment", "update_moment_per_elem_norm"]


def safe_increment(count: Any) -> Array:
    """Return ``count + 1``, saturating at the largest number of the dtype.

    >>> import numpy as np
    >>> optim.safe_increment(np.int32(2**31 - 1))
    Array(2147483647, dtype=int32)
    """
    value = as_value(count)
    if value.dtype in dtypes.INTEGERS:
        return vnp.minimum(value, dtypes.iinfo(value.dtype).max - 1) + 1
    if value.dtype in dtypes.FLOATS:
        return vnp.minimum(value + 1, dtypes.finfo(value.dtype).max)
    raise DTypeError(f"safe_increment: a counter is an integer or a float, got dtype {value.dtype.name}")


safe_int32_increment = safe_increment


def abs_sq(x: Any) -> Array:
    """Return squared magnitudes: x² of real numbers, re² + im² of complex ones.

    >>> vf.optim.abs_sq(vf.numpy.array([3 + 4j]))
    Array([25.], dtype=float32)
    """
    value = as_value(x)
    if value.dtype not in dtypes.COMPLEX:
        return value * value
    re, im = lax.real(value), lax.imag(value)
    return re * re + im * im


def sum_of_squares(updates: Any) -> Array:
    """Return the sum of all squared magnitudes of a tree, in float32 at least."""
    sums = [vnp.sum(abs_sq(widened(as_value(x)))) for x in tree.leaves(updates)]
    return functools.reduce(operator.add, sums) if sums else vnp.zeros((), np.float32)


def global_norm(updates: Any) -> Array:
    """Return the Euclidean norm of all elements of all leaves together.

    It is computed in float32 at least; that of a tree without leaves is 0.

    >>> vf.optim.global_norm({"a": vf.numpy.array([3.0]), "b": vf.numpy.array([[4.0]])})
    Array(5., dtype=float32)
    """
    return vnp.sqrt(sum_of_squares(updates))


def normalized(updates: Any) -> Any:
    """Divide a tree by its global norm; zeros stay zeros."""
    norm = global_norm(updates)
    return scaled_by(vnp.where(norm == 0, vnp.ones_like(norm), 1 / norm), updates)


def real_dot(x: Any, y: Any) -> Array:
    """Return the real part of the inner product of two trees, in float32 at least."""
    total = vnp.zeros((), widest_real(x))
    for a, b in zip(tree.leaves(x), tree.leaves(y), strict=True):
        total = total + vnp.real(vnp.vdot(widened(as_value(a)), widened(as_value(b))))
    return total


def safe_norm(x: Any, min_norm: Any, ord: Any = None, axis: Any = None, keepdims: bool = False) -> Array:
    """Return the norm of `x`, but at least `min_norm`.

    Where the norm is less, the gradient is zero, not NaN. `ord`, `axis` and `keepdims` are those of `numpy.linalg.norm`.
    """
    value = as_value(x)
    norm = vnp.linalg.norm(value, ord=ord, axis=axis, keepdims=True)
    harmless = vnp.where(norm <= min_norm, vnp.ones_like(value), value)
    small = norm <= min_norm if keepdims else vnp.squeeze(norm <= min_norm, axis=axis)
    return vnp.where(small, min_norm, vnp.linalg.norm(harmless, ord=ord, axis=axis, keepdims=keepdims))


def safe_root_mean_squares(x: Any, min_rms: Any) -> Array:
    """Return the root mean square of `x`, or `min_rms` with gradient 0 if it is less."""
    value = as_value(x)
    small = vnp.sqrt(vnp.mean(abs_sq(value))) <= min_rms
    return vnp.where(small, min_rms, vnp.sqrt(vnp.mean(abs_sq(vnp.where(small, vnp.ones_like(value), value)))))


def all_finite(updates: Any) -> Array:
    """Return a boolean scalar: True if no element of any leaf is infinite or NaN.

    >>> vf.optim.all_finite([vf.numpy.ones(3), vf.numpy.array([1.0, float("nan")])])
    Array(False, dtype=bool)
    """
    flags = [vnp.all(vnp.isfinite(as_value(x))) for x in tree.leaves(updates)]
    return functools.reduce(operator.and_, flags) if flags else vnp.array(True)


# Moving averages and their bias correction.


def decayed(decay: Any, value: Array, average: Array) -> Array:
    """Return the next moving average, ``(1 - decay) * value + decay * average``."""
    return (1 - decay) * value + decay * average


def log_of(decay: Any) -> Any:
    """Return the logarithm of a decay rate, in double precision if possible."""
    if isinstance(decay, (int, float)):
        return math.log(decay) if decay > 0 else -math.inf
    return lax.log(as_value(decay))


def debiaser(decay: Any, count: Array) -> Callable[[Array], Array]:
    """Return a function that corrects a moving average's start at zero.

    It divides by ``1 - decay**count``. The divisor is computed once for each dtype, and without the cancellation that would cost float32
    half its digits in the first steps.
    """
    divisors: dict[np.dtype, Array] = {}

    def debias(average: Array) -> Array:
        dtype = dtypes.real_dtype(average.dtype)
        if dtype not in divisors:
            divisors[dtype] = -lax.expm1(vnp.asarray(log_of(decay), dtype) * lax.convert_element_type(count, dtype))
        return average / divisors[dtype]

    return debias


def update_moment(updates: Any, moments: Any, decay: Any, order: int) -> Any:
    """Return the moving averages ``(1 - decay) * updates**order + decay * moments``."""
    return map_with_state(lambda u, m: (u, decayed(decay, u**order, m)), updates, moments)[1]


def update_moment_per_elem_norm(updates: Any, moments: Any, decay: Any, order: int) -> Any:
    """Return the moving averages ``(1 - decay) * |updates|**order + decay * moments``."""

    def power(u: Array) -> Array:
        if u.dtype not in dtypes.COMPLEX:
            return u**order
        return abs_sq(u) ** (order // 2 if order % 2 == 0 else order / 2)

    return map_with_state(lambda u, m: (u, decayed(decay, power(u), m)), updates, moments)[1]


def update_infinity_moment(updates: Any, moments: Any, decay: Any, eps: Any) -> Any:
    """Return the next decaying maxima ``max(|updates| + eps, decay * moments)``."""
    return map_with_state(lambda u, m: (u, vnp.maximum(vnp.abs(u) + eps, decay * m)), updates, moments)[1]


def bias_correction(moment: Any, decay: Any, count: Any) -> Any:
    """Divide moving averages by ``1 - decay**count``, to correct their start at zero.

    >>> vf.optim.bias_correction([vf.numpy.array([0.5])], decay=0.5, count=1)
    [Array([1.], dtype=float32)]
    """
    debias = debiaser(decay, as_value(count))
    return tree.map(lambda m: debias(as_value(m)), moment)
