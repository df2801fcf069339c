"""A step along a line that satisfies the strong Wolfe conditions.

The search keeps an interval from the best step so far to one that is too long, and shrinks it (Nocedal and Wright, 2006, algorithms 3.5 and
3.6). Where rounding hides the decrease, the approximate conditions of Hager and Zhang (2005) serve.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from volta_fn import dtypes, lax
from volta_fn import numpy as vnp
from volta_fn.core.array import Array

#: What the value must decrease by, and the slope at most be, in shares of the slope at the start.
_DECREASE, _CURVATURE = 1e-4, 0.9


class Point(NamedTuple):
    """A step along the line, the function's value and gradient there, and the slope."""

    step: Array
    value: Array
    gradient: Array
    slope: Array


class _Search(NamedTuple):
    #: The step to be tried next.
    trial: Array
    #: The best point so far, whose value decreased enough, and the other end of the interval: infinite until one is found.
    best: Point
    end: Array
    end_value: Array
    is_found: Array
    evaluations: Array


def search(
    value_and_grad: Callable[[Array], tuple[Array, Array]], x: Array, start: Point, direction: Array, trial: Array, limit: int
) -> Any:
    """Return the point found, whether it has what it should, and the evaluations.

    Args:
        value_and_grad: the function that is minimised, and its gradient.
        x: where the line begins.
        start: the point of step 0.
        direction: the line's direction, along which the slope is negative.
        trial: the first step to try.
        limit: the largest number of evaluations.
    """
    noise = 10 * float(dtypes.finfo(x.dtype).eps) * abs(start.value)

    def shrink(state: _Search) -> _Search:
        value, gradient = value_and_grad(x + state.trial * direction)
        tried = Point(state.trial, value, gradient, gradient @ direction)
        is_flat = abs(tried.slope) <= -_CURVATURE * start.slope
        decreases = (value <= start.value + _DECREASE * tried.step * start.slope) & (value < state.best.value)
        decreases = decreases | (is_flat & (value <= start.value + noise))
        passes_minimum = tried.slope * (state.end - state.best.step) >= 0
        # The interval ends at the trial, if that is too long; at the best step, if the minimum lies between that and the trial.
        end = vnp.where(decreases, vnp.where(passes_minimum, state.best.step, state.end), tried.step)
        end_value = vnp.where(decreases, vnp.where(passes_minimum, state.best.value, state.end_value), value)
        best = Point(*[vnp.where(decreases, new, old) for new, old in zip(tried, state.best, strict=True)])
        return _Search(_next_trial(best, end, end_value), best, end, end_value, decreases & is_flat, state.evaluations + 1)

    nowhere = vnp.asarray(vnp.inf, x.dtype)
    state = _Search(trial.astype(x.dtype), start, nowhere, nowhere, vnp.asarray(False), vnp.zeros((), np.int32))
    state = lax.while_loop(lambda s: ~s.is_found & (s.evaluations < limit), shrink, state)
    return state.best, state.is_found, state.evaluations


def _next_trial(best: Point, end: Array, end_value: Array) -> Array:
    """Return the minimum of the parabola through both ends, unless it is near one.

    Then, and where no value is known, it is the middle; without an interval, twice the step.
    """
    is_open = vnp.isinf(end)
    width = vnp.where(is_open, 0, end - best.step)
    bend = 2 * (end_value - best.value - best.slope * width)
    share = vnp.where(bend > 0, -best.slope * width / vnp.where(bend > 0, bend, 1), 0.5)
    share = vnp.where((share > 0.1) & (share < 0.9), share, 0.5)
    return vnp.where(is_open, 2 * best.step, best.step + share * width)
