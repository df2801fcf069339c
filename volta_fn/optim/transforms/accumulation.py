"""Transformations over several steps or processes.

These are accumulated gradients, slow parameters, loss scales, measurements, and states that processes share.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Self, TypeAlias

import numpy as np

from volta_fn import dtypes, lax, tree
from volta_fn import numpy as vnp
from volta_fn.core.arrays.array import Array, as_value
from volta_fn.errors import ArgumentError, ArgumentTypeError, DTypeError
from volta_fn.optim.base import (
    GradientTransformation,
    GradientTransformationExtraArgs,
    OptState,
    Params,
    ScalarOrSchedule,
    Updates,
    require_params,
    stateless,
    with_extra_args_support,
)
from volta_fn.optim.numerics import (
    all_finite,
    branch,
    count_zero,
    factor,
    full_like,
    map_leaves,
    map_with_state,
    safe_increment,
    sum_of_squares,
    tree_cast_like,
    widened,
)
from volta_fn.optim.transforms.composition import chain
from volta_fn.optim.transforms.momentum import ema
from volta_fn.optim.tree_utils import tree_get_all_with_path, tree_map_params, tree_where
from volta_fn.primitives.collectives import sum_of

__all__ = [
    "DynamicLossScale",
    "LookaheadParams",
    "LookaheadState",
    "LossScaledState",
    "MonitorState",
    "MultiSteps",
    "MultiStepsState",
    "ShouldSkipUpdateFunction",
    "SnapshotState",
    "average_gradients",
    "current_learning_rate",
    "gather_states",
    "lookahead",
    "loss_scaled",
    "measure_with_ema",
    "monitor",
    "scatter_states",
    "shard_states",
    "skip_large_updates",
    "skip_not_finite",
    "snapshot",
]

# Lookahead: slow parameters that follow fast ones (Zhang et al., 2019).


class LookaheadParams(NamedTuple):
    """Fast parameters, which change in every step; slow ones follow as the result."""

    fast: Params
    slow: Params

    @classmethod
    def init_synced(cls, params: Params) -> Self:
        """Return the same parameters as fast and slow ones."""
        return cls(params, params)


class LookaheadState(NamedTuple):
    """The fast optimizer's state and the number of steps since the last sync (int32)."""

    fast_state: OptState
    steps_since_sync: Array


def lookahead(
    fast_optimizer: GradientTransformation, sync_period: int, slow_step_size: Any, reset_state: bool = False
) -> GradientTransformation:
    """Synchronise slow with fast parameters every `sync_period` steps.

    Then the slow parameters move the fraction `slow_step_size` of the way to the fast ones, and these are set to the result; with
    `reset_state` the state of the fast optimizer starts anew. Parameters are `LookaheadParams`, gradients those of the fast parameters.

    >>> params = optim.LookaheadParams.init_synced(vf.numpy.array([1.0]))
    >>> optimizer = optim.lookahead(optim.sgd(1.0), sync_period=1, slow_step_size=0.5)
    >>> updates, state = optimizer.update(vf.numpy.array([1.0]), optimizer.init(params), params)
    >>> optim.apply_updates(params, updates)
    LookaheadParams(fast=Array([0.5], dtype=float32), slow=Array([0.5], dtype=float32))

    Raises:
        ArgumentError: `sync_period` is less than 1.
        ArgumentTypeError: the parameters are not `LookaheadParams`.
    """
    if sync_period < 1:
        raise ArgumentError(f"lookahead: sync_period must be at least 1, got {sync_period}")
    fast_optimizer = with_extra_args_support(fast_optimizer)

    def init(params: Any) -> LookaheadState:
        return LookaheadState(fast_optimizer.init(_pair(params).fast), count_zero())

    def update(updates: Any, state: Any, params: Any = None, **extra_args: Any) -> tuple[Any, Any]:
        pair = _pair(require_params("lookahead", params))
        updates, fast_state = fast_optimizer.update(updates, state.fast_state, pair.fast, **extra_args)
        sync = state.steps_since_sync == sync_period - 1
        if reset_state:
            fast_state = tree_where(sync, fast_optimizer.init(pair.fast), fast_state)

        def slow_rule(update: Array, fast: Array, slow: Array) -> Array:
            return vnp.where(sync, factor(slow_step_size, slow) * (fast + update - slow), vnp.zeros_like(slow))

        def fast_rule(update: Array, fast: Array, slow: Array) -> Array:
            return vnp.where(sync, update - (1 - factor(slow_step_size, slow)) * (fast + update - slow), update)

        changed = LookaheadParams(*(map_leaves(rule, updates, pair.fast, pair.slow) for rule in (fast_rule, slow_rule)))
        return changed, LookaheadState(fast_state, (state.steps_since_sync + 1) % sync_period)

    return GradientTransformationExtraArgs(init, update)


def _pair(params: Params) -> LookaheadParams:
    if not isinstance(params, LookaheadParams):
        raise ArgumentTypeError(
            f"lookahead: parameters must be LookaheadParams, got {type(params).__name__}; wrap them in LookaheadParams.init_synced"
        )
    return params


# Loss scaling for float16, whose gradients vanish below 6e-8.
#
# The loss is multiplied by a large number before differentiation. The number adapts in training (Micikevicius et al., 2018): it is
# halved, and the step skipped, when a gradient overflows; it is doubled after many steps without overflow.

_LARGEST = 2.0**126  # whose inverse is a normal number


@tree.register_dataclass
@dataclasses.dataclass(frozen=True)
class DynamicLossScale:
    """The loss scale (float32) and the number of finite steps since its last change.

    The other fields are static settings.

    >>> scaling = vf.optim.DynamicLossScale.init(2.0**10, period=2000)
    >>> loss = lambda w: vf.numpy.sum(w * vf.numpy.float16(1e-4))
    >>> grads = scaling.unscale(vf.grad(lambda w: scaling.scale(loss(w)))(vf.numpy.ones(2, "float16")))
    >>> grads.dtype, scaling.adjust(vf.optim.all_finite(grads)).counter
    (dtype('float32'), Array(1, dtype=int32))
    """

    loss_scale: Array
    counter: Array
    period: int = dataclasses.field(default=2000, metadata={"static": True})
    factor: float = dataclasses.field(default=2.0, metadata={"static": True})
    min_loss_scale: float = dataclasses.field(default=1.0, metadata={"static": True})

    @classmethod
    def init(cls, loss_scale: float = 2.0**15, *, period: int = 2000, factor: float = 2.0, min_loss_scale: float = 1.0) -> Self:
        """Create a scale that grows by `factor` after `period` consecutive finite steps.

        After other steps it shrinks by `factor`, to at least `min_loss_scale`. Raises `ArgumentError` for numbers out of range.
        """
        if not (loss_scale >= min_loss_scale > 0 and factor > 1 and period >= 1):
            raise ArgumentError(
                "DynamicLossScale: loss_scale >= min_loss_scale > 0, factor > 1 and period >= 1 are needed, got "
                f"{loss_scale=}, {min_loss_scale=}, {factor=}, {period=}"
            )
        return cls(vnp.asarray(loss_scale, np.float32), count_zero(), period, factor, min_loss_scale)

    def scale(self, values: Any) -> Any:
        """Multiply a loss (or a tree) by the scale, in float32 at least, where it fits."""
        return _times(self.loss_scale, values)

    def unscale(self, values: Any) -> Any:
        """Divide gradients by the scale in float32 at least, so that they do not vanish."""
        return _times(1 / self.loss_scale, values)

    def adjust(self, grads_finite: Any) -> Self:
        """Return the scale for the next step, given whether gradients were finite."""
        finite = as_value(grads_finite)
        grow = finite & (self.counter >= self.period - 1)
        grown = vnp.where(grow, vnp.minimum(self.loss_scale * self.factor, _LARGEST), self.loss_scale)
        shrunk = vnp.maximum(self.loss_scale / self.factor, self.min_loss_scale)
        counter = vnp.where(finite & ~grow, self.counter + 1, 0)
        return dataclasses.replace(self, loss_scale=vnp.where(finite, grown, shrunk), counter=lax.convert_element_type(counter, np.int32))


def _times(number: Array, values: Any) -> Any:
    def times(value: Any) -> Array:
        x = widened(as_value(value))
        return x * factor(number, x)

    return tree.map(times, values)


class LossScaledState(NamedTuple):
    """The loss scale, whether the last step was finite, and the optimizer's state."""

    loss_scale: DynamicLossScale
    last_finite: Array
    inner_state: OptState


def loss_scaled(inner: GradientTransformation, loss_scale: DynamicLossScale | None = None) -> GradientTransformationExtraArgs:
    """Wrap an optimizer for gradients of ``state.loss_scale.scale(loss)``.

    The gradients are divided by the scale, and the scale is adjusted. If a gradient has an infinity or NaN, the updates are zeros and the
    optimizer's state stays unchanged.

    >>> optimizer = optim.loss_scaled(optim.adam(1e-3), optim.DynamicLossScale.init(2.0**12))
    >>> w = vf.numpy.ones(2, "float16")
    >>> state = optimizer.init(w)
    >>> gradient = vf.grad(lambda w: state.loss_scale.scale(vf.numpy.sum(w**2)))(w)
    >>> updates, state = optimizer.update(gradient, state, w)
    >>> updates.dtype, float(state.loss_scale.loss_scale)
    (dtype('float16'), 4096.0)
    """
    inner = with_extra_args_support(inner)
    first = DynamicLossScale.init() if loss_scale is None else loss_scale

    def init(params: Any) -> LossScaledState:
        return LossScaledState(first, vnp.array(True), inner.init(params))

    def update(updates: Any, state: Any, params: Any = None, **extra_args: Any) -> tuple[Any, Any]:
        finite = all_finite(updates)

        def step() -> tuple[Any, Any]:
            changed, inner_state = inner.update(state.loss_scale.unscale(updates), state.inner_state, params, **extra_args)
            return tree_cast_like(changed, updates), inner_state

        def skip() -> tuple[Any, Any]:
            return tree.map(vnp.zeros_like, updates), state.inner_state

        new_updates, inner_state = branch(finite, step, skip)
        return new_updates, LossScaledState(state.loss_scale.adjust(finite), finite, inner_state)

    return GradientTransformationExtraArgs(init, update)


# Measurements of updates, kept in the state while the updates pass unchanged.

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

    def measure_all(updates: Updates, states: tuple[OptState, ...], params: Params | None, extra_args: dict[str, Any]) -> MonitorState:
        pairs = [tx.update(updates, state, params, **extra_args) for tx, state in zip(transforms.values(), states, strict=True)]
        values = {name: value for name, (value, _) in zip(transforms, pairs, strict=True)}
        return MonitorState(values, tuple(state for _, state in pairs))

    def init(params: Any) -> MonitorState:
        states = tuple(tx.init(params) for tx in transforms.values())
        return MonitorState(measure_all(params, states, params, {}).measurements, states)

    def update(updates: Any, state: Any, params: Any = None, **extra_args: Any) -> tuple[Any, Any]:
        return updates, measure_all(updates, state.measure_states, params, extra_args)

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
    entries = tree_get_all_with_path(state, "count")
    counts = [count for path, count in entries if getattr(path[-1], "tuple_name", "") == "ScaleByScheduleState"]
    if not counts:
        raise ArgumentError("current_learning_rate: the state has no count of steps of a schedule; was the optimizer made with a number?")
    return as_value(learning_rate(counts[-1]))


# Gradient accumulation, for batches too large for memory.

#: (updates, gradient_step, params) -> (whether to skip these updates, a pytree that tells why)
ShouldSkipUpdateFunction: TypeAlias = Callable[[Updates, Array, Any], tuple[Array, Any]]


def skip_not_finite(updates: Updates, gradient_step: Array, params: Params | None) -> tuple[Array, dict[str, Array]]:
    """Skip updates with an infinity or NaN, in `MultiSteps`."""
    counts = [vnp.sum(~vnp.isfinite(as_value(u))) for u in tree.leaves(updates)]
    number = sum(counts, count_zero())
    return number > 0, {"should_skip": number > 0, "num_not_finite": number}


def skip_large_updates(
    updates: Updates, gradient_step: Array, params: Params | None, max_squared_norm: Any
) -> tuple[Array, dict[str, Array]]:
    """Skip updates with large norms, in `MultiSteps`; bind the limit with `partial`."""
    norm_sq = sum_of_squares(updates)
    skip = ~(norm_sq < max_squared_norm)  # true for NaN
    return skip, {"should_skip": skip, "norm_squared": norm_sq}


def _skip_none(updates: Updates, gradient_step: Array, params: Params | None) -> tuple[Array, tuple[()]]:
    return vnp.array(False), ()


def _constant(number: int, step: Any) -> int:
    """Return the number of a schedule that does not depend on the step."""
    return number


class MultiStepsState(NamedTuple):
    """Counters of gradients and steps (int32), optimizer state, accumulated gradients.

    `skip_state` tells why the last gradient was skipped.
    """

    mini_step: Array
    gradient_step: Array
    inner_opt_state: OptState
    acc_grads: Updates
    skip_state: Any = ()


class MultiSteps:
    """An optimizer that steps every k gradients; in between its updates are zeros.

    >>> optimizer = optim.MultiSteps(optim.sgd(1.0), every_k_schedule=2)
    >>> params = vf.numpy.zeros(1)
    >>> state = optimizer.init(params)
    >>> for gradient in ([1.0], [3.0]):
    ...     updates, state = optimizer.update(vf.numpy.array(gradient), state, params)
    ...     print(updates, optimizer.has_updated(state))
    [0.] False
    [-2.] True

    Args:
        opt: the optimizer.
        every_k_schedule: the number of gradients per step, or a function from the number of steps to it.
        use_grad_mean: whether the optimizer gets the mean of the gradients or their sum.
        should_skip_update_fn: tells which gradients to skip, such as `skip_not_finite`.
        accumulator_dtype: the dtype of the accumulated gradients; by default the parameters' dtype, float32 at least.

    Raises:
        ArgumentError: `every_k_schedule` is less than 1.
    """

    def __init__(
        self,
        opt: GradientTransformation,
        every_k_schedule: int | Callable[[Any], Any],
        use_grad_mean: bool = True,
        should_skip_update_fn: ShouldSkipUpdateFunction | None = None,
        accumulator_dtype: Any = None,
    ) -> None:
        if isinstance(every_k_schedule, int) and every_k_schedule < 1:
            raise ArgumentError(f"MultiSteps: every_k_schedule must be at least 1, got {every_k_schedule}")
        self._opt = with_extra_args_support(opt)
        self._every_k = every_k_schedule if callable(every_k_schedule) else functools.partial(_constant, every_k_schedule)
        self._use_grad_mean = use_grad_mean
        self._should_skip = should_skip_update_fn or _skip_none
        self._accumulator_dtype = accumulator_dtype

    @property
    def inner_opt(self) -> GradientTransformationExtraArgs:
        """The optimizer."""
        return self._opt

    def init(self, params: Params) -> MultiStepsState:
        """Return the state without gradients, with the optimizer's initial state."""
        _, skip_state = self._should_skip(params, count_zero(), params)
        zeros = tree.map(lambda p: self._zeros(as_value(p)), params)
        return MultiStepsState(count_zero(), count_zero(), self._opt.init(params), zeros, skip_state)

    def _zeros(self, param: Array) -> Array:
        return full_like(param, 0, self._accumulator_dtype or dtypes.accumulator(param.dtype))

    def update(self, updates: Updates, state: OptState, params: Params | None = None, **extra_args: Any) -> tuple[Updates, OptState]:
        """Accumulate the updates, and make a step of the optimizer if there are enough."""
        skip, skip_state = self._should_skip(updates, state.gradient_step, params)
        if as_value(skip).dtype != np.bool_ or as_value(skip).shape:
            raise DTypeError(f"MultiSteps: should_skip_update_fn must return a boolean scalar first, got {as_value(skip)!r}")
        accumulated = tree_where(skip, state.acc_grads, self._accumulate(updates, state))
        last = state.mini_step == self._every_k(state.gradient_step) - 1
        emit = last & ~skip

        def step() -> tuple[Any, Any]:
            return self._opt.update(tree_cast_like(accumulated, updates), state.inner_opt_state, params, **extra_args)

        def wait() -> tuple[Any, Any]:
            return tree.map(vnp.zeros_like, updates), state.inner_opt_state

        new_updates, inner_state = branch(emit, step, wait)
        mini_step = vnp.where(skip, state.mini_step, vnp.where(last, 0, state.mini_step + 1))
        gradient_step = vnp.where(emit, safe_increment(state.gradient_step), state.gradient_step)
        accumulated = tree.map(lambda g: vnp.where(emit, vnp.zeros_like(g), g), accumulated)
        return new_updates, MultiStepsState(mini_step, gradient_step, inner_state, accumulated, skip_state)

    def _accumulate(self, updates: Updates, state: MultiStepsState) -> Updates:
        """Add a gradient to the sum, or to the running mean, which cannot overflow."""

        def rule(g: Array, total: Array) -> tuple[Array, Array]:
            if not self._use_grad_mean:
                return g, total + g
            return g, total + (g - total) / (state.mini_step + 1).astype(dtypes.real_dtype(g.dtype))

        return map_with_state(rule, updates, state.acc_grads)[1]

    def has_updated(self, state: MultiStepsState) -> Array:
        """Return True if the last call of `update` made a step of the optimizer."""
        return (state.mini_step == 0) & (state.gradient_step > 0)

    def gradient_transformation(self) -> GradientTransformation:
        """Return the same optimizer as a pair of functions."""
        return GradientTransformationExtraArgs(self.init, self.update)


# Optimizers on several processes: averaged gradients and sharded states.


def average_gradients(updates: Updates, axis_name: Any, *, compression: str | None = None) -> Updates:
    """Return the means of gradients over a named axis.

    Between processes all of them travel in a few messages, which start as soon as their gradients are computed.

    Args:
        updates: a pytree of floating-point arrays.
        axis_name: one or more names of axes.
        compression: "bfloat16" halves the bytes: float32 gradients, and their sums, are rounded to it. Other dtypes raise `DTypeError`.

    >>> vf.vmap(lambda g: optim.average_gradients(g, "data"), axis_name="data")(vf.numpy.array([1.0, 3.0]))
    Array([2., 2.], dtype=float32)
    """
    size = lax.axis_size(axis_name)
    return tree.map(lambda total: total / size, sum_of(updates, axis_name, None, compression))


def _rows(x: Any, axis_name: Any) -> Array:
    """Return the elements in rows, one per position, padded with zeros."""
    size = lax.axis_size(axis_name)
    flat = vnp.ravel(x)
    length = -(-flat.size // size)
    return vnp.pad(flat, (0, size * length - flat.size)).reshape(size, length)


def _local_row(x: Any, axis_name: Any) -> Array:
    return lax.dynamic_index_in_dim(_rows(x, axis_name), lax.axis_index(axis_name), keepdims=False)


def _joined(row: Any, like: Any, axis_name: Any) -> Array:
    """Join the rows of all positions to an array of the shape of `like`."""
    flat = lax.all_gather(row, axis_name, tiled=True)
    return flat[: vnp.size(like)].reshape(vnp.shape(like))


#: Elements of a row below which it shares a message with others: a message takes longer than so few bytes.
_SHORT_ROW = 1 << 14


def _together(columns: Sequence[Any], move: Callable[[Any], Any]) -> list[Any]:
    """Apply a function of rows to several arrays.

    It is called once for all short ones of a dtype, joined along the last axis, which it leaves alone.
    """
    results = [*columns]
    groups: dict[Any, list[int]] = {}
    for number, rows in enumerate(columns):
        groups.setdefault(rows.dtype if rows.shape[-1] < _SHORT_ROW else number, []).append(number)
    for numbers in groups.values():
        moved = move(vnp.concatenate([columns[i] for i in numbers], -1))
        begin = 0
        for i in numbers:
            results[i] = moved[..., begin : begin + columns[i].shape[-1]]
            begin += columns[i].shape[-1]
    return results


def shard_states(inner: GradientTransformation, axis_name: str, *, average: bool = True) -> GradientTransformationExtraArgs:
    """Keep a shard of the optimizer's state in each process (ZeRO-1).

    Each position of the axis updates its shard of the elements of each array, and gathers the updates of the others: the state takes a
    fraction of the memory, and messages are as long as those of averaged gradients. `init` and `update` are called where the axis is bound.

    Args:
        inner: a transformation that treats each element by itself, such as `adam`, `adamw` or `sgd`. One that combines elements of an array
            (`clip_by_global_norm`, `lamb`, `adafactor`) would combine those of one shard only: put it before, with `average=False`.
        axis_name: the axis over which states are shared out and gradients averaged.
        average: whether `update` gets each position's own gradients, and averages them; else they are equal already.

    >>> def step(params, grads):
    ...     optimizer = optim.shard_states(optim.sgd(0.5), "data")
    ...     return optimizer.update(grads, optimizer.init(params), params)[0]
    >>> vf.vmap(step, in_axes=(None, 0), axis_name="data")(vf.numpy.ones(3), vf.numpy.array([[1.0, 2, 3], [3.0, 2, 1]]))
    Array([[-1., -1., -1.],
           [-1., -1., -1.]], dtype=float32)
    """
    transform = with_extra_args_support(inner)

    def init(params: Params) -> OptState:
        return transform.init(tree.map(lambda p: _local_row(p, axis_name), params))

    def local_gradients(updates: Updates) -> Updates:
        if not average:
            return tree.map(lambda g: _local_row(g, axis_name), updates)
        leaves, structure = tree.flatten(updates)
        totals = _together([_rows(g, axis_name) for g in leaves], lambda rows: lax.psum_scatter(rows, axis_name))
        return tree.unflatten(structure, [total / lax.axis_size(axis_name) for total in totals])

    def joined(updates: Updates, like: Updates) -> Updates:
        shapes, structure = tree.flatten(like)
        rows = _together(tree.leaves(updates), lambda row: lax.all_gather(row, axis_name))
        return tree.unflatten(structure, [x.ravel()[: vnp.size(y)].reshape(vnp.shape(y)) for x, y in zip(rows, shapes, strict=True)])

    def update(updates: Updates, state: OptState, params: Params = None, **extra_args: Any) -> tuple[Updates, OptState]:
        shards = None if params is None else tree.map(lambda p: _local_row(p, axis_name), params)
        local_updates, state = transform.update(local_gradients(updates), state, shards, **extra_args)
        return joined(local_updates, updates), state

    return GradientTransformationExtraArgs(init, update)


def gather_states(inner: GradientTransformation, state: OptState, params: Params, axis_name: str) -> OptState:
    """Join the shards of a state to the state of `inner`.

    That is what checkpoints hold, since it does not depend on the number of processes; see `scatter_states`.

    >>> def unsharded(params):
    ...     state = optim.shard_states(optim.adam(0.1), "data").init(params)
    ...     return optim.gather_states(optim.adam(0.1), state, params, "data")[0].mu
    >>> vf.vmap(unsharded, axis_name="data", in_axes=None, out_axes=None, axis_size=2)(vf.numpy.ones(3))
    Array([0., 0., 0.], dtype=float32)
    """
    return tree_map_params(inner, lambda row, p: _joined(row, p, axis_name), state, params)


def scatter_states(inner: GradientTransformation, state: OptState, axis_name: str) -> OptState:
    """Return the shard of an unsharded state that belongs to this position.

    >>> state = optim.adam(0.1).init(vf.numpy.ones(3))
    >>> vf.vmap(lambda s: optim.scatter_states(optim.adam(0.1), s, "data")[0].mu, None, axis_name="data", axis_size=2)(state).shape
    (2, 2)
    """
    return tree_map_params(inner, lambda x: _local_row(x, axis_name), state)
