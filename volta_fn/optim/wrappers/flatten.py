"""Optimizers over one vector of all parameters."""

from __future__ import annotations

from typing import Any

from volta_fn.flatten_util import ravel_pytree
from volta_fn.optim.base import GradientTransformation, GradientTransformationExtraArgs, OptState, with_extra_args_support

__all__ = ["flatten"]


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
