"""Hyper-parameters in the state, to be read, changed, scheduled and traced."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np

from volta_fn import dtypes, lax
from volta_fn import numpy as vnp
from volta_fn.core.array import Array
from volta_fn.errors import ArgumentError
from volta_fn.optim.base import Counter, GradientTransformation, GradientTransformationExtraArgs, OptState, with_extra_args_support
from volta_fn.optim.numerics import safe_increment
from volta_fn.optim.tree_rules import count_zero, widest_real

__all__ = ["InjectHyperparamsState", "InjectStatefulHyperparamsState", "inject_hyperparams", "inject_stateful_hyperparams"]


class InjectHyperparamsState(NamedTuple):
    """The number of steps (int32), hyper-parameters by name, and inner states.

    `hyperparams_states` are the states of stateful schedules, `inner_state` is that of the optimizer.
    """

    count: Counter
    hyperparams: dict[str, Array]
    hyperparams_states: dict[str, Any]
    inner_state: OptState


#: Stateful and other schedules share one kind of state.
InjectStatefulHyperparamsState = InjectHyperparamsState


class _Settings(NamedTuple):
    """The arguments of a factory by kind."""

    numbers: dict[str, Any]
    schedules: dict[str, Callable[[Any], Any]]
    stateful: dict[str, Any]
    others: dict[str, Any]


def inject_hyperparams(
    inner_factory: Callable[..., GradientTransformation], static_args: str | Iterable[str] = (), hyperparam_dtype: Any = None
) -> Callable[..., GradientTransformationExtraArgs]:
    """Return a factory of optimizers that keep their numeric arguments in the state.

    They are in ``state.hyperparams`` and may be schedules. A schedule is a function of the number of steps, or an object with ``init()``,
    ``update(state, **extra_args)`` and ``__call__(state, **extra_args)``. Any other function, such as a mask, must be named in
    `static_args`.

    Args:
        inner_factory: such as `adam`.
        static_args: arguments to leave unchanged.
        hyperparam_dtype: the dtype of floating hyper-parameters; by default float64 if a parameter is, else float32.

    >>> optimizer = optim.inject_hyperparams(optim.sgd)(learning_rate=0.5)
    >>> state = optimizer.init(vf.numpy.zeros(1))
    >>> state = state._replace(hyperparams={**state.hyperparams, "learning_rate": 2.0})
    >>> optimizer.update(vf.numpy.ones(1), state)[0]
    Array([-2.], dtype=float32)

    Raises `ArgumentError` if `static_args` names an argument that does not exist.
    """
    static = {static_args} if isinstance(static_args, str) else set(static_args)
    signature = inspect.signature(inner_factory)
    if not static <= set(signature.parameters):
        raise ArgumentError(
            f"inject_hyperparams: static_args {sorted(static)} are not all among the arguments {list(signature.parameters)}"
        )

    @functools.wraps(inner_factory)
    def factory(*args: Any, **kwargs: Any) -> GradientTransformationExtraArgs:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return _injected(inner_factory, _sorted_settings(bound.arguments, static), hyperparam_dtype)

    return factory


inject_stateful_hyperparams = inject_hyperparams


def _sorted_settings(arguments: dict[str, Any], static: set[str]) -> _Settings:
    settings = _Settings({}, {}, {}, {})
    for name, value in arguments.items():
        kind = settings.others
        if name not in static and not isinstance(value, (bool, type)):
            if callable(value):
                kind = settings.stateful if hasattr(value, "init") and hasattr(value, "update") else settings.schedules
            elif isinstance(value, (int, float, Array, np.ndarray, np.generic)):
                kind = settings.numbers
        kind[name] = value
    return settings


def _injected(
    inner_factory: Callable[..., GradientTransformation], settings: _Settings, hyperparam_dtype: Any
) -> GradientTransformationExtraArgs:
    def scheduled(count: Any, states: dict[str, Any], extra_args: dict[str, Any]) -> dict[str, Any]:
        plain = {name: schedule(count) for name, schedule in settings.schedules.items()}
        return plain | {name: schedule(states[name], **extra_args) for name, schedule in settings.stateful.items()}

    def dtype_for(values: Any) -> np.dtype:
        return widest_real(values) if hyperparam_dtype is None else dtypes.as_dtype(hyperparam_dtype)

    def optimizer(hyperparams: dict[str, Any]) -> GradientTransformationExtraArgs:
        return with_extra_args_support(inner_factory(**settings.others, **hyperparams))

    def init(params: Any) -> InjectHyperparamsState:
        dtype = dtype_for(params)
        states = {name: schedule.init() for name, schedule in settings.stateful.items()}
        values = settings.numbers | scheduled(_count(count_zero(), dtype), states, {})
        hyperparams = {name: _as_hyperparam(value, dtype) for name, value in values.items()}
        return InjectHyperparamsState(count_zero(), hyperparams, states, optimizer(hyperparams).init(params))

    def update(updates: Any, state: Any, params: Any = None, **extra_args: Any) -> tuple[Any, Any]:
        dtype = dtype_for(updates)
        values = scheduled(_count(state.count, dtype), state.hyperparams_states, extra_args)
        hyperparams = {name: _as_hyperparam(values.get(name, old), dtype) for name, old in state.hyperparams.items()}
        states = {name: schedule.update(state.hyperparams_states[name], **extra_args) for name, schedule in settings.stateful.items()}
        updates, inner_state = optimizer(hyperparams).update(updates, state.inner_state, params, **extra_args)
        return updates, InjectHyperparamsState(safe_increment(state.count), hyperparams, states, inner_state)

    return GradientTransformationExtraArgs(init, update)


def _count(count: Array, dtype: np.dtype) -> Array:
    """Return the step counter for schedules, an int64 if they compute in float64."""
    return lax.convert_element_type(count, np.int64) if dtype == np.float64 else count


def _as_hyperparam(value: Any, dtype: np.dtype) -> Array:
    """Return a hyper-parameter as an array; floats get the dtype given."""
    own = dtypes.dtype_and_weak_type(value)[0]
    return vnp.asarray(value, dtype if own in dtypes.FLOATS else own)
