"""`apply_updates`, and averages of parameters over time."""

from __future__ import annotations

import functools
from typing import Any, TypeVar

from volta_fn import tree
from volta_fn.core.array import as_value
from volta_fn.errors import ShapeError, TreeError
from volta_fn.optim.base import Updates
from volta_fn.optim.tree_rules import at_path, branch, cast_like, factor, is_leaf, map_leaves, widened
from volta_fn.transforms.custom.custom_jvp import custom_jvp

__all__ = ["apply_updates", "incremental_update", "periodic_update", "scale_gradient"]


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
        where = functools.partial(at_path, updates, i, _is_none)
        if not is_leaf(param):
            raise TreeError(f"apply_updates: there is an update{where()}, where the parameters have no array. {_SAME_TREES}")
        old, new = as_value(param), as_value(update)
        if old.shape != new.shape:
            raise ShapeError(f"apply_updates: the update{where()} has shape {new.shape}, its parameter {old.shape}. {_SAME_TREES}")
        return cast_like(widened(old) + new, old)

    leaves, treedef = tree.flatten(updates, is_leaf=_is_none)
    pairs = zip(leaves, tree.flatten_up_to(treedef, params, "apply_updates: the parameters, compared with the updates"), strict=True)
    updated: Any = treedef.unflatten([add(i, *pair) for i, pair in enumerate(pairs)])
    return updated


_SAME_TREES = "Updates come from gradients with respect to these parameters: updates, state = optimizer.update(grads, state, params)."


def _is_none(node: Any) -> bool:
    return node is None


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

    >>> vf.grad(lambda x: optim.scale_gradient(x, 0.5) ** 2)(vf.numpy.array(3.0))
    Array(3., dtype=float32)
    """
    return tree.map(lambda x: _unchanged(as_value(x), scale), inputs)


@custom_jvp
def _unchanged(x: Any, scale: Any) -> Any:
    return x


_unchanged.defjvps(lambda g, out, x, scale: factor(scale, g) * g, None)
