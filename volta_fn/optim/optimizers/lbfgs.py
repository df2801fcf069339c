"""L-BFGS (Liu and Nocedal, 1989).

Steps are scaled by an estimate of the inverse Hessian from the last few steps.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from volta_fn import lax, tree
from volta_fn import numpy as vnp
from volta_fn.core.array import Array, as_value
from volta_fn.errors import ArgumentError
from volta_fn.optim.base import (
    Counter,
    GradientTransformation,
    GradientTransformationExtraArgs,
    Params,
    ScalarOrSchedule,
    Updates,
    identity,
    require_params,
)
from volta_fn.optim.line_search.zoom import scale_by_zoom_linesearch
from volta_fn.optim.numerics import global_norm, real_dot, safe_increment, sum_of_squares
from volta_fn.optim.transforms.scaling import scale, scale_by_learning_rate
from volta_fn.optim.tree_rules import count_zero, factor, map_leaves, scaled_by, tree_cast_like, widened, widest_real, zeros_like
from volta_fn.optim.wrappers.chain import chain

__all__ = ["ScaleByLBFGSState", "lbfgs", "scale_by_lbfgs"]


class ScaleByLBFGSState(NamedTuple):
    """The step counter (int32), last parameters and gradients, stacked differences.

    The newest difference is last. `weights_memory` holds one over the inner products of the differences of parameters and of gradients.
    """

    count: Counter
    params: Params
    updates: Updates
    diff_params_memory: Any
    diff_updates_memory: Any
    weights_memory: Array


def scale_by_lbfgs(memory_size: int = 10, scale_init_precond: bool = True) -> GradientTransformation:
    """Multiply gradients by L-BFGS's estimate of the inverse Hessian.

    Needs the parameters.

    Args:
        memory_size: the number of steps remembered.
        scale_init_precond: whether the estimate starts from the multiple of the identity that fits the last step, instead of the
            identity. Before there is a last step, the multiple makes the norm of the first step at most 1.

    Raises `ArgumentError` for a memory of less than one step.
    """
    if memory_size < 1:
        raise ArgumentError(f"scale_by_lbfgs: memory_size must be at least 1, got {memory_size}")

    def init(params: Any) -> ScaleByLBFGSState:
        wide = tree.map(lambda p: widened(as_value(p)), params)
        stack = tree.map(lambda p: vnp.zeros((memory_size, *p.shape), p.dtype), wide)
        weights = vnp.zeros(memory_size, widest_real(params))
        return ScaleByLBFGSState(count_zero(), zeros_like(params), zeros_like(params), stack, stack, weights)

    def update(updates: Any, state: Any, params: Any = None, **extra_args: Any) -> tuple[Any, Any]:
        params = tree_cast_like(require_params("scale_by_lbfgs", params), state.params)
        updates = tree_cast_like(updates, state.updates)
        started = state.count > 0
        steps, changes = (_differences(new, old, started) for new, old in ((params, state.params), (updates, state.updates)))
        product = real_dot(changes, steps)
        weight = vnp.where(product == 0, 0, 1 / vnp.where(product == 0, 1, product))
        old = (state.diff_params_memory, state.diff_updates_memory, state.weights_memory)
        memory = tree.map(_remember, old, (steps, changes, weight))
        initial = _initial_scale(updates, changes, product, started) if scale_init_precond else vnp.ones_like(product)
        new_updates = tree_cast_like(_two_loops(updates, memory, initial), updates)
        return new_updates, ScaleByLBFGSState(safe_increment(state.count), params, updates, *memory)

    return GradientTransformationExtraArgs(init, update)


def _differences(new: Any, old: Any, started: Array) -> Any:
    """Return new minus old, in float32 at least; zeros before the first step."""
    return tree.map(lambda a, b: vnp.where(started, widened(as_value(a)) - widened(b), 0), new, old)


def _remember(stack: Array, newest: Array) -> Array:
    return vnp.concatenate([stack[1:], newest[None].astype(stack.dtype)])


def _initial_scale(updates: Updates, changes: Updates, product: Array, started: Array) -> Array:
    squares = sum_of_squares(changes)
    fitting = vnp.where(squares > 0, product / vnp.where(squares > 0, squares, 1), 1)
    return vnp.where(started, fitting, vnp.minimum(1, 1 / global_norm(updates)))


def _two_loops(vector: Any, memory: tuple[Any, Any, Array], initial: Array) -> Any:
    """Multiply a vector by the estimated inverse Hessian."""
    vector = tree.map(lambda v: widened(as_value(v)), vector)

    def backward(v: Any, remembered: Any) -> tuple[Any, Array]:
        step, change, weight = remembered
        alpha = weight * real_dot(step, v)
        return _plus(v, -alpha, change), alpha

    def forward(v: Any, remembered: Any) -> tuple[Any, None]:
        step, change, weight, alpha = remembered
        return _plus(v, alpha - weight * real_dot(change, v), step), None

    vector, alphas = lax.scan(backward, vector, memory, reverse=True)
    return lax.scan(forward, scaled_by(initial, vector), (*memory, alphas))[0]


def _plus(v: Any, number: Array, direction: Any) -> Any:
    return map_leaves(lambda a, b: a + factor(number, a) * b, v, direction)


_ZOOM = scale_by_zoom_linesearch(max_linesearch_steps=20, initial_guess_strategy="one")


def lbfgs(
    learning_rate: ScalarOrSchedule | None = None,
    memory_size: int = 10,
    scale_init_precond: bool = True,
    linesearch: GradientTransformation | None = _ZOOM,
) -> GradientTransformationExtraArgs:
    """Create L-BFGS with a line search, for losses without noise.

    With a line search `update` needs ``value=``, ``grad=`` and ``value_fn=`` (see `scale_by_zoom_linesearch`, the default, and
    `scale_by_backtracking_linesearch`); `value_and_grad_from_state` avoids computing loss and gradient twice.

    Args:
        learning_rate: multiplies the updates before the line search; 1 if None.
        memory_size, scale_init_precond: those of `scale_by_lbfgs`.
        linesearch: a transformation, None for no line search.

    >>> rosenbrock = lambda w: (1 - w[0]) ** 2 + 100 * (w[1] - w[0] ** 2) ** 2
    >>> optimizer = optim.lbfgs()
    >>> @vf.jit
    ... def step(w, state):
    ...     value, grad = optim.value_and_grad_from_state(rosenbrock)(w, state=state)
    ...     updates, state = optimizer.update(grad, state, w, value=value, grad=grad, value_fn=rosenbrock)
    ...     return optim.apply_updates(w, updates), state
    >>> w = vf.numpy.array([-1.2, 1.0])
    >>> state = optimizer.init(w)
    >>> for _ in range(40):
    ...     w, state = step(w, state)
    >>> w.round(2)
    Array([1., 1.], dtype=float32)
    """
    descend = scale(-1.0) if learning_rate is None else scale_by_learning_rate(learning_rate)
    return chain(scale_by_lbfgs(memory_size, scale_init_precond), descend, identity() if linesearch is None else linesearch)
