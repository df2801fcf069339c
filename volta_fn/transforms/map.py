"""`map`: apply a function to each row in a `scan`, or to batches by `vmap`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from volta_fn import tree
from volta_fn.core.array import as_value
from volta_fn.core.staging import check_callable
from volta_fn.errors import ArgumentError
from volta_fn.primitives.control_flow.bodies import Adapted
from volta_fn.primitives.control_flow.scan import scan
from volta_fn.primitives.data_movement.movement import reshape
from volta_fn.primitives.data_movement.slicing import concatenate, slice_in_dim
from volta_fn.transforms.vmap import vmap


class _Row(Adapted):
    """A function of a row as the body of a scan."""

    def __call__(self, _: None, x: Any) -> Any:
        return None, self.owner(x)


class _Batch(Adapted):
    """A function of a row as the body of a scan over batches."""

    def __call__(self, _: None, xs: Any) -> Any:
        return None, vmap(self.owner)(xs)


R = TypeVar("R")


def map(f: Callable[[Any], R], xs: Any, *, batch_size: int | None = None) -> R:
    """Apply `f` to each row of `xs` along the leading axis, and stack the results.

    It needs the memory of one call, where `vmap` needs that of all. With `batch_size`, `vmap(f)` maps this many rows at once.

    Args:
        f: from a row, a pytree like `xs`, to a pytree of arrays.
        xs: a pytree of arrays that share the size of their leading axis.
        batch_size: rows per iteration; the remainder makes a smaller last batch. None: one by one; 0: all at once.

    Raises:
        ArgumentError: there are no arrays, or `batch_size` is negative.
        ShapeError: the leading sizes differ.

    >>> import volta_fn as vf
    >>> vf.lax.map(lambda x: x * x, vf.numpy.arange(4))
    Array([0, 1, 4, 9], dtype=int32)
    """
    check_callable(f, "map")
    if batch_size is None:
        return scan(_Row(f), None, xs)[1]
    if batch_size < 0:
        raise ArgumentError(f"map: batch_size must not be negative, got {batch_size}")
    leaves, structure = tree.flatten(xs)
    values = [as_value(x) for x in leaves]
    sizes = {v.shape[0] for v in values if v.ndim}
    if len(sizes) != 1 or not all(v.ndim for v in values):
        return scan(_Row(f), None, xs)[1]  # which raises the error
    (size,) = sizes
    batch_size = batch_size or max(size, 1)
    count, rest = divmod(size, batch_size)
    batches = tree.unflatten(structure, [reshape(slice_in_dim(v, 0, size - rest), (count, batch_size, *v.shape[1:])) for v in values])
    _, ys = scan(_Batch(f), None, batches)
    stacked = tree.map(lambda y: reshape(y, (count * batch_size, *y.shape[2:])), ys)
    if not rest:
        return stacked
    last = vmap(f)(tree.unflatten(structure, [slice_in_dim(v, size - rest, size) for v in values]))
    return tree.map(lambda a, b: concatenate([a, b], 0), stacked, last) if count else last
