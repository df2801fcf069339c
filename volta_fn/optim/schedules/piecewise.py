"""Schedules given by values at boundaries, and the one-cycle policy."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from volta_fn import numpy as vnp
from volta_fn.core.array import as_value
from volta_fn.errors import ArgumentError
from volta_fn.optim.base import Schedule
from volta_fn.optim.schedules.decay import number

__all__ = ["cosine_onecycle_schedule", "linear_onecycle_schedule", "piecewise_constant_schedule", "piecewise_interpolate_schedule"]


def piecewise_constant_schedule(init_value: Any, boundaries_and_scales: Mapping[int, Any] | None = None) -> Schedule:
    """Multiply the value by a scale at each boundary.

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


def piecewise_interpolate_schedule(
    interpolate_type: str, init_value: Any, boundaries_and_scales: Mapping[int, Any] | None = None
) -> Schedule:
    """Interpolate between the values of `piecewise_constant_schedule`.

    `interpolate_type` is "linear", or "cosine" for half waves.

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
            progress = (steps - boundaries[i]) / max(boundaries[i + 1] - boundaries[i], 1)
            if interpolate_type == "cosine":
                progress = (1 - vnp.cos(math.pi * progress)) / 2
            value = vnp.where(steps < boundaries[i + 1], values[i] + (values[i + 1] - values[i]) * progress, value)
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
    """Follow the one-cycle policy linearly: up, down, and down to almost zero.

    See Smith and Topin (2017). The value goes from ``peak_value / div_factor`` to the peak at the fraction `pct_start` of the steps, back
    at `pct_final`, and is divided by `final_div_factor` at the end.

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
    """Follow the one-cycle policy along half cosine waves (Smith and Topin, 2017).

    The value goes from ``peak_value / div_factor`` to the peak at the fraction `pct_start` of the steps, and to
    ``peak_value / (div_factor * final_div_factor)`` at the end.

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
