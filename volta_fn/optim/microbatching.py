"""Functions of large batches as loops over small ones.

A microbatch takes every n-th example, where n is the number of microbatches.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from volta_fn import dtypes, lax
from volta_fn import numpy as vnp
from volta_fn import tree as trees
from volta_fn.core.arrays.array import Array, as_value
from volta_fn.core.staging import eval_shape
from volta_fn.errors import ArgumentError, DTypeError, ShapeError
from volta_fn.transforms.grad import value_and_grad
from volta_fn.transforms.vmap import vmap

__all__ = ["AccumulationType", "Accumulator", "micro_grad", "micro_vmap", "microbatch", "reshape_batch_axis"]


@dataclasses.dataclass(frozen=True)
class Accumulator:
    """How results of microbatches are combined: functions of trees.

    `init(value)` makes the first state, given shapes and dtypes; `update(state, value, index)` the next; `finalize(state)` the result.
    `aggregate(values)` combines the results of a batch, stacked along the first axis.
    """

    init: Callable[[Any], Any]
    update: Callable[[Any, Any, Any], Any]
    finalize: Callable[[Any], Any]
    aggregate: Callable[[Any], Any]


class AccumulationType(enum.Enum):
    """How results are combined: their mean, sum, mean of those computed, or in a row."""

    MEAN = enum.auto()
    SUM = enum.auto()
    RUNNING_MEAN = enum.auto()
    CONCAT = enum.auto()


def reshape_batch_axis(tree: Any, microbatch_size: int, axis: int = 0) -> Any:
    """Split a batch axis in one of microbatches and one of `microbatch_size`.

    >>> optim.microbatching.reshape_batch_axis(jnp.arange(6), 2)
    Array([[0, 3],
           [1, 4],
           [2, 5]], dtype=int32)
    """

    def split(x: Any) -> Array:
        value = as_value(x)
        shape = (*value.shape[:axis], microbatch_size, -1, *value.shape[axis + 1 :])
        return value.reshape(shape).swapaxes(axis, axis + 1)

    return trees.map(split, tree)


def _by_leaf(
    init: Callable[[Any], Any], update: Callable[[Any, Any, Any], Any], finalize: Callable[[Any], Any], aggregate: Callable[[Any], Any]
) -> Accumulator:
    return Accumulator(
        lambda value: trees.map(init, value),
        lambda state, value, index: trees.map(lambda s, v: update(s, v, index), state, value),
        lambda state: trees.map(finalize, state),
        lambda values: trees.map(aggregate, values),
    )


def _zeros(x: Any) -> Array:
    return vnp.zeros(x.shape, dtypes.accumulator(x.dtype))


def _inexact_zeros(x: Any) -> Array:
    if x.dtype not in dtypes.INEXACT:
        raise DTypeError(f"a mean of microbatches is of floating-point or complex numbers, got dtype {x.dtype.name}")
    return _zeros(x)


def _joined(stacked: Array) -> Array:
    """Undo `reshape_batch_axis`."""
    return stacked.swapaxes(0, 1).reshape(-1, *stacked.shape[2:])


def _combined(kinds: Any, count: int) -> Accumulator:
    """Return one accumulator for a tree of kinds, which sum in float32 at least."""

    def accumulator_of(kind: Any) -> Accumulator:
        if isinstance(kind, Accumulator):
            return kind
        if not isinstance(kind, AccumulationType):
            raise ArgumentError(f"an accumulator is an Accumulator or an AccumulationType, got {kind!r}")

        def mean(values: Array) -> Array:
            return vnp.mean(values, 0)

        match kind:
            case AccumulationType.SUM:
                return _by_leaf(_zeros, lambda s, v, i: s + v, lambda s: s, lambda v: vnp.sum(v, 0))
            case AccumulationType.MEAN:
                return _by_leaf(_inexact_zeros, lambda s, v, i: s + v, lambda s: s / count, mean)
            case AccumulationType.RUNNING_MEAN:
                return _by_leaf(_inexact_zeros, lambda s, v, i: (s + (v - s) / (i + 1)).astype(s.dtype), lambda s: s, mean)
        return _by_leaf(lambda x: vnp.zeros((count, *x.shape), x.dtype), lambda s, v, i: s.at[i].set(v), _joined, lambda v: v)

    chunks = trees.map(accumulator_of, kinds)
    return Accumulator(
        lambda value: trees.map(lambda acc, v: acc.init(v), chunks, value),
        lambda state, value, index: trees.map(lambda acc, s, v: acc.update(s, v, index), chunks, state, value),
        lambda state: trees.map(lambda acc, s: acc.finalize(s), chunks, state),
        lambda values: trees.map(lambda acc, v: acc.aggregate(v), chunks, values),
    )


def _like(kind: Any, result: Any, like: Any) -> Any:
    """Return a kind's result in the dtypes of a microbatch's."""
    return result if isinstance(kind, Accumulator) else trees.map(lambda x, y: lax.convert_element_type(x, y.dtype), result, like)


def microbatch(
    fun: Callable[..., Any],
    argnums: int | Sequence[int],
    microbatch_size: int | None,
    accumulator: Any = AccumulationType.SUM,
    *,
    argnames: str | Sequence[str] = (),
    in_axes: int | Sequence[int] = 0,
    num_real_microbatches: Any = None,
) -> Callable[..., Any]:
    """Return a function that calls `fun` with microbatches, and combines the results.

    Args:
        fun: a function of batches.
        argnums: which positional arguments are batches.
        microbatch_size: the size of a microbatch, by which that of the batch is divisible; None for the batch itself.
        accumulator: an `AccumulationType`, an `Accumulator`, or a tree of them with the structure of the results or a prefix of it.
        argnames: which keyword arguments are batches.
        in_axes: the batch axis of all of these, or of each.
        num_real_microbatches: how many microbatches to compute, if not all; may be traced.

    Raises `ShapeError` if the batches have different sizes or are not divisible.

    >>> total = optim.microbatching.microbatch(lambda x: jnp.sum(x**2), 0, microbatch_size=2)
    >>> total(jnp.array([1.0, 2.0, 3.0, 4.0]))
    Array(30., dtype=float32)
    """
    if microbatch_size is None:
        return fun
    size: int = microbatch_size
    numbers = (argnums,) if isinstance(argnums, int) else tuple(argnums)
    names = (argnames,) if isinstance(argnames, str) else tuple(argnames)
    axes = (in_axes,) * len(numbers + names) if isinstance(in_axes, int) else tuple(in_axes)

    def microbatched(*args: Any, **kwargs: Any) -> Any:
        batches = [*(args[i] for i in numbers), *(kwargs[name] for name in names)]
        count = _count(batches, axes, size)
        split = [reshape_batch_axis(value, size, axis) for value, axis in zip(batches, axes, strict=True)]
        chosen = _combined(accumulator, count)

        def call(index: Any) -> Any:
            chunks = [trees.map(lambda x, a=axis: vnp.take(x, index, a), value) for value, axis in zip(split, axes, strict=True)]
            positional = dict(zip(numbers, chunks, strict=False))
            named = dict(zip(names, chunks[len(numbers) :], strict=True))
            return fun(*[positional.get(i, arg) for i, arg in enumerate(args)], **(kwargs | named))

        like = eval_shape(call, 0)
        start = chosen.init(like)
        steps = count if num_real_microbatches is None else num_real_microbatches
        result = chosen.finalize(lax.fori_loop(0, steps, lambda i, state: chosen.update(state, call(i), i), start))
        return trees.map(_like, accumulator, result, like)

    return microbatched


def _count(values: list[Any], axes: tuple[int, ...], size: int) -> int:
    """Return the number of microbatches, after a check of the batches."""
    sizes = {as_value(x).shape[axis] for value, axis in zip(values, axes, strict=True) for x in trees.leaves(value)}
    if len(sizes) != 1 or next(iter(sizes)) % size:
        raise ShapeError(f"microbatch: batches need one size, a multiple of {size}, got the sizes {sorted(sizes)}")
    return next(iter(sizes)) // size


def micro_vmap(
    fun: Callable[..., Any],
    in_axes: int | Sequence[int | None] = 0,
    out_axes: Any = 0,
    *,
    microbatch_size: int | None = None,
    vmap_fn: Callable[..., Any] = vmap,
    accumulator: Any = AccumulationType.CONCAT,
    num_real_microbatches: Any = None,
) -> Callable[..., Any]:
    """Return `vmap` in microbatches, with results in a row or combined.

    Arguments are those of `vmap` and of `microbatch`; positional arguments beyond `in_axes` and keyword arguments are not batches. Raises
    `ArgumentError` for other `out_axes` than 0.

    >>> square = optim.microbatching.micro_vmap(lambda x: x**2, microbatch_size=2)
    >>> square(jnp.arange(4.0))
    Array([0., 1., 4., 9.], dtype=float32)
    """
    if out_axes != 0:
        raise ArgumentError(f"micro_vmap: out_axes must be 0, got {out_axes!r}; move axes of the results")
    axes = (in_axes,) if isinstance(in_axes, int) else tuple(in_axes)
    batched = [i for i, axis in enumerate(axes) if axis is not None]

    def mapped(*args: Any, **kwargs: Any) -> Any:
        in_axes = (*axes, *[None] * (len(args) - len(axes)))

        def stacked_call(*values: Any) -> Any:
            stacked = vmap_fn(lambda *inner: fun(*inner, **kwargs), in_axes, 0)(*values)
            return _combined(accumulator, 1).aggregate(stacked)

        options: dict[str, Any] = {"in_axes": [axes[i] for i in batched], "num_real_microbatches": num_real_microbatches}
        return microbatch(stacked_call, batched, microbatch_size, accumulator, **options)(*args)

    return mapped


class IndividualOutputs(NamedTuple):
    """The results of `micro_grad` for each example."""

    values: Any
    metrics: Any
    aux: Any


def micro_grad(
    fun: Callable[..., Any],
    has_aux: bool = False,
    argnums: int | Sequence[int] = 0,
    *,
    batch_argnums: int | Sequence[int] = 1,
    keep_batch_dim: bool = True,
    microbatch_size: int | None = None,
    accumulator: Any = AccumulationType.SUM,
    transform_fn: Callable[[Any], Any] = lambda grad: grad,
    metrics_fn: Callable[[Any], Any] = lambda grad: None,
    num_real_microbatches: Any = None,
) -> Callable[..., Any]:
    """Return a function that transforms and combines gradients of examples.

    For clipping of single examples' gradients (`transform_fn`), for one.

    Args:
        fun: the loss, a scalar; with `has_aux` a pair of it and further results.
        has_aux: whether `fun` returns such pairs.
        argnums: which arguments to differentiate with respect to.
        batch_argnums: which arguments have a first axis of examples.
        keep_batch_dim: whether `fun` gets batches of one example, instead of examples.
        microbatch_size: how many gradients to compute at a time; None for all.
        accumulator: how transformed gradients are combined.
        transform_fn: of the gradient of one example.
        metrics_fn: results to be kept for each example, computed of its gradient.
        num_real_microbatches: as in `microbatch`.

    The function returns the combined gradients, and losses, metrics and further results of each example.

    >>> loss = lambda w, x: jnp.sum(w * x)
    >>> per_example = optim.microbatching.micro_grad(loss, transform_fn=lambda g: jnp.clip(g, -1, 1), microbatch_size=2)
    >>> grads, outputs = per_example(2.0, jnp.array([0.5, 3.0]))
    >>> grads, outputs.values
    (Array(1.5, dtype=float32), Array([1., 6.], dtype=float32))
    """
    batched = (batch_argnums,) if isinstance(batch_argnums, int) else tuple(batch_argnums)
    gradient = value_and_grad(fun, argnums, has_aux=has_aux)

    def example_gradient(*args: Any, **kwargs: Any) -> Any:
        value, grad = gradient(*args, **kwargs)
        value, aux = value if has_aux else (value, None)
        return transform_fn(grad), IndividualOutputs(value, metrics_fn(grad), aux)

    axes = [0 if i in batched else None for i in range(max(batched) + 1)]
    options: dict[str, Any] = {"microbatch_size": microbatch_size, "num_real_microbatches": num_real_microbatches}
    mapped = micro_vmap(example_gradient, axes, accumulator=(accumulator, AccumulationType.CONCAT), **options)
    if not keep_batch_dim:
        return mapped

    def with_batches_of_one(*args: Any, **kwargs: Any) -> Any:
        return mapped(*[trees.map(lambda x: vnp.expand_dims(x, 1), arg) if i in batched else arg for i, arg in enumerate(args)], **kwargs)

    return with_batches_of_one
