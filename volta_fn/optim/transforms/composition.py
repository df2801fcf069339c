"""Composed transformations: chains, conditions, masks, rows, hyper-parameters."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from volta_fn import dtypes, lax, tree
from volta_fn import numpy as vnp
from volta_fn.core.arrays.array import Array, as_value
from volta_fn.errors import ArgumentError, ArgumentTypeError, ConcretizationError, DTypeError, ShapeError, TreeError
from volta_fn.numpy.arguments import as_signed
from volta_fn.numpy.joining import ravel_pytree
from volta_fn.optim.base import (
    Counter,
    GradientTransformation,
    GradientTransformationExtraArgs,
    MaskOrFn,
    OptState,
    Updates,
    is_function,
    set_to_zero,
    with_extra_args_support,
)
from volta_fn.optim.numerics import all_finite, branch, count_zero, safe_increment, widest_real
from volta_fn.source import signature

__all__ = [
    "ApplyIfFiniteState",
    "ConditionFn",
    "ConditionallyMaskState",
    "ConditionallyTransformState",
    "InjectHyperparamsState",
    "InjectStatefulHyperparamsState",
    "MaskedNode",
    "MaskedState",
    "MultiTransformState",
    "PartitionState",
    "apply_if_finite",
    "chain",
    "conditionally_mask",
    "conditionally_transform",
    "flatten",
    "freeze",
    "inject_hyperparams",
    "inject_stateful_hyperparams",
    "masked",
    "multi_transform",
    "named_chain",
    "partition",
    "selective_transform",
    "update_rows",
]

# Composition of transformations.


def chain(*args: GradientTransformation) -> GradientTransformationExtraArgs:
    """Apply transformations one after another; the state is the tuple of their states.

    All of them get the extra arguments of `update`.

    >>> optimizer = optim.chain(optim.clip_by_global_norm(1.0), optim.sgd(0.1))
    >>> params = vf.numpy.zeros(2)
    >>> updates, state = optimizer.update(vf.numpy.array([3.0, 4.0]), optimizer.init(params), params)
    >>> updates.round(3)
    Array([-0.06, -0.08], dtype=float32)

    Raises `ArgumentTypeError` for an argument that is no transformation, `TreeError` for the state of another chain.
    """
    transforms = [with_extra_args_support(tx) for tx in args]

    def init(params: Any) -> OptState:
        return tuple(tx.init(params) for tx in transforms)

    def update(updates: Any, state: Any, params: Any = None, **extra_args: Any) -> tuple[Any, Any]:
        if not isinstance(state, (tuple, list)) or len(state) != len(transforms):
            raise TreeError(
                f"chain: the state must be a tuple of {len(transforms)}, one for each transformation, got {type(state).__name__}"
                f"{f' of {len(state)}' if isinstance(state, (tuple, list)) else ''}; pass the one that init or the last update returned"
            )
        states = []
        for tx, inner_state in zip(transforms, state, strict=True):
            updates, inner_state = tx.update(updates, inner_state, params, **extra_args)
            states.append(inner_state)
        return updates, tuple(states)

    return GradientTransformationExtraArgs(init, update)


def named_chain(*args: tuple[str, GradientTransformation]) -> GradientTransformationExtraArgs:
    """Apply named transformations like `chain`; the state is a dict by name.

    >>> optim.named_chain(("clip", optim.clip(1.0)), ("descend", optim.scale(-0.1))).init(None)
    {'clip': EmptyState(), 'descend': EmptyState()}

    Raises `ArgumentError` for names that are not unique.
    """
    names = [name for name, _ in args]
    if len(set(names)) != len(names):
        raise ArgumentError(f"named_chain: names must be unique, got {names}")
    inner = chain(*(tx for _, tx in args))

    def init(params: Any) -> OptState:
        return dict(zip(names, inner.init(params), strict=True))

    def update(updates: Any, state: Any, params: Any = None, **extra_args: Any) -> tuple[Any, Any]:
        if not isinstance(state, dict) or set(state) != set(names):
            raise TreeError(f"named_chain: the state must be a dict with keys {names}; pass the one that init or the last update returned")
        updates, states = inner.update(updates, tuple(state[name] for name in names), params, **extra_args)
        return updates, dict(zip(names, states, strict=True))

    return GradientTransformationExtraArgs(init, update)


# Transformations applied only in some steps.

#: Tells from the number of steps, and maybe the extra arguments of `update`, whether to apply a transformation.
ConditionFn: TypeAlias = Callable[..., Any]


class ApplyIfFiniteState(NamedTuple):
    """Failures in a row, whether the last was finite, all failures, the inner state."""

    notfinite_count: Array
    last_finite: Array
    total_notfinite: Array
    inner_state: OptState


def apply_if_finite(inner: GradientTransformation, max_consecutive_errors: int) -> GradientTransformationExtraArgs:
    """Apply `inner` only to updates without infinities and NaN.

    Otherwise the updates become zeros and the state stays unchanged. After `max_consecutive_errors` such updates in a row they are let
    through, so that a broken run becomes visible.

    >>> optimizer = optim.apply_if_finite(optim.sgd(1.0), max_consecutive_errors=5)
    >>> updates, state = optimizer.update(vf.numpy.array([float("inf")]), optimizer.init(vf.numpy.zeros(1)))
    >>> updates, state.total_notfinite
    (Array([0.], dtype=float32), Array(1, dtype=int32))
    """
    inner = with_extra_args_support(inner)

    def init(params: Any) -> ApplyIfFiniteState:
        return ApplyIfFiniteState(count_zero(), vnp.array(True), count_zero(), inner.init(params))

    def update(updates: Any, state: Any, params: Any = None, **extra_args: Any) -> tuple[Any, Any]:
        finite = all_finite(updates)
        in_a_row = vnp.where(finite, 0, safe_increment(state.notfinite_count))
        new_updates, inner_state = branch(
            finite | (in_a_row > max_consecutive_errors),
            lambda: inner.update(updates, state.inner_state, params, **extra_args),
            lambda: (tree.map(vnp.zeros_like, updates), state.inner_state),
        )
        total = vnp.where(finite, state.total_notfinite, safe_increment(state.total_notfinite))
        return new_updates, ApplyIfFiniteState(in_a_row, finite, total, inner_state)

    return GradientTransformationExtraArgs(init, update)


class ConditionallyTransformState(NamedTuple):
    """The inner state and the number of steps (int32)."""

    inner_state: OptState
    step: Array


class ConditionallyMaskState(NamedTuple):
    """The number of steps (int32) and the inner state."""

    step: Array
    inner_state: OptState


def conditionally_transform(
    inner: GradientTransformation, should_transform_fn: ConditionFn, forward_extra_args: bool = False
) -> GradientTransformationExtraArgs:
    """Apply `inner` in steps for which ``should_transform_fn(step)`` is true.

    In other steps updates and state stay unchanged. With `forward_extra_args` the function also gets the extra arguments of `update`.
    """
    return _conditionally(inner, should_transform_fn, forward_extra_args, lambda updates: updates, ConditionallyTransformState)


def conditionally_mask(
    inner: GradientTransformation, should_transform_fn: ConditionFn, forward_extra_args: bool = False
) -> GradientTransformationExtraArgs:
    """Apply `inner` in steps for which ``should_transform_fn(step)`` is true.

    In other steps the updates are zeros and the state stays unchanged. With `forward_extra_args` the function also gets the extra
    arguments of `update`.

    >>> tx = optim.conditionally_mask(optim.sgd(1.0), lambda step: step % 2 == 1)
    >>> tx.update(vf.numpy.ones(1), tx.init(vf.numpy.zeros(1)))[0]
    Array([0.], dtype=float32)
    """

    def zeros(updates: Updates) -> Updates:
        return tree.map(vnp.zeros_like, updates)

    return _conditionally(inner, should_transform_fn, forward_extra_args, zeros, ConditionallyMaskState)


def _conditionally(
    inner: GradientTransformation,
    should_transform: ConditionFn,
    forward_extra_args: bool,
    otherwise: Callable[[Updates], Updates],
    state_type: Callable[..., Any],
) -> GradientTransformationExtraArgs:
    inner = with_extra_args_support(inner)

    def init(params: Any) -> OptState:
        return state_type(inner_state=inner.init(params), step=count_zero())

    def update(updates: Any, state: Any, params: Any = None, **extra_args: Any) -> tuple[Any, Any]:
        new_updates, inner_state = branch(
            as_value(should_transform(state.step, **(extra_args if forward_extra_args else {}))),
            lambda: inner.update(updates, state.inner_state, params, **extra_args),
            lambda: (otherwise(updates), state.inner_state),
        )
        return new_updates, state_type(inner_state=inner_state, step=safe_increment(state.step))

    return GradientTransformationExtraArgs(init, update)


# Optimizers over one vector of all parameters.


def flatten(inner: GradientTransformation) -> GradientTransformationExtraArgs:
    """Apply `inner` to one vector of all updates.

    A model of many small arrays then takes a few large operations. It is the same as applying `inner` itself if that treats all elements
    alike, and keeps one dtype for all leaves.

    >>> tx = optim.flatten(optim.adam(0.1))
    >>> params = {"w": vf.numpy.ones((2, 2)), "b": vf.numpy.ones(2)}
    >>> tx.init(params)[0].mu.shape
    (6,)
    """
    tx = with_extra_args_support(inner)

    def init(params: Any) -> OptState:
        return tx.init(ravel_pytree(params)[0])

    def update(updates: Any, state: Any, params: Any = None, **extra_args: Any) -> tuple[Any, Any]:
        vector, unravel = ravel_pytree(updates)
        flat, state = tx.update(vector, state, None if params is None else ravel_pytree(params)[0], **extra_args)
        return unravel(flat.astype(vector.dtype)), state

    return GradientTransformationExtraArgs(init, update)


# Transformations of some of the parameters: masks and groups.
#
# A *mask* is a tree of booleans with the structure of the parameters or of a prefix of it, or a function from parameters (or updates) to
# such a tree. Leaves that a transformation must not see are replaced by a `MaskedNode`, an empty container.


class MaskedNode(NamedTuple):
    """The placeholder of a leaf that a masked transformation does not see."""


class MaskedState(NamedTuple):
    """The state of a masked transformation, made from the parameters that it sees."""

    inner_state: OptState


def masked(inner: GradientTransformation, mask: MaskOrFn, *, mask_compatible_extra_args: bool = False) -> GradientTransformationExtraArgs:
    """Apply `inner` where the mask is True; other updates stay unchanged.

    >>> tx = optim.masked(optim.scale(-1.0), {"w": True, "b": False})
    >>> params = {"w": vf.numpy.ones(2), "b": vf.numpy.ones(1)}
    >>> tx.update(params, tx.init(params))[0]
    {'w': Array([-1., -1.], dtype=float32), 'b': Array([1.], dtype=float32)}

    Args:
        inner: a transformation of trees that have a `MaskedNode` where the mask is False.
        mask: a tree of booleans (one True may cover a subtree) or a function from parameters or updates to such a tree.
        mask_compatible_extra_args: whether extra arguments with the updates' structure are masked, too.

    Raises:
        TreeError: the mask does not fit the parameters.
        ArgumentTypeError: its leaves are not booleans.
    """
    inner = with_extra_args_support(inner)

    def init(params: Any) -> MaskedState:
        return MaskedState(inner.init(_keep(_mask_leaves(mask, params), params)))

    def update(updates: Any, state: Any, params: Any = None, **extra_args: Any) -> tuple[Any, Any]:
        chosen = _mask_leaves(mask, updates)
        if mask_compatible_extra_args:
            like = tree.structure(updates)
            extra_args = {name: _keep(chosen, value) if tree.structure(value) == like else value for name, value in extra_args.items()}
        kept_params = None if params is None else _keep(chosen, params)
        changed, inner_state = inner.update(_keep(chosen, updates), state.inner_state, kept_params, **extra_args)
        leaves, treedef = tree.flatten(updates)
        new_leaves = tree.flatten_up_to(treedef, changed, "the updates of a masked transformation")
        merged = treedef.unflatten([new if use else old for use, new, old in zip(chosen, new_leaves, leaves, strict=True)])
        return merged, MaskedState(inner_state)

    return GradientTransformationExtraArgs(init, update)


def _mask_leaves(mask: MaskOrFn, target: Any) -> list[bool]:
    """Return the mask's value for each leaf of `target`."""
    flags = tree.broadcast_prefix(mask(target) if is_function(mask) else mask, target)
    for flag in flags:
        if not isinstance(flag, (bool, np.bool_, Array)) or (isinstance(flag, Array) and (flag.shape or flag.dtype != np.bool_)):
            raise ArgumentTypeError(f"masked: the leaves of a mask must be booleans, got {flag!r:.80} of type {type(flag).__name__}")
    try:
        return [bool(flag) for flag in flags]
    except ConcretizationError as error:
        raise ArgumentTypeError("masked: a mask decides which arrays there are, so it cannot be a traced value") from error


def _keep(chosen: list[bool], values: Any) -> Any:
    leaves, treedef = tree.flatten(values)
    if len(leaves) != len(chosen):
        raise ArgumentError(f"masked: the updates have {len(chosen)} leaves, the parameters {len(leaves)}")
    return treedef.unflatten([leaf if use else MaskedNode() for use, leaf in zip(chosen, leaves, strict=True)])


class PartitionState(NamedTuple):
    """The states of the groups' transformations, by label."""

    inner_states: dict[Any, OptState]


def partition(
    transforms: Mapping[Any, GradientTransformation], param_labels: Any, *, mask_compatible_extra_args: bool = False
) -> GradientTransformationExtraArgs:
    """Apply a separate transformation to each group of parameters.

    So biases, embeddings or a frozen backbone can have their own settings.

    Args:
        transforms: transformations by label.
        param_labels: a tree of labels with the structure of the parameters or of a prefix of it, or a function from parameters to one.
        mask_compatible_extra_args: that of `masked`.

    Raises:
        ArgumentError: a label has no transformation.

    >>> tx = optim.partition({"fast": optim.sgd(1.0), "frozen": optim.set_to_zero()}, {"w": "fast", "b": "frozen"})
    >>> params = {"w": vf.numpy.ones(2), "b": vf.numpy.ones(1)}
    >>> tx.update(params, tx.init(params))[0]
    {'w': Array([-1., -1.], dtype=float32), 'b': Array([0.], dtype=float32)}
    """

    def groups(target: Any) -> dict[Any, GradientTransformationExtraArgs]:
        labels = tree.broadcast_prefix(param_labels(target) if is_function(param_labels) else param_labels, target)
        unknown = {label for label in labels if not isinstance(label, Hashable) or label not in transforms}
        if unknown:
            raise ArgumentError(f"partition: no transformation for the labels {unknown}; there are {list(transforms)}")
        masks = {label: tree.structure(target).unflatten([other == label for other in labels]) for label in transforms}
        return {label: masked(tx, masks[label], mask_compatible_extra_args=mask_compatible_extra_args) for label, tx in transforms.items()}

    def init(params: Any) -> PartitionState:
        return PartitionState({label: tx.init(params) for label, tx in groups(params).items()})

    def update(updates: Any, state: Any, params: Any = None, **extra_args: Any) -> tuple[Any, Any]:
        inner_states = {}
        for label, tx in groups(updates).items():
            updates, inner_states[label] = tx.update(updates, state.inner_states[label], params, **extra_args)
        return updates, PartitionState(inner_states)

    return GradientTransformationExtraArgs(init, update)


multi_transform = partition
MultiTransformState = PartitionState


def freeze(mask: MaskOrFn) -> GradientTransformationExtraArgs:
    """Set updates to zero where the mask is True: freeze those parameters."""
    return masked(set_to_zero(), mask)


def selective_transform(optimizer: GradientTransformation, *, freeze_mask: MaskOrFn) -> GradientTransformationExtraArgs:
    """Apply `optimizer` where the mask is False; freeze the others, without a state."""

    def labels(target: Any) -> Any:
        flags = _mask_leaves(freeze_mask, target)
        return tree.structure(target).unflatten(["freeze" if flag else "train" for flag in flags])

    return partition({"train": optimizer, "freeze": set_to_zero()}, labels)


# Updates of some rows of a table, without a gradient of the whole table.


def update_rows(
    optimizer: GradientTransformation, table: Any, state: Any, indices: Any, gradients: Any, **extra_args: Any
) -> tuple[Array, Any]:
    """Update the rows of a table that have gradients.

    All others remain as they are.

    An embedding of a large vocabulary uses few of its rows in a step. Take the gradient by the rows, ``table[indices]``, instead of by the
    table, and no array of the table's size is computed; in a jitted step with donated arguments rows are replaced in place. Gradients of
    equal indices are added.

    It is PyTorch's ``sparse=True`` with SGD, and its SparseAdam, for every optimizer that computes each element by itself: moments and
    weight decay change where there is a gradient only, and the count of steps for all. Without momentum, results are those of a gradient
    with zeros elsewhere.

    Args:
        optimizer: its state has arrays of the table's shape, and numbers.
        table: shape (rows, …).
        state: of ``optimizer.init(table)``.
        indices: integers of any shape; negative ones count from the end. The gradient of one outside the table is dropped.
        gradients: of ``table[indices]``, of its shape.
        extra_args: further arguments of ``optimizer.update``.

    Returns the new table and the new state.

    Raises:
        ShapeError: the gradients do not fit. DTypeError: the indices are not integers.
        ArgumentError: the state has arrays that are neither numbers nor of the table's shape.

    >>> table, ids = vf.numpy.zeros((5, 2)), vf.numpy.array([3, 0, 3])
    >>> optimizer = optim.sgd(0.1)
    >>> gradient = vf.grad(lambda rows: vf.numpy.sum((rows - 1.0) ** 2))(table[ids])
    >>> table, state = optim.update_rows(optimizer, table, optimizer.init(table), ids, gradient)
    >>> table[:, 0]
    Array([0.2, 0. , 0. , 0.4, 0. ], dtype=float32)
    """
    values, numbers, slopes = as_value(table), as_value(indices), as_value(gradients)
    if numbers.dtype not in dtypes.INTEGERS:
        raise DTypeError(f"update_rows: indices are integers, got {numbers.aval}")
    if not values.ndim or slopes.shape != (*numbers.shape, *values.shape[1:]):
        raise ShapeError(
            f"update_rows: gradients are those of table[indices], of shape {(*numbers.shape, *values.shape[1:])}, got {slopes.shape}"
        )
    for leaf in tree.leaves(state):
        if as_value(leaf).shape not in ((), values.shape):
            raise ArgumentError(
                f"update_rows: the state has an array of shape {as_value(leaf).shape}, and the table has {values.shape}; use an optimizer "
                f"that computes each element by itself, such as sgd or adam"
            )
    rows, sums = _sums_of_rows(numbers.reshape(-1), slopes.reshape((-1, *values.shape[1:])), values.shape[0])

    def pick(leaf: Any) -> Any:
        return vnp.take(leaf, rows, axis=0, mode="clip") if as_value(leaf).ndim else leaf

    def put(leaf: Any, new: Any) -> Any:
        return as_value(leaf).at[rows].set(new, mode="drop", unique_indices=True) if as_value(leaf).ndim else new

    old = pick(values)
    updates, new_state = optimizer.update(sums, tree.map(pick, state), old, **extra_args)
    return put(values, old + updates.astype(values.dtype)), tree.map(put, state, new_state)


def _sums_of_rows(indices: Array, gradients: Array, rows: int) -> tuple[Array, Array]:
    """Return the distinct indices and the sums of their gradients.

    As many are returned as given: those left over are beyond the table.
    """
    indices = as_signed(indices)
    indices = vnp.where((indices >= -rows) & (indices < 0), indices + rows, vnp.where(indices < 0, rows, indices))
    order = vnp.argsort(indices)
    ascending = indices[order]
    is_first = vnp.concatenate([vnp.ones(min(1, indices.size), bool), ascending[1:] != ascending[:-1]])
    positions = vnp.cumsum(is_first.astype("int32")) - 1
    distinct = vnp.full_like(indices, rows).at[positions].set(ascending)
    return distinct, vnp.zeros_like(gradients).at[positions].add(gradients[order])


# Hyper-parameters in the state, to be read, changed, scheduled and traced.


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
    declared = signature(inner_factory)
    if not static <= set(declared.parameters):
        raise ArgumentError(f"inject_hyperparams: static_args {sorted(static)} are not all among the arguments {list(declared.parameters)}")

    @functools.wraps(inner_factory)
    def factory(*args: Any, **kwargs: Any) -> GradientTransformationExtraArgs:
        bound = declared.bind(*args, **kwargs)
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
    value_dtype = dtypes.dtype_and_weak_type(value)[0]
    return vnp.asarray(value, dtype if value_dtype in dtypes.FLOATS else value_dtype)
