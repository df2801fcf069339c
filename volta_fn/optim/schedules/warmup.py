"""Schedules composed of others: joined, with warm-up, with restarts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from volta_fn import numpy as vnp
from volta_fn.core.array import as_value
from volta_fn.errors import ArgumentError
from volta_fn.optim.base import Schedule
from volta_fn.optim.schedules.decay import cosine_decay_schedule, exponential_decay, linear_schedule, number

__all__ = ["join_schedules", "sgdr_schedule", "warmup_constant_schedule", "warmup_cosine_decay_schedule"]
__all__ += ["warmup_exponential_decay_schedule"]


def join_schedules(schedules: Sequence[Schedule], boundaries: Sequence[int]) -> Schedule:
    """Switch to the next schedule at each boundary; it counts steps from there.

    >>> schedule = optim.join_schedules([optim.linear_schedule(0.0, 1.0, 10), optim.constant_schedule(1.0)], [10])
    >>> [float(schedule(step)) for step in (5, 10, 20)]
    [0.5, 1.0, 1.0]

    Raises `ArgumentError` unless there is one boundary less than schedules.
    """
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
