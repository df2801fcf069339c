"""What optimizers that estimate their own learning rate share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from volta_fn import numpy as vnp
from volta_fn import tree
from volta_fn.core.array import Array, as_value
from volta_fn.optim.base import Params, ScalarOrSchedule, Updates
from volta_fn.optim.tree_rules import map_with_state, steps_for, widened, widest_real


def rate_at(learning_rate: ScalarOrSchedule, count: Array, updates: Updates) -> Any:
    """Return a learning rate after `count` steps."""
    return learning_rate(steps_for(count, updates)) if callable(learning_rate) else learning_rate


def scalar_for(params: Params, value: Any = 0.0) -> Array:
    """Return a number as a scalar of the widest real dtype of the parameters."""
    return vnp.asarray(value, widest_real(params))


def copied(params: Params) -> Params:
    """Return the parameters as arrays, to be kept in a state."""
    return tree.map(as_value, params)


def next_states(rule: Callable[..., tuple[Array, ...]], updates: Updates, *states: Any) -> tuple[Any, ...]:
    """Return the trees of ``rule(update, *states)``, the next states, in their dtypes."""
    return map_with_state(lambda g, *old: (g, *rule(g, *old)), updates, *states)[1:]


def sum_of_magnitudes(values: Any) -> Array:
    """Return the sum of the absolute values of all leaves, in float32 at least."""
    total = scalar_for(values)
    for x in tree.leaves(values):
        total = total + vnp.sum(vnp.abs(widened(as_value(x))))
    return total
