"""Quasi-Newton methods: BFGS, and L-BFGS, which keeps the last steps alone.

(Nocedal and Wright, 2006, algorithms 6.1 and 7.4.)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from volta_fn import lax
from volta_fn import numpy as vnp
from volta_fn.core.array import Array
from volta_fn.scipy.optimize.line_search import Point, search
from volta_fn.transforms.grad import value_and_grad


class Approximation(NamedTuple):
    """How the inverse of the Hessian is approximated."""

    #: The approximation of the first iteration, given x.
    start: Callable[[Array], Any]
    #: The approximation times a gradient.
    apply: Callable[[Any, Array], Array]
    #: The next approximation, from the step and the change of the gradient, whose product is positive.
    update: Callable[[Any, Array, Array], Any]


class Options(NamedTuple):
    """When to stop: iterations, evaluations, the gradient's norm, the value's change."""

    maxiter: Any
    maxfun: Any
    norm: Any
    gtol: Any
    ftol: Any
    line_search_maxiter: int


class State(NamedTuple):
    """What an iteration passes on to the next."""

    x: Array
    value: Array
    gradient: Array
    inverse: Any
    converged: Array
    failed: Array
    iterations: Array
    evaluations: Array


def minimized(function: Callable[[Array], Any], x0: Array, method: Approximation, options: Options) -> State:
    """Minimise a function of a vector."""
    evaluate = value_and_grad(function)

    def is_small(gradient: Array) -> Array:
        return vnp.linalg.norm(gradient, ord=options.norm) < options.gtol

    def goes_on(state: State) -> Array:
        within = (state.iterations < options.maxiter) & (state.evaluations < options.maxfun)
        return ~state.converged & ~state.failed & within

    def iterate(state: State) -> State:
        direction = -method.apply(state.inverse, state.gradient)
        start = Point(vnp.zeros_like(state.value), state.value, state.gradient, state.gradient @ direction)
        length = vnp.sqrt(state.gradient @ state.gradient)
        trial = vnp.where(state.iterations == 0, vnp.minimum(1, 1 / length), 1)
        found, is_found, evaluations = search(evaluate, state.x, start, direction, trial, options.line_search_maxiter)
        step, change = found.step * direction, found.gradient - state.gradient
        after = method.update(state.inverse, step, change)
        is_update = step @ change > 0
        inverse = tuple([vnp.where(is_update, new, old) for new, old in zip(after, state.inverse, strict=True)])
        gain = state.value - found.value
        scale = vnp.maximum(vnp.maximum(abs(state.value), abs(found.value)), 1)
        converged = is_small(found.gradient) | (is_found & (gain <= options.ftol * scale))
        x, total = state.x + step, state.evaluations + evaluations
        return State(x, found.value, found.gradient, inverse, converged, ~is_found & ~converged, state.iterations + 1, total)

    value, gradient = evaluate(x0)
    nothing = vnp.zeros((), np.int32)
    start = State(x0, value, gradient, method.start(x0), is_small(gradient), vnp.asarray(False), nothing, nothing + 1)
    return lax.while_loop(goes_on, iterate, start)


def _updated_inverse(state: Any, step: Array, change: Array) -> tuple[Array, Array]:
    """Update the matrix; the first one is scaled to the first step's curvature.

    Without that (Nocedal and Wright, equation 6.20) a large curvature is lost in the rounding of the identity.
    """
    inverse, is_first = state
    product = step @ change
    square = change @ change
    inverse = inverse * vnp.where(is_first & (product > 0), product / vnp.where(square == 0, 1, square), 1)
    rho = 1 / vnp.where(product == 0, 1, product)
    left = vnp.eye(step.size, dtype=step.dtype) - rho * step[:, None] * change
    return left @ inverse @ left.T + rho * step[:, None] * step, vnp.zeros_like(is_first)


#: The approximation is a matrix.
bfgs = Approximation(lambda x: (vnp.eye(x.size, dtype=x.dtype), vnp.asarray(True)), lambda state, g: state[0] @ g, _updated_inverse)


def limited_memory(count: int) -> Approximation:
    """Approximate by the last `count` steps and changes of the gradient."""

    def start(x: Array) -> tuple[Array, Array, Array]:
        nothing = vnp.zeros((count, x.size), x.dtype)
        return nothing, nothing, vnp.ones((), x.dtype)

    def update(state: Any, step: Array, change: Array) -> tuple[Array, Array, Array]:
        steps, changes, _ = state
        scale = step @ change / vnp.where(change @ change == 0, 1, change @ change)
        return vnp.roll(steps, -1, 0).at[-1].set(step), vnp.roll(changes, -1, 0).at[-1].set(change), scale

    return Approximation(start, _two_loops, update)


def _two_loops(state: Any, gradient: Array) -> Array:
    """Multiply by the approximation; the last row is the newest, rows of 0 are none."""
    steps, changes, scale = state
    products = (steps * changes).sum(1)
    rho = vnp.where(products > 0, 1 / vnp.where(products > 0, products, 1), 0)

    def backward(q: Array, row: Any) -> tuple[Array, Array]:
        step, change, r = row
        alpha = r * (step @ q)
        return q - alpha * change, alpha

    def forward(q: Array, row: Any) -> tuple[Array, None]:
        step, change, r, alpha = row
        return q + step * (alpha - r * (change @ q)), None

    q, alphas = lax.scan(backward, gradient, (steps, changes, rho), reverse=True)
    return lax.scan(forward, scale * q, (steps, changes, rho, alphas))[0]
