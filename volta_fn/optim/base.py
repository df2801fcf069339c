"""Gradient transformations, their hyper-parameters, and the updates of parameters.

Optimizers are chains of transformations. A hyper-parameter is a number, a scalar array or a schedule. `apply_updates` adds updates to the
parameters.
"""

from __future__ import annotations

import functools
import inspect
import numbers
import re
from collections.abc import Callable
from types import FunctionType
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np

from volta_fn import advice, tree
from volta_fn import numpy as vnp
from volta_fn.advice import explained
from volta_fn.core.arrays.array import Array, as_value
from volta_fn.errors import ArgumentError, ArgumentTypeError, ShapeError, TreeError
from volta_fn.optim.numerics import (
    Rule,
    at_path,
    branch,
    cast_like,
    count_zero,
    described,
    factor,
    is_leaf,
    map_leaves,
    map_with_state,
    restored,
    safe_increment,
    widened,
)
from volta_fn.source import signature
from volta_fn.transforms.custom_derivatives import custom_jvp

__all__ = [
    "AdaptiveGradClipState", "AddDecayedWeightsState", "ClipByGlobalNormState", "ClipState", "EmptyState", "GradientTransformation",
    "GradientTransformationExtraArgs", "MaskOrFn", "NonNegativeParamsState", "OptState", "Params", "ScalarOrSchedule",
    "ScaleByTrustRatioState", "ScaleState", "Schedule", "TransformInitFn", "TransformUpdateExtraArgsFn", "TransformUpdateFn", "Updates",
    "apply_updates", "identity", "incremental_update", "init_empty_state", "periodic_update", "scale_gradient", "set_to_zero", "stateless",
    "stateless_with_tree_map", "with_extra_args_support",
]  # fmt: skip


# The rule for hyperparameters: each is a number, a scalar array or a schedule.
#
# It holds for all functions that make transformations or schedules, and is read off their annotations: a parameter of type
# `ScalarOrSchedule` may be a schedule, one of type int, float or `Any` a number. The public functions are wrapped when the packages are
# imported; those that call each other inside are not.

_MAKERS = re.compile(r"(Callable\[\.\.\., )?(GradientTransformation(ExtraArgs)?|Schedule)\b")
_NUMERIC = re.compile(r"(ScalarOrSchedule|Any|int|float)( \| None)?")
#: Parameters of type `Any` that are no numbers.
_OTHER = re.compile(r"dtype|key|labels|coeffs|seed|dimension_numbers|consistent_rms")


#: Functions that check their hyper-parameters.
_checking: set[Callable[..., Any]] = set()


def check_all(namespace: dict[str, Any]) -> None:
    """Wrap those functions of a package that make transformations or schedules."""
    for name, value in list(namespace.items()):
        if isinstance(value, FunctionType) and value not in _checking and _MAKERS.match(str(value.__annotations__.get("return"))):
            namespace[name] = _checked(value)


@functools.cache
def _checked(function: Callable[..., Any]) -> Callable[..., Any]:
    called = explained(function)
    is_schedule = function.__annotations__["return"] == "Schedule"

    @functools.wraps(function)
    def make(*args: Any, **kwargs: Any) -> Any:
        positional, by_name = _numeric(function)
        for parameter, value in zip(positional, args, strict=False):
            _check(function.__name__, parameter, value)
        for name, value in kwargs.items():
            _check(function.__name__, by_name.get(name), value)
        result = called(*args, **kwargs)
        return _NamedSchedule(result, make, args, kwargs) if is_schedule else result

    _checking.add(make)
    return make


class _NamedSchedule:
    """A schedule that is pickled, and shown, as the call of this package that made it."""

    def __init__(self, function: Schedule, make: Callable[..., Schedule], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._function, self._make, self._args, self._kwargs = function, make, args, kwargs

    def __call__(self, count: Any) -> Any:
        return self._function(count)

    def __reduce__(self) -> tuple[Any, ...]:
        return functools.partial(self._make, *self._args, **self._kwargs), ()

    def __repr__(self) -> str:
        arguments = [*map(repr, self._args), *[f"{name}={value!r}" for name, value in self._kwargs.items()]]
        return f"{self._make.__name__}({', '.join(arguments)})"


@functools.cache
def _numeric(function: Callable[..., Any]) -> tuple[list[Any], dict[str, Any]]:
    """Return the parameters that are numbers (None for others): by position, by name."""
    parameters = signature(function).parameters.values()
    by_name = {p.name: p if _NUMERIC.fullmatch(str(p.annotation)) and not _OTHER.search(p.name) else None for p in parameters}
    positional = [by_name[p.name] for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return positional, by_name


def _check(function: str, parameter: inspect.Parameter | None, value: Any) -> None:
    """Raise `ArgumentTypeError` or `ArgumentError` for an invalid hyper-parameter."""
    if parameter is None or (value is None and (parameter.default is None or "None" in parameter.annotation)):
        return
    schedule = parameter.annotation.startswith("ScalarOrSchedule")
    if not isinstance(value, (list, tuple)) and tree.leaves(value) and not is_leaf(value):
        raise ArgumentTypeError(
            f"{function}: {parameter.name} is a number, got the pytree {type(value).__name__}. Parameters are passed later: "
            f"optimizer.init(params) and optimizer.update(grads, state, params)"
        )
    if schedule and callable(value):
        return
    kinds = "a number, a scalar array or a schedule" if schedule else "a number or a scalar array"
    if not isinstance(value, (numbers.Number, np.generic, np.ndarray, Array)):
        raise ArgumentTypeError(f"{function}: {parameter.name} is {kinds}, got {value!r:.80} of type {type(value).__name__}")
    if isinstance(value, float) and value != value:
        raise ArgumentError(f"{function}: {parameter.name} is {kinds}, got NaN")


# Gradient transformations, of which optimizers are made, and ways to build them.
#
# A *gradient transformation* is a pair of pure functions under Optax's names. ``init(params)`` returns the *state*, a pytree of arrays.
# ``update(updates, state, params=None, **extra_args)`` maps *updates* (at first the gradients) to new updates, and the state to the next
# one. `apply_updates` adds updates to the parameters. An optimizer is a chain of small transformations, the last of which multiplies by
# minus the learning rate.

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
        several = ". Give those of a list as arguments: chain(*transformations)" if isinstance(tx, (list, tuple)) else ""
        raise ArgumentTypeError(
            f"expected a gradient transformation (init and update), got {tx!r:.80} of type {type(tx).__name__}{several}"
        )
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


# Transformations by rules for single leaves (see `optim.numerics`).


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


def numbers_of_leaves(numbers: Any, values: Any, kind: type, optimizer: str) -> list[Any]:
    """Return the dimension numbers of each leaf, or None.

    In `numbers` one may stand for a part of the tree of values.
    """
    flat, treedef = tree.flatten(numbers, is_leaf=lambda node: node is None or isinstance(node, kind))
    subtrees = tree.flatten_up_to(treedef, values, f"{optimizer}'s dimension numbers and the parameters")
    return [number for number, subtree in zip(flat, subtrees, strict=True) for _ in tree.leaves(subtree)]


# `apply_updates`, and averages of parameters over time.

T = TypeVar("T", bound=Any)


def apply_updates(params: T, updates: Updates) -> T:
    """Add updates to parameters, in the parameters' dtypes.

    Where the update is None, the parameter stays unchanged. Raises `TreeError` or `ShapeError` if the trees do not match.

    >>> import numpy as np
    >>> optim.apply_updates({"w": np.float32(1.0), "fixed": 2.0}, {"w": np.float32(0.5), "fixed": None})
    {'w': Array(1.5, dtype=float32), 'fixed': 2.0}
    """

    def add(i: int, update: Any, param: Any) -> Any:
        if update is None:
            return param
        where = functools.partial(at_path, updates, i, lambda x: x is None)
        if not is_leaf(param):
            raise TreeError(f"apply_updates: there is an update{where()}, where the parameters have no array. {_SAME_TREES}")
        old, new = as_value(param), as_value(update)
        if old.shape != new.shape:
            raise ShapeError(f"apply_updates: the update{where()} has shape {new.shape}, its parameter {old.shape}. {_SAME_TREES}")
        return cast_like(widened(old) + new, old)

    if type(updates) is tuple and len(updates) == 2 and not isinstance(params, tuple):
        raise TreeError("apply_updates: the updates are a pair: pass the first of updates, state = optimizer.update(…)")
    leaves, treedef = tree.flatten(updates, is_leaf=lambda x: x is None)
    pairs = zip(leaves, tree.flatten_up_to(treedef, params, "apply_updates: the parameters, compared with the updates"), strict=True)
    updated: Any = treedef.unflatten([add(i, *pair) for i, pair in enumerate(pairs)])
    return updated


_SAME_TREES = "Updates come from gradients with respect to these parameters: updates, state = optimizer.update(grads, state, params)."


def incremental_update(new_tensors: T, old_tensors: T, step_size: Any) -> T:
    """Return ``step_size * new + (1 - step_size) * old``.

    Repeated, this is a moving average of parameters (Polyak and Juditsky, 1992).

    >>> import numpy as np
    >>> optim.incremental_update([np.float32(1.0)], [np.float32(0.0)], 0.25)
    [Array(0.25, dtype=float32)]
    """

    def average(old: Any, new: Any) -> Any:
        size = factor(step_size, old)
        return size * new + (1 - size) * old

    return map_leaves(average, old_tensors, new_tensors)


def periodic_update(new_tensors: T, old_tensors: T, steps: Any, update_period: Any) -> T:
    """Select `new_tensors` if `steps` is a multiple of `update_period`.

    >>> optim.periodic_update(1.0, 2.0, steps=6, update_period=3)
    1.0
    """
    return branch(as_value(steps) % update_period == 0, lambda: new_tensors, lambda: old_tensors)


def scale_gradient(inputs: Any, scale: Any) -> Any:
    """Return `inputs`, a tree of arrays, with derivatives multiplied by `scale`.

    >>> vf.grad(lambda x: optim.scale_gradient(x, 0.5) ** 2)(vf.numpy.float32(3.0))
    Array(3., dtype=float32)
    """
    return tree.map(lambda x: _unchanged(as_value(x), scale), inputs)


@custom_jvp
def _unchanged(x: Any, scale: Any) -> Any:
    return x


_unchanged.defjvps(lambda g, out, x, scale: factor(scale, g) * g, None)
