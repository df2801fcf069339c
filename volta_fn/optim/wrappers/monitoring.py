"""Measurements of updates, kept in the state while the updates pass unchanged."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from volta_fn.core.array import Array, as_value
from volta_fn.errors import ArgumentError
from volta_fn.optim.base import (
    GradientTransformation,
    GradientTransformationExtraArgs,
    OptState,
    Params,
    ScalarOrSchedule,
    Updates,
    stateless,
    with_extra_args_support,
)
from volta_fn.optim.transforms.momentum import ema
from volta_fn.optim.tree_utils.states import tree_get_all_with_path
from volta_fn.optim.wrappers.chain import chain

__all__ = ["MonitorState", "SnapshotState", "current_learning_rate", "measure_with_ema", "monitor", "snapshot"]

Measure = Callable[[Updates], Any]


class SnapshotState(NamedTuple):
    """The last measurement, by its name."""

    measurement: dict[str, Any]


def snapshot(measure_name: str, measure: Measure) -> GradientTransformation:
    """Keep ``measure(updates)`` in the state.

    >>> tx = vf.optim.snapshot("norm", vf.optim.global_norm)
    >>> w = vf.numpy.array([3.0, 4.0])
    >>> tx.update(w, tx.init(w))[1].measurement
    {'norm': Array(5., dtype=float32)}
    """

    def update(updates: Any, state: Any, params: Any = None, **extra_args: Any) -> tuple[Any, Any]:
        return updates, SnapshotState({measure_name: measure(updates)})

    return GradientTransformationExtraArgs(lambda params: SnapshotState({measure_name: measure(params)}), update)


class MonitorState(NamedTuple):
    """The last measurements by name, and the states of measuring transformations."""

    measurements: dict[str, Any]
    measure_states: tuple[OptState, ...]


def monitor(measures: Mapping[str, GradientTransformation | Measure]) -> GradientTransformationExtraArgs:
    """Keep several measurements in the state.

    Each is a function of updates, or a transformation whose output is the measurement (see `measure_with_ema`).
    """
    transforms = {
        name: with_extra_args_support(m if isinstance(m, GradientTransformation) else stateless(lambda u, params, m=m: m(u)))  # type: ignore[misc]  # bound early
        for name, m in measures.items()
    }

    def measured(updates: Updates, states: tuple[OptState, ...], params: Params | None, extra_args: dict[str, Any]) -> MonitorState:
        pairs = [tx.update(updates, state, params, **extra_args) for tx, state in zip(transforms.values(), states, strict=True)]
        values = {name: value for name, (value, _) in zip(transforms, pairs, strict=True)}
        return MonitorState(values, tuple(state for _, state in pairs))

    def init(params: Any) -> MonitorState:
        states = tuple(tx.init(params) for tx in transforms.values())
        return MonitorState(measured(params, states, params, {}).measurements, states)

    def update(updates: Any, state: Any, params: Any = None, **extra_args: Any) -> tuple[Any, Any]:
        return updates, measured(updates, state.measure_states, params, extra_args)

    return GradientTransformationExtraArgs(init, update)


def measure_with_ema(measure: Measure, decay: Any, debias: bool = True, accumulator_dtype: Any = None) -> GradientTransformationExtraArgs:
    """Measure a moving average, for `monitor`."""
    average = ema(decay, debias, accumulator_dtype)
    return chain(
        stateless(lambda updates, params: measure(updates)),
        GradientTransformationExtraArgs(lambda params: average.init(measure(params)), average.update),
    )


def current_learning_rate(state: OptState, learning_rate: ScalarOrSchedule | None = None) -> Array:
    """Return the learning rate of an optimizer's next update.

    Args:
        state: the optimizer's state.
        learning_rate: the number or schedule that the optimizer was made with. It is not needed for `inject_hyperparams`, whose state has
            the rate of the last update.

    Raises `ArgumentError` if the state has no such rate and none is given, or no count for a schedule.

    >>> schedule = optim.linear_schedule(1.0, 0.0, transition_steps=10)
    >>> optimizer = optim.adam(schedule)
    >>> w = vf.numpy.ones(2)
    >>> _, state = optimizer.update(w, optimizer.init(w))
    >>> optim.current_learning_rate(state, schedule)
    Array(0.9, dtype=float32)
    """
    injected = tree_get_all_with_path(state, "learning_rate")
    if learning_rate is None and injected:
        return as_value(injected[0][1])
    if learning_rate is None:
        raise ArgumentError("current_learning_rate: the state does not have the rate; give the number or schedule of the optimizer")
    if not callable(learning_rate):
        return as_value(learning_rate)
    found = tree_get_all_with_path(state, "count")
    counts = [count for path, count in found if getattr(path[-1], "tuple_name", "") == "ScaleByScheduleState"]
    if not counts:
        raise ArgumentError("current_learning_rate: the state has no count of steps of a schedule; was the optimizer made with a number?")
    return as_value(learning_rate(counts[-1]))
