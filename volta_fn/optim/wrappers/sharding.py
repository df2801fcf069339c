"""Optimizers on several processes: averaged gradients and sharded states."""

from __future__ import annotations

from typing import Any

from volta_fn import lax, tree
from volta_fn import numpy as vnp
from volta_fn.core.array import Array
from volta_fn.optim.base import GradientTransformation, GradientTransformationExtraArgs, OptState, Params, Updates, with_extra_args_support
from volta_fn.optim.tree_utils.states import tree_map_params
from volta_fn.primitives.collectives.reductions import sum_of

__all__ = ["average_gradients", "gather_states", "scatter_states", "shard_states"]


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


def _own_row(x: Any, axis_name: Any) -> Array:
    return lax.dynamic_index_in_dim(_rows(x, axis_name), lax.axis_index(axis_name), keepdims=False)


def _joined(row: Any, like: Any, axis_name: Any) -> Array:
    """Join the rows of all positions to an array of the shape of `like`."""
    flat = lax.all_gather(row, axis_name, tiled=True)
    return flat[: vnp.size(like)].reshape(vnp.shape(like))


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
        return transform.init(tree.map(lambda p: _own_row(p, axis_name), params))

    def own(gradient: Any) -> Array:
        if not average:
            return _own_row(gradient, axis_name)
        return lax.psum_scatter(_rows(gradient, axis_name), axis_name) / lax.axis_size(axis_name)

    def update(updates: Updates, state: OptState, params: Params = None, **extra_args: Any) -> tuple[Updates, OptState]:
        shards = None if params is None else tree.map(lambda p: _own_row(p, axis_name), params)
        found, state = transform.update(tree.map(own, updates), state, shards, **extra_args)
        return tree.map(lambda row, like: _joined(row, like, axis_name), found, updates), state

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
    return tree_map_params(inner, lambda x: _own_row(x, axis_name), state)
