"""What an optimizer is: a *gradient transformation*, two pure functions by Optax's names.

``init(params)`` gives the *state*, a pytree of arrays; ``update(updates, state, params=None, **extra_args)`` turns *updates* (gradients,
at first) into new updates and the state into the next one. Updates are added to the parameters by `apply_updates`. Optimizers are
chains of small transformations, the last of which multiplies by minus the learning rate.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

from volta_fn import numpy as vnp
from volta_fn import tree
from volta_fn.core.array import Array
from volta_fn.errors import ArgumentError, ArgumentTypeError
from volta_fn.optim.tree_rules import is_leaf, map_leaves

__all__ = ["EmptyState", "GradientTransformation", "GradientTransformationExtraArgs", "MaskOrFn", "OptState", "Params"]
__all__ += ["ScalarOrSchedule", "Schedule", "Updates", "identity", "init_empty_state", "set_to_zero", "stateless"]
__all__ += ["stateless_with_tree_map", "with_extra_args_support"]


#: Pytrees of arrays, of one structure: what is optimised, and what is added to it.
Params: TypeAlias = Any
Updates: TypeAlias = Any
#: A pytree of arrays that an optimizer remembers from step to step.
OptState: TypeAlias = Any
#: A counter of steps, an int32 scalar; loosely typed, for tuples have a method called `count`.
Counter: TypeAlias = Any
#: A function from the number of steps taken so far to a number.
Schedule: TypeAlias = Callable[[Any], Any]
#: A number, a scalar array (traced or not) or a schedule.
ScalarOrSchedule: TypeAlias = Any
#: A tree of booleans, a prefix of the parameters', or a function from parameters (or updates) to such a tree.
MaskOrFn: TypeAlias = Any


class GradientTransformation(NamedTuple):
    """A pair of pure functions ``init(params) -> state`` and ``update(updates, state, params=None) -> (updates, state)``.

    >>> import volta_fn as vf
    >>> from volta_fn import optim
    >>> optimizer = optim.sgd(learning_rate=0.5)
    >>> params = {"w": vf.numpy.array([1.0, 2.0])}
    >>> state = optimizer.init(params)
    >>> gradient = vf.grad(lambda p: vf.numpy.sum(p["w"] ** 2))(params)
    >>> updates, state = optimizer.update(gradient, state, params)
    >>> optim.apply_updates(params, updates)
    {'w': Array([0., 0.], dtype=float32)}
    """

    init: Callable[[Params], OptState]
    update: Callable[..., tuple[Updates, OptState]]


class GradientTransformationExtraArgs(GradientTransformation):
    """A transformation whose `update` takes further keyword arguments, such as the loss, and ignores those that it does not need."""


class EmptyState(NamedTuple):
    """The state of a transformation that remembers nothing."""


def init_empty_state(params: Params) -> EmptyState:
    """The `init` of a transformation that remembers nothing."""
    return EmptyState()


def with_extra_args_support(tx: GradientTransformation) -> GradientTransformationExtraArgs:
    """`tx` as a transformation that takes extra arguments: those that its own `update` cannot take are left out.

    Raises `ArgumentTypeError` for what is not a transformation.
    """
    if isinstance(tx, GradientTransformationExtraArgs):
        return tx
    init, update = getattr(tx, "init", None), getattr(tx, "update", None)
    if not callable(init) or not callable(update):
        raise ArgumentTypeError(f"expected a gradient transformation (init and update), got {tx!r:.80} of type {type(tx).__name__}")
    if not isinstance(tx, GradientTransformation):  # an object with these methods, as `MultiSteps` is
        return GradientTransformationExtraArgs(init, update)

    def update_without_extra_args(updates: Updates, state: OptState, params: Params | None = None, **extra_args: Any) -> Any:
        return update(updates, state, params)

    return GradientTransformationExtraArgs(init, update_without_extra_args)


def require_params(name: str, params: Params | None) -> Params:
    """The parameters; `ArgumentError` if they were not passed."""
    if params is None:
        raise ArgumentError(f"{name} needs the current parameters; call update(updates, state, params)")
    return params


# Transformations that remember nothing.


def stateless(f: Callable[[Updates, Params | None], Updates]) -> GradientTransformation:
    """The transformation of a function ``f(updates, params) -> updates``; params may be None.

    >>> from volta_fn import optim, tree
    >>> flip = optim.stateless(lambda updates, params: tree.map(lambda u: -u, updates))
    >>> flip.update([1.0, 2.0], flip.init(None))
    ([-1.0, -2.0], EmptyState())
    """

    def update(updates: Updates, state: OptState, params: Params | None = None, **extra_args: Any) -> tuple[Updates, OptState]:
        return f(updates, params), state

    return GradientTransformationExtraArgs(init_empty_state, update)


def stateless_with_tree_map(f: Callable[[Any, Any], Any]) -> GradientTransformation:
    """The transformation of a function ``f(update, param) -> update`` of single arrays; param is None if there are no params."""

    def apply(updates: Updates, params: Params | None) -> Updates:
        return tree.map(lambda u: f(u, None), updates) if params is None else tree.map(f, updates, params)

    return stateless(apply)


def leaf_rule(rule: Callable[[Array], Array]) -> GradientTransformation:
    """A transformation of each update by itself."""
    return stateless(lambda updates, params: map_leaves(rule, updates))


def leaf_rule_with_params(name: str, rule: Callable[[Array, Array], Array]) -> GradientTransformation:
    """A transformation of each update by itself and its parameter, which must be passed."""
    return stateless(lambda updates, params: map_leaves(rule, updates, require_params(name, params)))


def identity() -> GradientTransformation:
    """Updates as they are."""
    return stateless(lambda updates, params: updates)


def set_to_zero() -> GradientTransformation:
    """Zeros for updates: the parameters stay as they are. See `freeze`."""
    return stateless(lambda updates, params: tree.map(vnp.zeros_like, updates))


def is_function(value: Any) -> bool:
    """Whether a tree-or-function argument is a function: callable and no container (a model of booleans may be both)."""
    return callable(value) and is_leaf(value)
