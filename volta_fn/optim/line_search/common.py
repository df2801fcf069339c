"""The loss along a line, and the reuse of losses and gradients from a search.

The *slope* is the derivative of the loss at ``params + t * updates`` with respect to the step size t.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from volta_fn import numpy as vnp
from volta_fn import tree
from volta_fn.core.array import Array, as_value
from volta_fn.errors import ArgumentError, ArgumentTypeError
from volta_fn.optim.base import OptState, Params, Updates
from volta_fn.optim.numerics import real_dot
from volta_fn.optim.tree_rules import branch, factor, map_leaves
from volta_fn.transforms.grad import value_and_grad

__all__ = ["value_and_grad_from_state"]


def bound_value_fn(name: str, value_fn: Callable[..., Any], extra_args: dict[str, Any]) -> Callable[[Params], Array]:
    """Bind extra arguments of `update` to the loss; `ArgumentTypeError` for others."""
    parameters = inspect.signature(value_fn).parameters
    if not any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values()):
        unknown = sorted(set(extra_args) - set(parameters))
        if unknown:
            raise ArgumentTypeError(f"{name}: value_fn does not take the extra arguments {unknown} that update was given")
    return lambda params: as_value(value_fn(params, **extra_args))


def along(params: Params, step: Array, updates: Updates) -> Params:
    """Return ``params + step * updates``, in the parameters' dtypes."""
    return map_leaves(lambda p, u: p + factor(step, p) * u, params, updates)


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
    found = _fields(state, name)
    if len(found) != 1 or found[0] is None:
        raise ArgumentError(
            f"value_and_grad_from_state: one {name!r} must be in the optimizer's state, found {sum(f is not None for f in found)}; "
            "use it with one line search, which keeps the gradient (store_grad=True for backtracking)"
        )
    return found[0]


def _fields(node: Any, name: str) -> list[Any]:
    """Return the values of all fields of that name in the named tuples of a state."""
    own, children = [], node if isinstance(node, (tuple, list)) else node.values() if isinstance(node, dict) else ()
    if isinstance(node, tuple) and hasattr(node, "_fields") and name in node._fields:
        own = [getattr(node, name)]
    return own + [x for child in children for x in _fields(child, name)]
