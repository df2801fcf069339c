"""Trees of moments, the moving averages of gradients and of their powers that the Adam family keeps, for optimizers of one's own."""

from __future__ import annotations

from typing import Any

from volta_fn import dtypes, tree
from volta_fn import numpy as vnp
from volta_fn.core.array import Array, as_value
from volta_fn.optim.base import Updates
from volta_fn.optim.leaves import map_with_state
from volta_fn.optim.numerics import abs_sq, debiaser, decayed


def update_moment(updates: Updates, moments: Updates, decay: Any, order: int) -> Updates:
    """The next moving averages ``(1 - decay) * updates**order + decay * moments``."""
    return map_with_state(lambda u, m: (u, decayed(decay, u**order, m)), updates, moments)[1]


def update_moment_per_elem_norm(updates: Updates, moments: Updates, decay: Any, order: int) -> Updates:
    """Like `update_moment`, with the magnitudes of complex updates: ``(1 - decay) * |updates|**order + decay * moments``."""

    def power(u: Array) -> Array:
        if u.dtype not in dtypes.COMPLEX:
            return u**order
        return abs_sq(u) ** (order // 2 if order % 2 == 0 else order / 2)

    return map_with_state(lambda u, m: (u, decayed(decay, power(u), m)), updates, moments)[1]


def update_infinity_moment(updates: Updates, moments: Updates, decay: Any, eps: Any) -> Updates:
    """The next decaying maxima ``max(|updates| + eps, decay * moments)``."""
    return map_with_state(lambda u, m: (u, vnp.maximum(vnp.abs(u) + eps, decay * m)), updates, moments)[1]


def bias_correction(moment: Updates, decay: Any, count: Any) -> Updates:
    """Moving averages divided by ``1 - decay**count``, which their start at zero has made them too small by.

    >>> import volta_fn as vf
    >>> vf.optim.bias_correction([vf.numpy.array([0.5])], decay=0.5, count=1)
    [Array([1.], dtype=float32)]
    """
    debias = debiaser(decay, as_value(count))
    return tree.map(lambda m: debias(as_value(m)), moment)
