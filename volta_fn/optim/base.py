"""Gradient transformations, of which optimizers are made, and ways to build them.

A *gradient transformation* is a pair of pure functions under Optax's names. ``init(params)`` returns the *state*, a pytree of arrays.
``update(updates, state, params=None, **extra_args)`` maps *updates* (at first the gradients) to new updates, and the state to the next
one. `apply_updates` adds updates to the parameters. An optimizer is a chain of small transformations, the last of which multiplies by
minus the learning rate.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

from volta_fn import advice, tree
from volta_fn import numpy as vnp
from volta_fn.core.array import Array
from volta_fn.errors import ArgumentError, ArgumentTypeError
from volta_fn.optim.closures import described, restored
from volta_fn.optim.numerics import safe_increment
from volta_fn.optim.tree_rules import Rule, count_zero, is_leaf, map_leaves, map_with_state

__all__ = ["EmptyState", "GradientTransformation", "GradientTransformationExtraArgs", "MaskOrFn", "OptState", "Params", "ScalarOrSchedule"]
__all__ += ["AdaptiveGradClipState", "AddDecayedWeightsState", "ClipByGlobalNormState", "ClipState", "NonNegativeParamsState"]
__all__ += ["ScaleByTrustRatioState", "ScaleState", "TransformInitFn", "TransformUpdateExtraArgsFn", "TransformUpdateFn"]
__all__ += ["Schedule", "Updates", "identity", "init_empty_state", "set_to_zero", "stateless", "stateless_with_tree_map"]
__all__ += ["with_extra_args_support"]

#: Pytrees of arrays with one structure: the parameters, and what is added to them.
Params: TypeAlias = Any
Updates: TypeAlias = Any
#: The pytree of arrays that an optimizer keeps from step to step.
OptState: TypeAlias = Any
#: A step counter, an int32 scalar; untyped, because tuples have a method called `count`.
Counter: TypeAlias = Any
#: A function from the number of steps taken so far to a number.
Schedule: TypeAlias = Callable[[Any], Any]
#: A number, a scalar array (traced or not) or a schedule.
ScalarOrSchedule: TypeAlias = Any
#: A tree of booleans that is a prefix of the parameters' tree, or a function from parameters (or updates) to such a tree.
MaskOrFn: TypeAlias = Any


#: The functions of a transformation: `init`, and `update` without and with extra arguments.
TransformInitFn: TypeAlias = Callable[[Params], OptState]
TransformUpdateFn: TypeAlias = Callable[..., tuple[Updates, OptState]]
TransformUpdateExtraArgsFn: TypeAlias = TransformUpdateFn


class GradientTransformation(NamedTuple):
    """A pair of pure functions, `init` and `update`.

    Their signatures are ``init(params) -> state`` and ``update(updates, state, params=None) -> (updates, state)``.

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

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (type(self), described(self.init), described(self.update))


def _restored(kind: type[GradientTransformation], init: Any, update: Any) -> GradientTransformation:
    """Return the transformation that was pickled."""
    return kind(restored(init), restored(update))


# Not in the class, so that type checkers report unknown attributes.
GradientTransformation.__getattr__ = lambda self, name: advice.unknown_attribute(  # type: ignore[attr-defined]
    "an optimizer", name, advice.OPTIMIZERS
)


class GradientTransformationExtraArgs(GradientTransformation):
    """A transformation whose `update` accepts and ignores other keyword arguments."""


class EmptyState(NamedTuple):
    """The state of a transformation without state."""


#: The states of transformations that have none.
AddDecayedWeightsState = AdaptiveGradClipState = ClipByGlobalNormState = ClipState = EmptyState
NonNegativeParamsState = ScaleByTrustRatioState = ScaleState = EmptyState


def init_empty_state(params: Params) -> EmptyState:
    """Return an `EmptyState`: the `init` of transformations without state."""
    return EmptyState()


def with_extra_args_support(tx: GradientTransformation) -> GradientTransformationExtraArgs:
    """Return `tx` as a transformation that accepts extra arguments.

    Arguments that its own `update` does not accept are dropped. Raises `ArgumentTypeError` for an object that is no transformation.
    """
    if isinstance(tx, GradientTransformationExtraArgs):
        return tx
    init, update = getattr(tx, "init", None), getattr(tx, "update", None)
    if not callable(init) or not callable(update):
        raise ArgumentTypeError(f"expected a gradient transformation (init and update), got {tx!r:.80} of type {type(tx).__name__}")
    if not isinstance(tx, GradientTransformation):  # an object with these methods, such as `MultiSteps`
        return GradientTransformationExtraArgs(init, update)

    def update_without_extra_args(updates: Updates, state: OptState, params: Params | None = None, **extra_args: Any) -> Any:
        return update(updates, state, params)

    return GradientTransformationExtraArgs(init, update_without_extra_args)


def require_params(name: str, params: Params | None) -> Params:
    """Return the parameters; raise `ArgumentError` if they are None."""
    if params is None:
        raise ArgumentError(f"{name} needs the current parameters; call update(updates, state, params)")
    return params


# Transformations without state.


def stateless(f: Callable[[Updates, Params | None], Updates]) -> GradientTransformation:
    """Return the transformation by a function ``f(updates, params) -> updates``.

    `params` may be None.

    >>> from volta_fn import tree
    >>> flip = optim.stateless(lambda updates, params: tree.map(lambda u: -u, updates))
    >>> flip.update([1.0, 2.0], flip.init(None))
    ([-1.0, -2.0], EmptyState())
    """

    def update(updates: Updates, state: OptState, params: Params | None = None, **extra_args: Any) -> tuple[Updates, OptState]:
        return f(updates, params), state

    return GradientTransformationExtraArgs(init_empty_state, update)


def stateless_with_tree_map(f: Callable[[Any, Any], Any]) -> GradientTransformation:
    """Transform each leaf by ``f(update, param)``; param is None without parameters."""

    def apply(updates: Updates, params: Params | None) -> Updates:
        return tree.map(lambda u: f(u, None), updates) if params is None else tree.map(f, updates, params)

    return stateless(apply)


def identity() -> GradientTransformation:
    """Return the updates unchanged."""
    return stateless(lambda updates, params: updates)


def set_to_zero() -> GradientTransformation:
    """Replace updates by zeros, so that the parameters stay as they are; see `freeze`."""
    return stateless(lambda updates, params: tree.map(vnp.zeros_like, updates))


# Transformations by rules for single leaves (see `tree_rules`).


def leaf_rule(rule: Callable[[Array], Array]) -> GradientTransformation:
    """Return the transformation ``rule(update) -> update`` of each leaf."""
    return stateless(lambda updates, params: map_leaves(rule, updates))


def leaf_rule_with_params(name: str, rule: Callable[[Array, Array], Array]) -> GradientTransformation:
    """Return the transformation ``rule(update, param) -> update`` of each leaf."""
    return stateless(lambda updates, params: map_leaves(rule, updates, require_params(name, params)))


def stateful_rule(state_type: Callable[..., Any], init: Callable[[Params], tuple[Any, ...]], rule: Rule) -> GradientTransformation:
    """Transform each leaf by ``rule(update, *states) -> (update, *states)``.

    `state_type` is a named tuple of trees, whose initial values ``init(params)`` returns.
    """

    def update(updates: Updates, state: OptState, params: Params | None = None, **extra_args: Any) -> tuple[Updates, OptState]:
        updates, *trees = map_with_state(rule, updates, *state)
        return updates, state_type(*trees)

    return GradientTransformationExtraArgs(lambda params: state_type(*init(params)), update)


def counting_rule(
    state_type: Callable[..., Any], init: Callable[[Params], tuple[Any, ...]], rule_at: Callable[[Array], Rule]
) -> GradientTransformation:
    """Transform leaves by ``rule_at(count)`` in step count = 1, 2, ….

    The rules are like those of `stateful_rule`. The first field of `state_type` is the number of steps, an int32; ``init(params)`` returns
    the initial values of the others.
    """

    def update(updates: Updates, state: OptState, params: Params | None = None, **extra_args: Any) -> tuple[Updates, OptState]:
        count = safe_increment(state[0])
        updates, *trees = map_with_state(rule_at(count), updates, *state[1:])
        return updates, state_type(count, *trees)

    return GradientTransformationExtraArgs(lambda params: state_type(count_zero(), *init(params)), update)


def is_function(value: Any) -> bool:
    """Return True for a function; modules are containers even if they are callable."""
    return callable(value) and is_leaf(value)
