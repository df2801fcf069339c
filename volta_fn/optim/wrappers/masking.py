"""Transformations of some of the parameters: masks and groups.

A *mask* is a tree of booleans with the structure of the parameters or of a prefix of it, or a function from parameters (or updates) to
such a tree. Leaves that a transformation must not see are replaced by a `MaskedNode`, an empty container.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any, NamedTuple

import numpy as np

from volta_fn import tree
from volta_fn.core.array import Array
from volta_fn.errors import ArgumentError, ArgumentTypeError, ConcretizationError
from volta_fn.optim.base import (
    GradientTransformation,
    GradientTransformationExtraArgs,
    MaskOrFn,
    OptState,
    is_function,
    set_to_zero,
    with_extra_args_support,
)

__all__ = [
    "MaskedNode",
    "MaskedState",
    "MultiTransformState",
    "PartitionState",
    "freeze",
    "masked",
    "multi_transform",
    "partition",
    "selective_transform",
]


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
