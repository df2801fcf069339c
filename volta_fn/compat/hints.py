"""Hints to XLA about places, order and partitions of computations, by JAX's names.

They change no value, so that functions with hints compute what they compute without. Targets here choose the order and the place of
computations themselves.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from volta_fn.core.arrays.array import as_value
from volta_fn.errors import ArgumentError, ArgumentTypeError, ShapeError

# Where and in which order.


def _check_compute_type(compute_type: Any) -> None:
    """Raise an error unless it is a kind of processor that JAX knows."""
    if not isinstance(compute_type, str):
        raise ArgumentTypeError(f"compute_on: the type of processor is a string, got {compute_type!r}")
    if compute_type not in ("device_host", "device", "tpu_sparsecore") and not compute_type.startswith("gpu_stream:"):
        raise ArgumentError(
            f"compute_on: the type must be 'device_host', 'device', 'tpu_sparsecore' or 'gpu_stream:#', got {compute_type!r}"
        )


@contextlib.contextmanager
def compute_on(compute_type: str) -> Iterator[None]:
    """Mark computations of a block or function for a kind of processor.

    They run on the device of their arguments.

    Raises `ArgumentError` for an unknown kind.

    >>> import volta_fn as vf
    >>> with compute_on("device_host"):
    ...     vf.numpy.ones(2) * 2
    Array([2., 2.], dtype=float32)
    """
    _check_compute_type(compute_type)
    yield


def compute_on2(f: Any = None, *, compute_type: str, out_memory_spaces: Any, compiler_options: Any = None) -> Any:
    """Return a function marked as by `compute_on`; without `f`, a decorator."""
    _check_compute_type(compute_type)
    return _unchanged if f is None else _unchanged(f)


def scheduling_group(name: Any) -> Callable[..., Any]:
    """Return a decorator that marks a function's operations as one group."""
    return _unchanged


def fused(*, out_spaces: Any) -> Callable[..., Any]:
    """Return a decorator that marks a function to be compiled as one kernel.

    The compiler fuses what it can of every function.
    """
    return _unchanged


def _unchanged(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that does the same."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return call


def control_dep(src: Any, dst: Any) -> None:
    """Accept the order of two results; programs have no effects that depend on it."""


def schedule(ops: Sequence[Any]) -> None:
    """Accept the order of results; see `control_dep`."""


def shard_alike(x: Any, y: Any) -> tuple[Any, Any]:
    """Return two arrays of one shape, which are to be split alike.

    Raises `ShapeError` if their shapes differ.

    >>> import volta_fn as vf
    >>> shard_alike(vf.numpy.ones(1), vf.numpy.zeros(1))
    (Array([1.], dtype=float32), Array([0.], dtype=float32))
    """
    first, second = as_value(x), as_value(y)
    if first.shape != second.shape:
        raise ShapeError(f"shard_alike: the arrays must have one shape, got {first.shape} and {second.shape}")
    return first, second


# Functions that say themselves how they are partitioned.

#: The name of leading dimensions that are split alike.
BATCHING = "…"


class ArrayMapping(tuple[Any, ...]):
    """The names of an array's dimensions in a rule of sharding."""

    def __new__(cls, *dim_mappings: Any) -> ArrayMapping:
        return super().__new__(cls, dim_mappings)


class CompoundFactor(tuple[Any, ...]):
    """The names of the factors that make up a dimension."""

    def __new__(cls, *factors: str) -> CompoundFactor:
        if len(factors) < 2:
            raise ArgumentError(f"CompoundFactor: a compound has two factors or more, got {factors}")
        return super().__new__(cls, factors)


@dataclass(frozen=True)
class SdyShardingRule:
    """How the dimensions of a function's results follow from those of its operands."""

    operand_mappings: tuple[ArrayMapping, ...]
    result_mappings: tuple[ArrayMapping, ...]
    reduction_factors: tuple[str, ...] = field(default=(), kw_only=True)
    need_replication_factors: tuple[str, ...] = field(default=(), kw_only=True)


class custom_partitioning:  # JAX's name
    """A function with rules for its partitions, which is called as it is.

    Arrays are split where a function is mapped over shards. `static_argnums` are accepted. Calls before `def_partition` raise
    `ArgumentError`, as in JAX.

    >>> import volta_fn as vf
    >>> @custom_partitioning
    ... def double(x):
    ...     return 2 * x
    >>> rule = double.def_partition(partition=lambda mesh, arguments, results: None, sharding_rule="i -> i")
    >>> double(vf.numpy.ones(2))
    Array([2., 2.], dtype=float32)
    """

    def __init__(self, fun: Callable[..., Any], static_argnums: Any = ()) -> None:
        functools.update_wrapper(self, fun)
        self.fun, self.static_argnums = fun, static_argnums
        self.partition: Callable[..., Any] | None = None

    def def_partition(
        self,
        partition: Callable[..., Any],
        infer_sharding_from_operands: Callable[..., Any] | None = None,
        propagate_user_sharding: Callable[..., Any] | None = None,
        decode_shardings: bool = True,
        sharding_rule: Any = None,
        **sharding_rule_kwargs: Any,
    ) -> Callable[..., Any]:
        """Set the rules, and return `partition`."""
        self.partition = partition
        self.infer_sharding_from_operands = infer_sharding_from_operands
        self.propagate_user_sharding = propagate_user_sharding
        self.sharding_rule = sharding_rule
        return partition

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.partition is None:
            raise ArgumentError(f"custom_partitioning: {self.fun!r} has no rules; call its def_partition first")
        return self.fun(*inspect.signature(self.fun).bind(*args, **kwargs).args)
