"""Minimisation of functions of a vector: the interface of `scipy.optimize`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from volta_fn import lax
from volta_fn import numpy as vnp
from volta_fn.core.array import Array
from volta_fn.core.flatten import check_callable
from volta_fn.errors import ArgumentError, ArgumentTypeError, ShapeError
from volta_fn.numpy.arguments import is_complex, promote_inexact
from volta_fn.scipy.optimize.quasi_newton import Options, State, bfgs, limited_memory, minimized


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
    given = _options(name, method, {**({} if tol is None else {"gtol": tol}), **(options or {})})
    limit = 200 * start.size if given["maxiter"] is None else given["maxiter"]
    searches = given["line_search_maxiter" if name == "bfgs" else "maxls"]
    approximation = bfgs if name == "bfgs" else limited_memory(given["maxcor"])
    evaluations = np.inf if name == "bfgs" else vnp.minimum(given["maxfun"], given["maxgrad"])
    settings = Options(limit, evaluations, given["norm"], given["gtol"], given.get("ftol", -1.0), searches)
    state = minimized(lambda x: fun(x, *args), vnp.asarray(start), approximation, settings)
    return _results(state, name == "bfgs")


def _of_complex(fun: Callable[..., Any], start: Array, args: tuple[Any, ...], **how: Any) -> OptimizeResults:
    """Minimise over the real components, followed by the imaginary ones."""

    def joined(components: Array) -> Array:
        return lax.complex(components[: start.size], components[start.size :])

    found = minimize(lambda components: fun(joined(components), *args), vnp.concatenate([start.real, start.imag]), **how)
    return found._replace(x=joined(found.x), jac=joined(found.jac).conj())


def _options(name: str, method: str, given: dict[str, Any]) -> dict[str, Any]:
    if name not in _OPTIONS:
        raise ArgumentError(f"minimize: method must be one of {', '.join(map(repr, _OPTIONS))}, got {method!r}")
    if unknown := given.keys() - _OPTIONS[name].keys():
        raise ArgumentError(f"minimize: {method} has no options {sorted(unknown)}; it has {', '.join(_OPTIONS[name])}")
    return _OPTIONS[name] | given


def _results(state: State, has_inverse: bool) -> OptimizeResults:
    status = vnp.where(state.converged, 0, vnp.where(state.failed, 5, 1)).astype(np.int32)
    inverse = state.inverse[0] if has_inverse else None
    return OptimizeResults(
        state.x, state.converged, status, state.value, state.gradient, inverse, state.evaluations, state.evaluations, state.iterations
    )
