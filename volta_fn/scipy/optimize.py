"""Minimisation of functions: names of `scipy.optimize`.

`minimize` is the interface of BFGS and L-BFGS, which share a line search.

>>> import volta_fn as vf
>>> result = vf.scipy.optimize.minimize(lambda x: ((x - 1) ** 2).sum(), vf.numpy.zeros(2), method="BFGS")
>>> result.x.round(4)
Array([1., 1.], dtype=float32)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from volta_fn import dtypes, lax
from volta_fn import numpy as vnp
from volta_fn.core.arrays.array import Array
from volta_fn.core.staging import check_callable
from volta_fn.errors import ArgumentError, ArgumentTypeError, ShapeError
from volta_fn.numpy.arguments import is_complex, promote_inexact
from volta_fn.transforms.grad import value_and_grad

__all__ = ["OptimizeResults", "minimize"]


# A step along a line that satisfies the strong Wolfe conditions.
#
# The search keeps an interval from the best step so far to one that is too long, and shrinks it (Nocedal and Wright, 2006, algorithms
# 3.5 and 3.6). Where rounding hides the decrease, the approximate conditions of Hager and Zhang (2005) serve.

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
    """Return the minimum of the parabola through both ends of the interval.

    If it is near an end, or the parabola has none, the result is the middle. Without an interval the step is doubled.
    """
    is_open = vnp.isinf(end)
    width = vnp.where(is_open, 0, end - best.step)
    bend = 2 * (end_value - best.value - best.slope * width)
    share = vnp.where(bend > 0, -best.slope * width / vnp.where(bend > 0, bend, 1), 0.5)
    share = vnp.where((share > 0.1) & (share < 0.9), share, 0.5)
    return vnp.where(is_open, 2 * best.step, best.step + share * width)


# Quasi-Newton methods: BFGS, and L-BFGS, which keeps the last steps alone.
#
# (Nocedal and Wright, 2006, algorithms 6.1 and 7.4.)


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
    """The carry of the iteration."""

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

    def continues(state: State) -> Array:
        within = (state.iterations < options.maxiter) & (state.evaluations < options.maxfun)
        return ~state.converged & ~state.failed & within

    def iterate(state: State) -> State:
        direction = -method.apply(state.inverse, state.gradient)
        start = Point(vnp.zeros_like(state.value), state.value, state.gradient, state.gradient @ direction)
        length = vnp.sqrt(state.gradient @ state.gradient)
        trial = vnp.where(state.iterations == 0, vnp.minimum(1, 1 / length), 1)
        point, is_found, evaluations = search(evaluate, state.x, start, direction, trial, options.line_search_maxiter)
        step, change = point.step * direction, point.gradient - state.gradient
        after = method.update(state.inverse, step, change)
        is_update = step @ change > 0
        inverse = tuple([vnp.where(is_update, new, old) for new, old in zip(after, state.inverse, strict=True)])
        gain = state.value - point.value
        scale = vnp.maximum(vnp.maximum(abs(state.value), abs(point.value)), 1)
        converged = is_small(point.gradient) | (is_found & (gain <= options.ftol * scale))
        x, total = state.x + step, state.evaluations + evaluations
        return State(x, point.value, point.gradient, inverse, converged, ~is_found & ~converged, state.iterations + 1, total)

    value, gradient = evaluate(x0)
    nothing = vnp.zeros((), np.int32)
    start = State(x0, value, gradient, method.start(x0), is_small(gradient), vnp.asarray(False), nothing, nothing + 1)
    return lax.while_loop(continues, iterate, start)


def _updated_inverse(state: Any, step: Array, change: Array) -> tuple[Array, Array]:
    """Update the matrix; the first one is scaled to the first step's curvature."""
    # Without that (Nocedal and Wright, equation 6.20) a large curvature is lost in the rounding of the identity.
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


# Minimisation of functions of a vector: the interface of `scipy.optimize`.


class OptimizeResults(NamedTuple):
    """The result of `minimize`, as arrays.

    >>> result = vf.scipy.optimize.minimize(lambda x: (x**2).sum(), jnp.ones(2), method="BFGS")
    >>> bool(result.success), result.x.shape
    (True, (2,))
    """

    #: The solution, of shape (n,).
    x: Array
    #: Whether the gradient, or the last decrease, became as small as wanted.
    success: Array
    #: 0: success; 1: too many iterations or evaluations; 5: the line search found no better point.
    status: Array
    #: The value and the gradient at the solution.
    fun: Array
    jac: Array
    #: The approximate inverse of the Hessian, of shape (n, n), for complex x (2n, 2n) by its components; None for L-BFGS.
    hess_inv: Array | None
    #: The numbers of evaluations of value and gradient, and of iterations.
    nfev: Array
    njev: Array
    nit: Array


#: The options of each method with their defaults; None: 200 times the number of unknowns.
_OPTIONS: dict[str, dict[str, Any]] = {
    "bfgs": {"maxiter": None, "norm": np.inf, "gtol": 1e-5, "line_search_maxiter": 30},
    "l-bfgs-experimental-do-not-rely-on-this": {
        "maxiter": None, "norm": 2, "maxcor": 10, "ftol": 2.220446049250313e-09, "gtol": 1e-05, "maxfun": np.inf,
        "maxgrad": np.inf, "maxls": 30,
    },
}  # fmt: skip


def minimize(
    fun: Callable[..., Any],
    x0: Any,
    args: tuple[Any, ...] = (),
    *,
    method: str,
    tol: float | None = None,
    options: Mapping[str, Any] | None = None,
) -> OptimizeResults:
    """Minimise a function of a vector; its gradient is computed by reverse mode.

    Args:
        fun: the function ``fun(x, *args)``, which returns a real scalar.
        x0: where to begin, of shape (n,); integers become floats. Complex numbers count twice, as pairs.
        args: further arguments of `fun`.
        method: "BFGS", or "l-bfgs-experimental-do-not-rely-on-this", which is L-BFGS by the name that JAX has for it.
        tol: the option "gtol", for short.
        options: for both methods "maxiter", the largest number of iterations, "gtol" and "norm": stop when that norm of the gradient is
            below gtol. For BFGS "line_search_maxiter", for L-BFGS "maxls": the largest number of evaluations in an iteration. For
            L-BFGS also "maxcor", the number of steps it remembers, "ftol", the relative decrease at which it stops, and "maxfun" and
            "maxgrad", the numbers of evaluations after which no iteration begins.

    Returns:
        An `OptimizeResults`. The search may be jitted and mapped; reverse mode does not pass it, as it is a `while_loop`.

    Raises `ArgumentError` for an unknown method or option, `ArgumentTypeError` unless `args` is a tuple, `ShapeError` for an `x0` that
    is no vector, and what `vf.grad` raises for `fun`.

    >>> rosenbrock = lambda x: (1 - x[0]) ** 2 + 100 * (x[1] - x[0] ** 2) ** 2
    >>> vf.scipy.optimize.minimize(rosenbrock, jnp.zeros(2), method="BFGS").x.round(2)
    Array([1., 1.], dtype=float32)
    """
    check_callable(fun, "minimize")
    if not isinstance(args, tuple):
        raise ArgumentTypeError(f"minimize: args must be a tuple of further arguments, got {args!r}; write (args,)")
    (start,) = promote_inexact("minimize", x0)
    if start.ndim != 1:
        raise ShapeError(f"minimize: x0 must be a vector, got {start.aval}; see flatten_util.ravel_pytree")
    if is_complex(start):
        return _of_complex(fun, start, args, method=method, tol=tol, options=options)
    name = method.lower()
    chosen = _options(name, method, {**({} if tol is None else {"gtol": tol}), **(options or {})})
    limit = 200 * start.size if chosen["maxiter"] is None else chosen["maxiter"]
    searches = chosen["line_search_maxiter" if name == "bfgs" else "maxls"]
    approximation = bfgs if name == "bfgs" else limited_memory(chosen["maxcor"])
    evaluations = np.inf if name == "bfgs" else vnp.minimum(chosen["maxfun"], chosen["maxgrad"])
    settings = Options(limit, evaluations, chosen["norm"], chosen["gtol"], chosen.get("ftol", -1.0), searches)
    state = minimized(lambda x: fun(x, *args), vnp.asarray(start), approximation, settings)
    return _results(state, name == "bfgs")


def _of_complex(fun: Callable[..., Any], start: Array, args: tuple[Any, ...], **how: Any) -> OptimizeResults:
    """Minimise over the real components, followed by the imaginary ones."""

    def joined(components: Array) -> Array:
        return lax.complex(components[: start.size], components[start.size :])

    results = minimize(lambda components: fun(joined(components), *args), vnp.concatenate([start.real, start.imag]), **how)
    return results._replace(x=joined(results.x), jac=joined(results.jac).conj())


def _options(name: str, method: str, options: dict[str, Any]) -> dict[str, Any]:
    if name not in _OPTIONS:
        raise ArgumentError(f"minimize: method must be one of {', '.join(map(repr, _OPTIONS))}, got {method!r}")
    if unknown := options.keys() - _OPTIONS[name].keys():
        raise ArgumentError(f"minimize: {method} has no options {sorted(unknown)}; it has {', '.join(_OPTIONS[name])}")
    return _OPTIONS[name] | options


def _results(state: State, has_inverse: bool) -> OptimizeResults:
    status = vnp.where(state.converged, 0, vnp.where(state.failed, 5, 1)).astype(np.int32)
    inverse = state.inverse[0] if has_inverse else None
    return OptimizeResults(
        state.x, state.converged, status, state.value, state.gradient, inverse, state.evaluations, state.evaluations, state.iterations
    )
