"""Mechanic: a wrapper that tunes the learning rate of any optimizer."""

from __future__ import annotations

from typing import Any, NamedTuple

from volta_fn import numpy as vnp
from volta_fn import tree
from volta_fn.core.array import Array, as_value
from volta_fn.optim.base import (
    Counter,
    GradientTransformation,
    GradientTransformationExtraArgs,
    OptState,
    Params,
    require_params,
    with_extra_args_support,
)
from volta_fn.optim.contrib.common import copied
from volta_fn.optim.numerics import global_norm, real_dot, safe_increment
from volta_fn.optim.tree_rules import count_zero, map_leaves, where, widest_real

__all__ = ["MechanicState", "mechanize"]


class MechanicState(NamedTuple):
    """The inner state, the step (int32), what the tuners keep, and initial parameters."""

    base_optimizer_state: OptState
    count: Counter
    r: Array
    m: Array
    v: Array
    s: Array
    x0: Params


def mechanize(
    base_optimizer: GradientTransformation, weight_decay: Any = 0.01, eps: Any = 1e-8, s_init: Any = 1e-6, num_betas: int = 6
) -> GradientTransformationExtraArgs:
    """Scale an optimizer's updates by a learned factor (Cutkosky et al., 2023).

    Args:
        base_optimizer: its learning rate sets a schedule, and its scale hardly matters.
        weight_decay: relative to the norms of gradients and parameters.
        eps: keeps divisors from 0.
        s_init: the first factor, smaller than the true one.
        num_betas: the number of tuners, whose decays are 0.9, 0.99, …, and whose factors are added.

    >>> optimizer = optim.contrib.mechanize(optim.sgd(1.0))
    >>> w = vnp.ones(2)
    >>> state = optimizer.init(w)
    >>> for _ in range(30):
    ...     updates, state = optimizer.update(2 * w, state, w)
    ...     w = optim.apply_updates(w, updates)
    >>> bool(vnp.sum(state.s) > 1e-5)
    True
    """
    base = with_extra_args_support(base_optimizer)

    def init(params: Any) -> MechanicState:
        zeros = vnp.zeros(num_betas, widest_real(params))
        return MechanicState(base.init(params), count_zero(), zeros, zeros, zeros, zeros + s_init, copied(params))

    def update(updates: Any, state: Any, params: Any = None, **extra_args: Any) -> tuple[Any, Any]:
        given = require_params("mechanize", params)
        base_updates, base_state = base.update(updates, state.base_optimizer_state, given, **extra_args)
        start = where(state.count == 0, tree.map(as_value, given), state.x0)
        factor = vnp.sum(state.s)
        moved = map_leaves(lambda p, p0: (p0 - p) / (factor + eps), given, start)
        decay = weight_decay * factor * global_norm(updates) / (global_norm(given) + eps)
        slope = real_dot(map_leaves(lambda g, p: g + decay * p, updates, given), moved)
        r, m, v, s = _tuned(state, slope, s_init, eps)
        total = vnp.sum(s)
        updates = map_leaves(lambda u, p, p0, d: p0 - total * (d - u) - p, base_updates, given, start, moved)
        return updates, MechanicState(base_state, safe_increment(state.count), r, m, v, s, start)

    return GradientTransformationExtraArgs(init, update)


def _tuned(state: MechanicState, slope: Array, s_init: Any, eps: Any) -> tuple[Array, Array, Array, Array]:
    """Return the tuners' gains, largest slopes, sums of squared slopes and factors."""
    count = state.s.size
    betas = vnp.asarray([1 - 0.1**i for i in range(1, count + 1)], state.s.dtype)
    limited = vnp.clip(slope, -state.m, state.m)
    m = vnp.maximum(betas * state.m, vnp.abs(slope) + eps)
    v = betas**2 * state.v + slope**2
    r = betas * state.r + limited * state.s
    wealth = s_init / count * m + vnp.maximum(r, 0)
    return r, m, v, wealth / (vnp.sqrt(v) + eps)
