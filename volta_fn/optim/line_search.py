"""Line searches: step sizes with a sufficiently low loss."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np

from volta_fn import lax, tree
from volta_fn import numpy as vnp
from volta_fn.core.arrays.array import Array, as_value
from volta_fn.core.aval import check_option
from volta_fn.errors import ArgumentError, ArgumentTypeError
from volta_fn.optim.base import GradientTransformationExtraArgs, OptState, Params, Updates, require_params
from volta_fn.optim.numerics import (
    add_scaled,
    branch,
    count_zero,
    real_dot,
    scaled_by,
    tree_cast_like,
    widest_real,
    zeros_like,
)
from volta_fn.optim.tree_utils import tree_where
from volta_fn.source import signature
from volta_fn.transforms.grad import grad as gradient_of
from volta_fn.transforms.grad import value_and_grad

__all__ = [
    "BacktrackingLinesearchInfo", "ScaleByBacktrackingLinesearchState", "ScaleByZoomLinesearchState", "ZoomLinesearchInfo",
    "scale_by_backtracking_linesearch", "scale_by_zoom_linesearch", "value_and_grad_from_state",
]  # fmt: skip


# The loss along a line, and the reuse of losses and gradients from a search.
#
# The *slope* is the derivative of the loss at ``params + t * updates`` with respect to the step size t.


def bound_value_fn(name: str, value_fn: Callable[..., Any], extra_args: dict[str, Any]) -> Callable[[Params], Array]:
    """Bind extra arguments of `update` to the loss; `ArgumentTypeError` for others."""
    parameters = signature(value_fn).parameters
    if not any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values()):
        unknown = sorted(set(extra_args) - set(parameters))
        if unknown:
            raise ArgumentTypeError(f"{name}: value_fn does not take the extra arguments {unknown} that update was given")
    return lambda params: as_value(value_fn(params, **extra_args))


def slope(grad: Updates, updates: Updates) -> Array:
    """Return the derivative of the loss along the updates, which may be complex."""
    return real_dot(tree.map(vnp.conj, grad), updates)


def value_and_grad_from_state(value_fn: Callable[..., Any]) -> Callable[..., tuple[Array, Updates]]:
    """Return ``value_and_grad(value_fn)`` that reuses the results of a line search.

    The function takes the optimizer's state as ``state=``. The state must be that of a chain with one line search that keeps the gradient.
    Loss and gradient are computed only before the first step and after a failed search.

    >>> loss = lambda w: vf.numpy.sum((w - 3.0) ** 2)
    >>> optimizer = optim.lbfgs()
    >>> w = vf.numpy.zeros(2)
    >>> state = optimizer.init(w)
    >>> value, grad = optim.value_and_grad_from_state(loss)(w, state=state)
    >>> updates, state = optimizer.update(grad, state, w, value=value, grad=grad, value_fn=loss)
    >>> w = optim.apply_updates(w, updates)
    >>> bool(optim.value_and_grad_from_state(loss)(w, state=state)[0] < value)
    True

    Raises `ArgumentError` if the state has no loss and gradient, or several.
    """

    def from_state(params: Params, *args: Any, state: OptState, **kwargs: Any) -> tuple[Array, Updates]:
        value, grad = (_only_field(state, name) for name in ("value", "grad"))

        def compute() -> tuple[Array, Updates]:
            new_value, new_grad = value_and_grad(value_fn)(params, *args, **kwargs)
            return vnp.asarray(new_value, value.dtype), new_grad

        return branch(vnp.isfinite(value), lambda: (value, grad), compute)

    return from_state


def _only_field(state: OptState, name: str) -> Any:
    fields = _fields(state, name)
    if len(fields) != 1 or fields[0] is None:
        raise ArgumentError(
            f"value_and_grad_from_state: one {name!r} must be in the optimizer's state, found {sum(f is not None for f in fields)}; "
            "use it with one line search, which keeps the gradient (store_grad=True for backtracking)"
        )
    return fields[0]


def _fields(node: Any, name: str) -> list[Any]:
    """Return the values of all fields of that name in the named tuples of a state."""
    values, children = [], node if isinstance(node, (tuple, list)) else node.values() if isinstance(node, dict) else ()
    if isinstance(node, tuple) and hasattr(node, "_fields") and name in node._fields:
        values = [getattr(node, name)]
    return values + [x for child in children for x in _fields(child, name)]


# A line search that shortens the step until the loss decreases (Armijo, 1966).


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


class _BacktrackingSearch(NamedTuple):
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

    def search(self, loss_after: Callable[[Array], Any], start: Array, descent: Array, first: Array) -> _BacktrackingSearch:
        """Shorten the step size from `first` until the loss is low enough."""
        dtype = start.dtype

        def unfinished(search: _BacktrackingSearch) -> Array:
            return ~(search.error <= self.atol) & (search.tried <= self.max_backtracking_steps)

        def attempt(search: _BacktrackingSearch) -> _BacktrackingSearch:
            step = vnp.where(search.tried > 0, self.decrease_factor * search.step, search.step)
            reached = vnp.asarray(loss_after(step), dtype)
            error = _error(reached - (1 + self.rtol) * start - step * self.slope_rtol * descent)
            return _BacktrackingSearch(step.astype(dtype), reached, error.astype(dtype), search.tried + 1)

        return lax.while_loop(unfinished, attempt, _BacktrackingSearch(first, start, vnp.asarray(np.inf, dtype), count_zero()))


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
        result = decrease.search(lambda step: loss(add_scaled(params, step, updates)), start, descent, first)
        step = vnp.where(vnp.isinf(result.error), vnp.zeros_like(result.step), result.step)
        new_grad = gradient_of(loss)(add_scaled(params, step, updates)) if store_grad else None
        info = BacktrackingLinesearchInfo(result.tried, result.error)
        return scaled_by(step, updates), ScaleByBacktrackingLinesearchState(step, result.value, new_grad, info)

    return GradientTransformationExtraArgs(init, update)


# A line search for the strong Wolfe conditions.
#
# These are a sufficient decrease of the loss and a sufficiently flat slope. First step sizes grow until an interval is known to contain a
# good one, the *bracket*; then interpolation narrows the bracket (Nocedal and Wright, Numerical Optimization, algorithms 3.5 and 3.6; the
# approximate decrease is from Hager and Zhang, 2006).


class _Point(NamedTuple):
    """A step size, the loss there and its slope."""

    step: Array
    value: Array
    slope: Array


class _Best(NamedTuple):
    """The best step size so far with a low enough loss, its loss and its gradient."""

    step: Array
    value: Array
    grad: Updates


class _ZoomSearch(NamedTuple):
    """The search in progress.

    `low` is the end of the bracket with the lower loss, `high` the other, `third` a point outside; `point` is the last one tried.
    """

    tried: Array
    point: _Point
    grad: Updates
    low: _Point
    high: _Point
    third: _Point
    best: _Best
    decrease_error: Array
    curvature_error: Array
    bracketed: Array
    done: Array
    failed: Array

    def result(self) -> _Best:
        """Return the last point, or the best one if the last has failed."""
        fall_back = self.failed & ((self.best.step > 0) | vnp.isinf(self.decrease_error))
        return tree_where(fall_back, self.best, _Best(self.point.step, self.point.value, self.grad))


class _WolfeConditions(NamedTuple):
    """The settings of `scale_by_zoom_linesearch`."""

    max_linesearch_steps: int
    max_learning_rate: Any
    tol: Any
    increase_factor: Any
    slope_rtol: Any
    curv_rtol: Any
    approx_dec_rtol: Any
    stepsize_precision: Any

    def errors(self, new: _Point, start: _Point) -> tuple[Array, Array]:
        """Return by how much a point violates the two Wolfe conditions."""
        decrease = new.value - start.value - self.slope_rtol * new.step * start.slope
        if self.approx_dec_rtol is not None:
            flat = new.slope - (2 * self.slope_rtol - 1) * start.slope
            close = new.value - start.value - self.approx_dec_rtol * vnp.abs(start.value)
            decrease = vnp.minimum(vnp.maximum(flat, close), decrease)
        curvature = vnp.abs(new.slope) - self.curv_rtol * vnp.abs(start.slope)
        return _error(decrease), _error(curvature)

    def extended(self, search: _ZoomSearch, guess: Array) -> tuple[Array, Array]:
        """Return the next step size before there is a bracket, and whether it is maximal."""
        step = vnp.where(search.tried == 0, guess, self.increase_factor * search.point.step)
        if self.max_learning_rate is None:
            return step, vnp.array(False)
        return vnp.minimum(step, self.max_learning_rate), step >= self.max_learning_rate

    def advance(self, search: _ZoomSearch, new: _Point, grad: Updates, start: _Point, at_limit: Array) -> _ZoomSearch:
        """Return the search after a point has been tried."""
        decrease, curvature = self.errors(new, start)
        good = vnp.maximum(decrease, curvature) <= self.tol
        better = (decrease <= self.tol) & (~search.bracketed | (new.value < search.best.value))
        best = tree_where(better, _Best(new.step, new.value, grad), search.best)
        low, high, third, has_bracket = tree_where(
            search.bracketed, (*_narrowed(search, new, decrease), search.bracketed), _bracket(search, new, decrease)
        )
        bracketed = has_bracket | (good & ~search.bracketed)
        done = good | (at_limit & ~bracketed)
        exhausted = search.tried + 1 >= self.max_linesearch_steps
        tiny = search.bracketed & (vnp.abs(search.high.step - search.low.step) <= self.stepsize_precision) & (best.step > 0)
        failed = (exhausted | tiny) & ~done
        return _ZoomSearch(search.tried + 1, new, grad, low, high, third, best, decrease, curvature, bracketed, done, failed)


def _error(excess: Array) -> Array:
    return vnp.where(vnp.isnan(excess), np.inf, vnp.maximum(excess, 0))


def _bracket(search: _ZoomSearch, new: _Point, decrease_error: Array) -> tuple[_Point, _Point, _Point, Array]:
    """Return the interval from the last to the new point, and whether it is a bracket."""
    last = search.point
    above = (decrease_error > 0) | ((new.value >= last.value) & (search.tried > 0))
    rising = (new.slope >= 0) & ~above
    low, high = tree_where(rising, (new, last), (last, new))
    return low, high, low, above | rising


def _narrowed(search: _ZoomSearch, new: _Point, decrease_error: Array) -> tuple[_Point, _Point, _Point]:
    """Return the bracket narrowed by a point inside, and the end that was cut off."""
    above = (decrease_error > 0) | (new.value >= search.low.value)
    reversed_ = (new.slope * (search.high.step - search.low.step) >= 0) & ~above
    high = tree_where(above, new, tree_where(reversed_, search.low, search.high))
    low = tree_where(above, search.low, new)
    return low, high, tree_where(above | reversed_, search.high, search.low)


def _interpolated(search: _ZoomSearch) -> Array:
    """Return the minimum of a cubic, else of a parabola, else the bracket's middle.

    A minimum that is too close to an end is discarded.
    """
    low, high = search.low, search.high
    length = vnp.abs(high.step - low.step)
    left, right = vnp.minimum(low.step, high.step), vnp.maximum(low.step, high.step)

    def inside(step: Array, margin: float) -> Array:
        return (step > left + margin * length) & (step < right - margin * length)

    cubic, parabola = _cubic_minimum(low, high, search.third), _parabola_minimum(low, high)
    rest = vnp.where(inside(parabola, 0.1), parabola, (low.step + high.step) / 2)
    return vnp.where(inside(cubic, 0.2), cubic, rest)


def _cubic_minimum(a: _Point, b: _Point, c: _Point) -> Array:
    """Return the minimum of a cubic through three points, with the slope of the first."""
    db, dc = b.step - a.step, c.step - a.step
    rb, rc = b.value - a.value - a.slope * db, c.value - a.value - a.slope * dc
    scale = (db * dc) ** 2 * (db - dc)
    third = (dc**2 * rb - db**2 * rc) / scale
    second = (db**3 * rc - dc**3 * rb) / scale
    return a.step + (vnp.sqrt(second * second - 3 * third * a.slope) - second) / (3 * third)


def _parabola_minimum(a: _Point, b: _Point) -> Array:
    """Return the minimum of a parabola by two points and the slope at the first."""
    db = b.step - a.step
    return a.step - a.slope / (2 * ((b.value - a.value - a.slope * db) / db**2))


class ZoomLinesearchInfo(NamedTuple):
    """The number of step sizes tried (int32), and the errors of the last one."""

    num_linesearch_steps: Array
    decrease_error: Array
    curvature_error: Array


class ScaleByZoomLinesearchState(NamedTuple):
    """The step size found, the loss and the gradient there, and data on the search."""

    learning_rate: Array
    value: Array
    grad: Updates
    info: ZoomLinesearchInfo


def scale_by_zoom_linesearch(
    max_linesearch_steps: int,
    max_learning_rate: Any = None,
    tol: Any = 0.0,
    increase_factor: Any = 2.0,
    slope_rtol: Any = 1e-4,
    curv_rtol: Any = 0.9,
    approx_dec_rtol: Any | None = 1e-6,
    stepsize_precision: Any = 1e-5,
    initial_guess_strategy: Literal["keep", "one"] = "keep",
) -> GradientTransformationExtraArgs:
    """Multiply updates by a step size that meets the strong Wolfe conditions.

    `update` needs the parameters, ``value=`` the loss, ``grad=`` its gradient and ``value_fn=`` the function that computes it, which gets
    other extra arguments. If the search fails, the best step size that lowered the loss enough is used.

    Args:
        max_linesearch_steps: the maximum number of step sizes tried.
        max_learning_rate: the greatest step size, None for no limit.
        tol: the tolerated error in the conditions.
        increase_factor: multiplies step sizes while there is no bracket.
        slope_rtol: the fraction of the decrease predicted by the slope that is enough.
        curv_rtol: the fraction of the slope that may remain.
        approx_dec_rtol: by how much, relative to itself, the loss may rise where rounding hides a decrease; None for not at all.
        stepsize_precision: the shortest bracket.
        initial_guess_strategy: the step size to try first: the last one found ("keep") or 1 ("one").

    Raises `ArgumentError` for an unknown strategy.
    """
    check_option(initial_guess_strategy, "scale_by_zoom_linesearch: initial_guess_strategy", ("keep", "one"))
    conditions = _WolfeConditions(
        max_linesearch_steps, max_learning_rate, tol, increase_factor, slope_rtol, curv_rtol, approx_dec_rtol, stepsize_precision
    )

    def init(params: Any) -> ScaleByZoomLinesearchState:
        dtype = widest_real(params)
        infinite = vnp.asarray(np.inf, dtype)
        info = ZoomLinesearchInfo(count_zero(), infinite, infinite)
        return ScaleByZoomLinesearchState(vnp.ones((), dtype), infinite, zeros_like(params), info)

    def update(
        updates: Any, state: Any, params: Any = None, *, value: Any, grad: Any, value_fn: Callable[..., Any], **extra_args: Any
    ) -> tuple[Any, Any]:
        params = require_params("scale_by_zoom_linesearch", params)
        loss = bound_value_fn("scale_by_zoom_linesearch", value_fn, extra_args)
        guess = state.learning_rate if initial_guess_strategy == "keep" else vnp.ones_like(state.learning_rate)
        search = _search(conditions, loss, params, updates, vnp.asarray(value, guess.dtype), grad, guess)
        step, new_value, new_grad = search.result()
        info = ZoomLinesearchInfo(search.tried, search.decrease_error, search.curvature_error)
        return scaled_by(step, updates), ScaleByZoomLinesearchState(step, new_value, new_grad, info)

    return GradientTransformationExtraArgs(init, update)


def _search(
    conditions: _WolfeConditions, loss: Any, params: Params, updates: Updates, value: Array, grad: Updates, guess: Array
) -> _ZoomSearch:
    """Search along ``params + t * updates``, given loss and gradient at t = 0."""
    dtype = guess.dtype
    start = _Point(vnp.zeros((), dtype), value, slope(grad, updates).astype(dtype))

    def unfinished(search: _ZoomSearch) -> Array:
        return ~(search.done | search.failed)

    def attempt(search: _ZoomSearch) -> _ZoomSearch:
        longer, at_limit = conditions.extended(search, guess)
        step = vnp.where(search.bracketed, _interpolated(search), longer).astype(dtype)
        reached, new_grad = value_and_grad(loss)(add_scaled(params, step, updates))
        new = _Point(step, vnp.asarray(reached, dtype), slope(new_grad, updates).astype(dtype))
        return tree_cast_like(conditions.advance(search, new, new_grad, start, at_limit), search)

    infinite, no = vnp.asarray(np.inf, dtype), vnp.array(False)
    best = _Best(start.step, value, grad)
    return lax.while_loop(
        unfinished, attempt, _ZoomSearch(count_zero(), start, grad, start, start, start, best, infinite, infinite, no, no, no)
    )
