"""Elementary schedules: constant, polynomial, linear, exponential, cosine."""

from __future__ import annotations

import math
from typing import Any

from volta_fn import dtypes
from volta_fn import numpy as vnp
from volta_fn.core.array import Array, as_value
from volta_fn.errors import ArgumentError
from volta_fn.optim.base import Schedule

__all__ = ["constant_schedule", "cosine_decay_schedule", "exponential_decay", "linear_schedule", "polynomial_schedule"]


def number(value: Any, steps: Array) -> Array:
    """Return a number in the dtype in which schedules of `steps` compute."""
    return vnp.asarray(value, dtypes.to_inexact(steps.dtype))


def constant_schedule(value: Any) -> Schedule:
    """Return the schedule that is always `value`."""
    return lambda count: value


def polynomial_schedule(init_value: Any, end_value: Any, power: Any, transition_steps: int, transition_begin: int = 0) -> Schedule:
    """Go from `init_value` to `end_value` as ``(init - end) * (1 - t)**power + end``.

    t grows from 0 to 1 in `transition_steps` steps after `transition_begin`. Without a positive number of transition steps the value is
    constant.

    >>> float(optim.polynomial_schedule(1.0, 0.0, power=2, transition_steps=10)(5))
    0.25
    """
    if transition_steps <= 0:
        return constant_schedule(init_value)
    begin = max(transition_begin, 0)

    def schedule(count: Any) -> Array:
        left = 1 - vnp.clip(count - begin, 0, transition_steps) / transition_steps
        return (init_value - end_value) * left**power + end_value

    return schedule


def linear_schedule(init_value: Any, end_value: Any, transition_steps: int, transition_begin: int = 0) -> Schedule:
    """Go linearly from `init_value` to `end_value`.

    The change takes `transition_steps` steps after `transition_begin`.

    >>> [float(optim.linear_schedule(0.0, 1.0, 4)(step)) for step in (0, 1, 4, 9)]
    [0.0, 0.25, 1.0, 1.0]
    """
    return polynomial_schedule(init_value, end_value, 1, transition_steps, transition_begin)


def exponential_decay(
    init_value: Any, transition_steps: int, decay_rate: Any, transition_begin: int = 0, staircase: bool = False, end_value: Any = None
) -> Schedule:
    """Decay as ``init_value * decay_rate ** (count / transition_steps)``.

    Steps count from `transition_begin`. With `staircase` the exponent is rounded down; `end_value` bounds the value. Without a positive
    number of transition steps, or with a `decay_rate` of 0, the value is constant.

    >>> float(optim.exponential_decay(1.0, transition_steps=10, decay_rate=0.5)(20))
    0.25
    """
    constant_rate = isinstance(decay_rate, (int, float))
    if transition_steps <= 0 or (constant_rate and decay_rate == 0):
        return constant_schedule(init_value)
    begin = max(transition_begin, 0)

    def schedule(count: Any) -> Array:
        exponent = vnp.maximum(as_value(count) - begin, 0) / transition_steps
        value = init_value * decay_rate ** (vnp.floor(exponent) if staircase else exponent)
        if end_value is None:
            return value
        low, high = vnp.minimum(value, end_value), vnp.maximum(value, end_value)
        return vnp.where(decay_rate < 1, high, low)

    return schedule


def cosine_decay_schedule(init_value: Any, decay_steps: int, alpha: Any = 0.0, exponent: Any = 1.0) -> Schedule:
    """Decay to ``alpha * init_value`` along half a cosine wave.

    See Loshchilov and Hutter (2017). The wave ``(1 + cos(pi * count / decay_steps)) / 2`` is raised to `exponent`.

    >>> round(float(optim.cosine_decay_schedule(1.0, 10)(5)), 6)
    0.5

    Raises `ArgumentError` unless `decay_steps` is positive.
    """
    if not decay_steps > 0:
        raise ArgumentError(f"cosine_decay_schedule: decay_steps must be positive, got {decay_steps}")

    def schedule(count: Any) -> Array:
        wave = 0.5 * (1 + vnp.cos(math.pi * (vnp.minimum(count, decay_steps) / decay_steps)))
        return init_value * ((1 - alpha) * wave**exponent + alpha)

    return schedule
