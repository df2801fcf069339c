"""Schedules: functions from the number of steps to a learning rate."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from volta_fn import dtypes
from volta_fn import numpy as vnp
from volta_fn.core.arrays.array import Array, as_value
from volta_fn.core.aval import check_option
from volta_fn.errors import ArgumentError, ArgumentTypeError
from volta_fn.optim.base import Schedule as Schedule
from volta_fn.optim.base import check_all as _check_all
from volta_fn.optim.transforms.composition import InjectHyperparamsState as InjectHyperparamsState
from volta_fn.optim.transforms.composition import InjectStatefulHyperparamsState as InjectStatefulHyperparamsState
from volta_fn.optim.transforms.composition import inject_hyperparams as inject_hyperparams
from volta_fn.optim.transforms.composition import inject_stateful_hyperparams as inject_stateful_hyperparams

__all__ = [
    "InjectHyperparamsState", "InjectStatefulHyperparamsState", "Schedule", "constant_schedule", "cosine_decay_schedule",
    "cosine_onecycle_schedule", "exponential_decay", "inject_hyperparams", "inject_stateful_hyperparams", "join_schedules",
    "linear_onecycle_schedule", "linear_schedule", "piecewise_constant_schedule", "piecewise_interpolate_schedule", "polynomial_schedule",
    "sgdr_schedule", "warmup_constant_schedule", "warmup_cosine_decay_schedule", "warmup_exponential_decay_schedule",
]  # fmt: skip


# Elementary schedules: constant, polynomial, linear, exponential, cosine.


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
        fraction = 1 - vnp.clip(count - begin, 0, transition_steps) / transition_steps
        return (init_value - end_value) * fraction**power + end_value

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


# Schedules given by values at boundaries, and the one-cycle policy.


def piecewise_constant_schedule(init_value: Any, boundaries_and_scales: Mapping[int, Any] | None = None) -> Schedule:
    """Multiply the value by a scale at each boundary.

    >>> schedule = optim.piecewise_constant_schedule(1.0, {10: 0.5, 20: 0.5})
    >>> [float(schedule(step)) for step in (9, 10, 20)]
    [1.0, 0.5, 0.25]

    Raises `ArgumentError` for negative scales, `ArgumentTypeError` unless they are a dict.
    """
    corners = _checked("piecewise_constant_schedule", boundaries_and_scales)

    def schedule(count: Any) -> Any:
        steps, value = as_value(count), init_value
        for boundary, scale in corners:
            value = value * vnp.where(steps < boundary, 1.0, number(scale, steps))
        return value

    return schedule


def _checked(name: str, boundaries_and_scales: Mapping[int, Any] | None) -> list[tuple[int, Any]]:
    if boundaries_and_scales is not None and not isinstance(boundaries_and_scales, Mapping):
        raise ArgumentTypeError(
            f"{name}: boundaries_and_scales is a dict of scales by steps, as {{10: 0.5}}, got {boundaries_and_scales!r:.80} of type "
            f"{type(boundaries_and_scales).__name__}"
        )
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
    check_option(interpolate_type, "piecewise_interpolate_schedule: the type", ("linear", "cosine"))
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


# Schedules composed of others: joined, with warm-up, with restarts.


def join_schedules(schedules: Sequence[Schedule], boundaries: Sequence[int]) -> Schedule:
    """Switch to the next schedule at each boundary; it counts steps from there.

    >>> schedule = optim.join_schedules([optim.linear_schedule(0.0, 1.0, 10), optim.constant_schedule(1.0)], [10])
    >>> [float(schedule(step)) for step in (5, 10, 20)]
    [0.5, 1.0, 1.0]

    Raises `ArgumentError` unless there is one boundary less than schedules, `ArgumentTypeError` for a schedule that is in no sequence.
    """
    if callable(schedules):
        raise ArgumentTypeError("join_schedules takes the schedules as one sequence, join_schedules([a, b], [boundary]); got a single one")
    if len(boundaries) != len(schedules) - 1:
        raise ArgumentError(f"join_schedules: {len(schedules)} schedules need {len(schedules) - 1} boundaries, got {list(boundaries)}")

    def schedule(count: Any) -> Any:
        steps = as_value(count)
        value = number(schedules[0](steps), steps)
        for boundary, following in zip(boundaries, schedules[1:], strict=True):
            value = vnp.where(steps < boundary, value, number(following(steps - boundary), steps))
        return value

    return schedule


def _warmed_up(init_value: Any, peak_value: Any, warmup_steps: int, decay: Schedule) -> Schedule:
    return join_schedules([linear_schedule(init_value, peak_value, warmup_steps), decay], [warmup_steps])


def warmup_constant_schedule(init_value: Any, peak_value: Any, warmup_steps: int) -> Schedule:
    """Go linearly from `init_value` to `peak_value`, then stay there."""
    return linear_schedule(init_value, peak_value, warmup_steps)


def warmup_cosine_decay_schedule(
    init_value: Any, peak_value: Any, warmup_steps: int, decay_steps: int, end_value: Any = 0.0, exponent: Any = 1.0
) -> Schedule:
    """Go linearly to `peak_value`, then along half a cosine wave to `end_value`.

    `decay_steps` is the number of all steps, including the warm-up.

    >>> schedule = optim.warmup_cosine_decay_schedule(0.0, 1.0, warmup_steps=10, decay_steps=110)
    >>> [round(float(schedule(step)), 6) for step in (5, 10, 60, 110)]
    [0.5, 1.0, 0.5, 0.0]

    Raises `ArgumentError` unless `decay_steps` is more than `warmup_steps`.
    """
    if decay_steps <= warmup_steps:
        raise ArgumentError(
            f"warmup_cosine_decay_schedule: decay_steps counts all steps, so it must be more than the {warmup_steps} "
            f"of the warm-up, got {decay_steps}"
        )
    alpha = 0.0 if isinstance(peak_value, (int, float)) and peak_value == 0 else end_value / peak_value
    decay = cosine_decay_schedule(peak_value, decay_steps - warmup_steps, alpha, exponent)
    return _warmed_up(init_value, peak_value, warmup_steps, decay)


def warmup_exponential_decay_schedule(
    init_value: Any,
    peak_value: Any,
    warmup_steps: int,
    transition_steps: int,
    decay_rate: Any,
    transition_begin: int = 0,
    staircase: bool = False,
    end_value: Any = None,
) -> Schedule:
    """Go linearly to `peak_value`; from there on count steps for `exponential_decay`."""
    decay = exponential_decay(peak_value, transition_steps, decay_rate, transition_begin, staircase, end_value)
    return _warmed_up(init_value, peak_value, warmup_steps, decay)


def sgdr_schedule(cosine_kwargs: Iterable[Mapping[str, Any]]) -> Schedule:
    """Join several `warmup_cosine_decay_schedule`: warm restarts.

    See Loshchilov and Hutter (2017). `cosine_kwargs` holds the arguments of each.

    >>> cycle = {"init_value": 0.0, "peak_value": 1.0, "warmup_steps": 2, "decay_steps": 10}
    >>> schedule = optim.sgdr_schedule([cycle, {**cycle, "peak_value": 0.5}])
    >>> [float(schedule(step)) for step in (2, 12)]
    [1.0, 0.5]
    """
    cycles = list(cosine_kwargs)
    ends: list[int] = []
    for cycle in cycles:
        ends.append((ends[-1] if ends else 0) + cycle["decay_steps"])
    return join_schedules([warmup_cosine_decay_schedule(**cycle) for cycle in cycles], ends[:-1])


_check_all(globals())
