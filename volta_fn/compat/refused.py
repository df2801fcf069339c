"""Names of JAX's that this package refuses with advice, or that have no effect."""

from __future__ import annotations

import contextlib
import enum
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NoReturn

from volta_fn.core.arrays.array import as_value
from volta_fn.errors import ArgumentError, ArgumentTypeError, ShapeError, UnsupportedError
from volta_fn.source import signature

# Lowerings to calls of foreign functions, which `volta_fn.compat.foreign_functions` calls from programs.


def _refuse(name: str) -> Any:
    def refuse(*args: Any, **options: Any) -> NoReturn:
        raise UnsupportedError(
            f"ffi.{name}: programs are not lowered to calls of XLA's; call the foreign function by ffi.ffi_call, in a function that "
            "mlir.lower_fun makes the primitive's lowering"
        )

    refuse.__name__ = refuse.__qualname__ = name
    refuse.__doc__ = "Raise `UnsupportedError`: there is no XLA."
    return refuse


build_ffi_lowering_function = _refuse("build_ffi_lowering_function")


# Attributes of operations for XLA, by JAX's name.
#
# They are accepted and have no effect: programs here keep lines of source instead.


class _Attributes:
    """A block, or a function, to whose operations attributes are given."""

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function as it is."""
        return function

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(self, *exception: object) -> None:
        """Do nothing."""


def set_xla_metadata(x: Any = None, **kwargs: Any) -> Any:
    """Return `x`; without it a context manager, which is a decorator, too.

    The attributes have no effect. Raises `ArgumentTypeError` for values that are neither strings, numbers nor booleans.

    >>> set_xla_metadata(vf.numpy.ones(2), label="input")
    Array([1., 1.], dtype=float32)
    >>> with set_xla_metadata(label="block"):
    ...     vf.numpy.ones(2) * 2
    Array([2., 2.], dtype=float32)
    """
    for name, value in kwargs.items():
        if not isinstance(value, (str, int, float)):
            raise ArgumentTypeError(f"set_xla_metadata: {name} must be a string, a number or a boolean, got {value!r}")
    return _Attributes() if x is None else x


def fuse_limit() -> Any:
    """Return a context manager without effect: kernels are fused as it pays."""
    return _Attributes()


def must_fuse_call(identifier: str) -> Any:
    """Return a decorator that returns functions as they are."""
    return _Attributes()


def xla_metadata_call(f: Any = None, **meta: Any) -> Any:
    """Return the function, or a decorator: attributes have no effect."""
    return xla_metadata_call2(f, meta)


def xla_metadata_call2(f: Any = None, /, metadata: Any = None, *, ad_metadata: Any = "same") -> Any:
    """Return the function, or a decorator: attributes have no effect.

    Raises `ArgumentTypeError` for values that are neither strings, numbers nor booleans.

    >>> xla_metadata_call2(abs, {"label": "block"})
    <built-in function abs>
    """
    set_xla_metadata(**(metadata or {}))
    return _Attributes() if f is None else f


# Types and functions of JAX that raise an error or change nothing here.
#
# These are the types of hijax, memory layouts, and the filter of tracebacks.

# Types and primitives by the names of `jax.experimental.hijax`.
#
# Libraries may define some; to use them raises `UnsupportedError`, as programs hold arrays alone.

_ADVICE = "high-level types are not supported: make the class a pytree instead (volta_fn.tree.register_pytree_node)"


class HiType:
    """The base of types that are not arrays."""


class MutableHiType(HiType):
    """The base of types whose values change."""


class AvalQDD:
    """A type with a state; there are none here."""

    def __init__(self, *args: Any) -> None:
        raise UnsupportedError(_ADVICE)


class AvalMutableQDD(AvalQDD):
    """A type with a changing state; there are none here."""


class HiPrimitive:
    """A primitive of high-level values."""

    multiple_results: ClassVar[bool] = False

    def __init__(self, name: str) -> None:
        self.name = name

    def bind(self, *args: Any, **params: Any) -> NoReturn:
        """Raise `UnsupportedError`."""
        raise UnsupportedError(f"{self.name}: {_ADVICE}")


class aval_property(property):  # JAX's name
    """A property that values have through their type."""


class aval_method:
    """A method that values have through their type."""

    def __init__(self, fun: Any) -> None:
        self.fun = fun


class _Effects:
    """The effects that loops may have."""

    def __init__(self) -> None:
        self.types: set[type] = set()

    def add_type(self, effect: type) -> None:
        self.types.add(effect)


control_flow_allowed_effects = _Effects()


def register_hitype(val_cls: type, typeof_fn: Any) -> None:
    """Accept a type, whose values no function here takes."""


# Memory layouts, as in `jax.experimental.layout`, which targets alone choose.


@dataclass(frozen=True)
class Layout:
    """The order of an array's dimensions in memory."""

    major_to_minor: tuple[int, ...]
    tiling: Any = None
    #: Lets the target choose, as it does anyway.
    AUTO: ClassVar[Any] = None

    def update(self, **changes: Any) -> Layout:
        """Return a layout with another `major_to_minor` or `tiling`."""
        return replace(self, **changes)

    def check_compatible_aval(self, aval_shape: Sequence[int]) -> None:
        """Raise `ShapeError` unless arrays of this shape have as many dimensions."""
        if len(self.major_to_minor) != len(aval_shape):
            raise ShapeError(f"{self} is a layout of {len(self.major_to_minor)} dimensions, but the shape is {tuple(aval_shape)}")


@dataclass(frozen=True)
class Format:
    """A layout and a sharding of an array."""

    layout: Layout | None = None
    sharding: Any = None


def with_layout_constraint(x: Any, layouts: Any) -> Any:
    """Return `x`: targets choose layouts, and no value depends on them.

    >>> with_layout_constraint(vf.numpy.ones(2), Layout((0,)))
    Array([1., 1.], dtype=float32)
    """
    return x


# Which frames tracebacks show: all, so that these functions change nothing.


def register_exclusion(path: str) -> None:
    """Accept a file whose frames JAX leaves out of tracebacks."""


def include_frame(frame: Any) -> bool:
    """Return True: every frame is shown."""
    return True


def api_boundary(fun: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """Mark a function as one of a library's interface; it is returned as it is."""
    return fun


# Hints about the place, the order and the partition of computations.
#
# They change no value, so that functions with hints compute what they compute without. Targets here choose the order and the place of
# computations themselves.

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
        return self.fun(*signature(self.fun).bind(*args, **kwargs).args)


# Options that choose among XLA's ways to compile and to reduce.
#
# Programs pass them on; here each has one meaning, and they have no effect.


class CompilerEffortLevel(enum.Enum):
    """How much time XLA takes for a program."""

    UNKNOWN = 0
    O0 = 9
    O1 = 19
    O2 = 29
    O3 = 39

    @classmethod
    def _missing_(cls, value: object) -> CompilerEffortLevel | None:
        """Return the level of a name: `CompilerEffortLevel("O1")`."""
        return cls.__members__.get(value) if isinstance(value, str) else None


class Inline(enum.Enum):
    """Where `jit(inline=...)` makes a call a part of the calling program."""

    JAX_EARLY = "jax_early"
    JAX_LATE = "jax_late"
    XLA_EARLY = "xla_early"
    XLA_LATE = "xla_late"
    AUTO = "auto"


class UnreducedKind(enum.Enum):
    """By what the parts of an array with unreduced axes are to be combined."""

    sum = enum.auto()
    max = enum.auto()
    min = enum.auto()
