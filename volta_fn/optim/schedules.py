"""Schedules: functions from the number of steps taken so far to a learning rate (or any other number).

The number may be a Python int or a (traced) array. Schedules compute in float32, or in float64 of an int64.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from volta_fn import dtypes
from volta_fn import numpy as vnp
from volta_fn.core.array import Array, as_value
from volta_fn.errors import ArgumentError
from volta_fn.optim.base import Schedule


def number(value: Any, steps: Array) -> Array:
    """A number in the dtype that schedules of `steps` compute in."""
    return vnp.asarray(value, dtypes.to_inexact(steps.dtype))


def constant_schedule(value: Any) -> Schedule:
    """Always `value`."""
    return lambda count: value


def polynomial_schedule(init_value: Any, end_value: Any, power: Any, transition_steps: int, transition_begin: int = 0) -> Schedule:
    """From `init_value` to `end_value` in `transition_steps` steps after `transition_begin`: ``(init - end) * (1 - t)**power + end``.

    Without a positive number of transition steps the value is constant.

    >>> from volta_fn import optim
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
    """From `init_value` to `end_value` in a straight line, in `transition_steps` steps after `transition_begin`.

    >>> from volta_fn import optim
    >>> [float(optim.linear_schedule(0.0, 1.0, 4)(step)) for step in (0, 1, 4, 9)]
    [0.0, 0.25, 1.0, 1.0]
    """
    return polynomial_schedule(init_value, end_value, 1, transition_steps, transition_begin)


def piecewise_constant_schedule(init_value: Any, boundaries_and_scales: Mapping[int, Any] | None = None) -> Schedule:
    """Steps: from each boundary on, the value is multiplied by that boundary's scale.

    >>> from volta_fn import optim
    >>> schedule = optim.piecewise_constant_schedule(1.0, {10: 0.5, 20: 0.5})
    >>> [float(schedule(step)) for step in (9, 10, 20)]
    [1.0, 0.5, 0.25]

    Raises `ArgumentError` for negative scales.
    """
    corners = _checked("piecewise_constant_schedule", boundaries_and_scales)

    def schedule(count: Any) -> Any:
        steps, value = as_value(count), init_value
        for boundary, scale in corners:
            value = value * vnp.where(steps < boundary, 1.0, number(scale, steps))
        return value

    return schedule


def _checked(name: str, boundaries_and_scales: Mapping[int, Any] | None) -> list[tuple[int, Any]]:
    steps = sorted((boundaries_and_scales or {}).items())
    if any(isinstance(scale, (int, float)) and scale < 0 for _, scale in steps):
        raise ArgumentError(f"{name}: scales must not be negative, got {dict(steps)}")
    return steps


def exponential_decay(
    init_value: Any,
    transition_steps: int,
    decay_rate: Any,
    transition_begin: int = 0,
    staircase: bool = False,
    end_value: Any = None,
) -> Schedule:
    """``init_value * decay_rate ** (count / transition_steps)``, counted from `transition_begin`.

    With `staircase` the exponent is rounded down; `end_value` bounds the value. Without a positive number of transition steps, or with a
    `decay_rate` of 0, the value is constant.

    >>> from volta_fn import optim
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
    """From `init_value` to ``alpha * init_value`` in `decay_steps` steps along half a wave of the cosine (Loshchilov and Hutter, 2017).

    The part of the wave, between 0 and 1, is raised to `exponent`.

    >>> from volta_fn import optim
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


def piecewise_interpolate_schedule(
    interpolate_type: str, init_value: Any, boundaries_and_scales: Mapping[int, Any] | None = None
) -> Schedule:
    """Lines ("linear") or half waves ("cosine") between the values that `piecewise_constant_schedule` takes at its boundaries.

    >>> from volta_fn import optim
    >>> float(optim.piecewise_interpolate_schedule("linear", 1.0, {10: 3.0})(5))
    2.0

    Raises `ArgumentError` for another type and for negative scales.
    """
    if interpolate_type not in ("linear", "cosine"):
        raise ArgumentError(f"piecewise_interpolate_schedule: the type must be 'linear' or 'cosine', got {interpolate_type!r}")
    boundaries, values = [0], [init_value]
    for boundary, scale in _checked("piecewise_interpolate_schedule", boundaries_and_scales):
        boundaries.append(boundary)
        values.append(values[-1] * scale)

    def schedule(count: Any) -> Any:
        steps = as_value(count)
        value = values[-1]
        for i in reversed(range(len(boundaries) - 1)):
            part = (steps - boundaries[i]) / max(boundaries[i + 1] - boundaries[i], 1)
            if interpolate_type == "cosine":
                part = (1 - vnp.cos(math.pi * part)) / 2
            value = vnp.where(steps < boundaries[i + 1], values[i] + (values[i + 1] - values[i]) * part, value)
        return value

    return schedule


def linear_onecycle_schedule(
    transition_steps: int,
    peak_value: Any,
    pct_start: float = 0.3,
    pct_final: float = 0.85,
    div_factor: float = 25.0,
    final_div_factor: float = 1e4,
) -> Schedule:
    """The one-cycle policy in straight lines (Smith and Topin, 2017): up, down, and down to almost nothing.

    From ``peak_value / div_factor`` to the peak at the fraction `pct_start` of the steps, back at `pct_final`, divided once more by
    `final_div_factor` at the end.

    >>> from volta_fn import optim
    >>> schedule = optim.linear_onecycle_schedule(100, peak_value=1.0)
    >>> [round(float(schedule(step)), 6) for step in (0, 30, 85, 100)]
    [0.04, 1.0, 0.04, 4e-06]

    Raises `ArgumentError` unless there are transition steps.
    """
    _check_steps("linear_onecycle_schedule", transition_steps)
    corners = {int(pct_start * transition_steps): div_factor, int(pct_final * transition_steps): 1 / div_factor}
    return piecewise_interpolate_schedule("linear", peak_value / div_factor, {**corners, transition_steps: 1 / final_div_factor})


def cosine_onecycle_schedule(
    transition_steps: int, peak_value: Any, pct_start: float = 0.3, div_factor: float = 25.0, final_div_factor: float = 1e4
) -> Schedule:
    """The one-cycle policy in half waves: from ``peak_value / div_factor`` to the peak at the fraction `pct_start` of the steps, and
    to ``peak_value / (div_factor * final_div_factor)`` at the end.

    >>> from volta_fn import optim
    >>> schedule = optim.cosine_onecycle_schedule(100, peak_value=1.0)
    >>> [round(float(schedule(step)), 6) for step in (0, 30, 100)]
    [0.04, 1.0, 4e-06]

    Raises `ArgumentError` unless there are transition steps.
    """
    _check_steps("cosine_onecycle_schedule", transition_steps)
    corners = {int(pct_start * transition_steps): div_factor, transition_steps: 1 / (div_factor * final_div_factor)}
    return piecewise_interpolate_schedule("cosine", peak_value / div_factor, corners)


def _check_steps(name: str, transition_steps: int) -> None:
    if transition_steps <= 0:
        raise ArgumentError(f"{name}: transition_steps must be positive, got {transition_steps}")
