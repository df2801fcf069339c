"""A line search that shortens the step until the loss decreases (Armijo, 1966)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from volta_fn import lax
from volta_fn import numpy as vnp
from volta_fn.core.array import Array
from volta_fn.optim.base import GradientTransformationExtraArgs, Updates, require_params
from volta_fn.optim.line_search.common import along, bound_value_fn, slope
from volta_fn.optim.tree_rules import count_zero, scaled_by, widest_real, zeros_like
from volta_fn.transforms.grad import grad as gradient_of

__all__ = ["BacktrackingLinesearchInfo", "ScaleByBacktrackingLinesearchState", "scale_by_backtracking_linesearch"]


class BacktrackingLinesearchInfo(NamedTuple):
    """The number of step sizes tried (int32), and the excess of the last one's loss."""

    num_linesearch_steps: Array
    decrease_error: Array


class ScaleByBacktrackingLinesearchState(NamedTuple):
    """The step size found, its loss, its gradient if kept, and data on the search."""

    learning_rate: Array
    value: Array
    grad: Updates | None
    info: BacktrackingLinesearchInfo


class _Search(NamedTuple):
    """A step size, its loss, the loss's excess, and the number of trials (int32)."""

    step: Array
    value: Array
    error: Array
    tried: Array


class _Decrease(NamedTuple):
    """The settings of `scale_by_backtracking_linesearch` that determine the step size."""

    max_backtracking_steps: int
    slope_rtol: Any
    decrease_factor: Any
    atol: Any
    rtol: Any

    def search(self, loss_after: Callable[[Array], Any], start: Array, descent: Array, first: Array) -> _Search:
        """Shorten the step size from `first` until the loss is low enough."""
        dtype = start.dtype

        def unfinished(search: _Search) -> Array:
            return ~(search.error <= self.atol) & (search.tried <= self.max_backtracking_steps)

        def attempt(search: _Search) -> _Search:
            step = vnp.where(search.tried > 0, self.decrease_factor * search.step, search.step)
            reached = vnp.asarray(loss_after(step), dtype)
            excess = reached - (1 + self.rtol) * start - step * self.slope_rtol * descent
            error = vnp.where(vnp.isnan(excess), np.inf, vnp.maximum(excess, 0))
            return _Search(step.astype(dtype), reached, error.astype(dtype), search.tried + 1)

        return lax.while_loop(unfinished, attempt, _Search(first, start, vnp.asarray(np.inf, dtype), count_zero()))


def scale_by_backtracking_linesearch(
    max_backtracking_steps: int,
    slope_rtol: Any = 1e-4,
    decrease_factor: Any = 0.8,
    increase_factor: Any = 1.5,
    max_learning_rate: Any = 1.0,
    atol: Any = 0.0,
    rtol: Any = 0.0,
    store_grad: bool = False,
) -> GradientTransformationExtraArgs:
    """Multiply updates by a step size t that decreases the loss enough.

    That is ``loss(params + t * updates) <= (1 + rtol) * loss(params) + slope_rtol * t * slope + atol``. `update` needs the parameters,
    ``value=`` the loss, ``grad=`` its gradient and ``value_fn=`` the function that computes it, which gets other extra arguments.

    Args:
        max_backtracking_steps: how often the step size is shortened at most; the last one is used, unless its loss is infinite or NaN.
        slope_rtol: the fraction of the decrease predicted by the slope that is enough.
        decrease_factor: multiplies the step size to shorten it.
        increase_factor: multiplies the previous search's step size to get the first one, up to `max_learning_rate`.
        max_learning_rate: see `increase_factor`.
        atol, rtol: the tolerated excess.
        store_grad: whether to keep the gradient for `value_and_grad_from_state`.

    >>> loss = lambda w: vf.numpy.sum(w**2)
    >>> optimizer = optim.chain(optim.sgd(1.0), optim.scale_by_backtracking_linesearch(max_backtracking_steps=15))
    >>> w = vf.numpy.array([1.0])
    >>> value, grad = vf.value_and_grad(loss)(w)
    >>> updates, state = optimizer.update(grad, optimizer.init(w), w, value=value, grad=grad, value_fn=loss)
    >>> updates.round(3), state[1].info.num_linesearch_steps
    (Array([-1.6], dtype=float32), Array(2, dtype=int32))
    """
    decrease = _Decrease(max_backtracking_steps, slope_rtol, decrease_factor, atol, rtol)

    def init(params: Any) -> ScaleByBacktrackingLinesearchState:
        dtype = widest_real(params)
        infinite = vnp.asarray(np.inf, dtype)
        grad = zeros_like(params) if store_grad else None
        return ScaleByBacktrackingLinesearchState(vnp.ones((), dtype), infinite, grad, BacktrackingLinesearchInfo(count_zero(), infinite))

    def update(
        updates: Any, state: Any, params: Any = None, *, value: Any, grad: Any, value_fn: Callable[..., Any], **extra_args: Any
    ) -> tuple[Any, Any]:
        params = require_params("scale_by_backtracking_linesearch", params)
        loss = bound_value_fn("scale_by_backtracking_linesearch", value_fn, extra_args)
        dtype = state.value.dtype
        start, descent = vnp.asarray(value, dtype), slope(grad, updates).astype(dtype)
        first = vnp.asarray(vnp.minimum(increase_factor * state.learning_rate, max_learning_rate), dtype)
        found = decrease.search(lambda step: loss(along(params, step, updates)), start, descent, first)
        step = vnp.where(vnp.isinf(found.error), vnp.zeros_like(found.step), found.step)
        new_grad = gradient_of(loss)(along(params, step, updates)) if store_grad else None
        info = BacktrackingLinesearchInfo(found.tried, found.error)
        return scaled_by(step, updates), ScaleByBacktrackingLinesearchState(step, found.value, new_grad, info)

    return GradientTransformationExtraArgs(init, update)
