"""What libraries use of JAX's private modules, with the parameters that they pass."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, TypeVar

import numpy as np

from volta_fn import dtypes, lax, sharding, tree
from volta_fn import numpy as vnp
from volta_fn.core.arrays.array import Array, as_value, aval_of
from volta_fn.core.arrays.memory import constrained
from volta_fn.core.aval import ShapedArray, ShapeDtypeStruct
from volta_fn.core.devices.device import found_devices, process_count, process_index
from volta_fn.core.devices.sharding import Mesh, get_mesh
from volta_fn.core.primitive import Zero
from volta_fn.core.staging import function_name
from volta_fn.core.staging import wraps as functools_wraps
from volta_fn.core.trace import Trace, current_trace, set_trace
from volta_fn.errors import GradientError, ShapeError
from volta_fn.extend.core import Effect
from volta_fn.extend.functions import wrap_init
from volta_fn.extend.interpreters import apply_primitive as apply_primitive
from volta_fn.extend.interpreters import trace_to_jaxpr_dynamic
from volta_fn.extend.stablehlo import compare
from volta_fn.jit.function import jit
from volta_fn.numpy.arguments import promote, promote_inexact
from volta_fn.numpy.ufuncs import core_sizes
from volta_fn.primitives.array_operations.ref_views import Slice

# Promotion.


def to_inexact_dtype(dtype: Any) -> np.dtype:
    """Return the inexact dtype that functions convert a dtype to.

    >>> to_inexact_dtype("int32")
    dtype('float32')
    """
    return dtypes.to_inexact(dtypes.as_dtype(dtype))


def to_complex_dtype(dtype: Any) -> np.dtype:
    """Return the complex dtype of a dtype's precision.

    >>> to_complex_dtype("float64")
    dtype('complex128')
    """
    return dtypes.complex_dtype(dtypes.as_dtype(dtype))


def promote_dtypes(*args: Any) -> list[Array]:
    """Return arrays converted to the dtype that they promote to.

    >>> [x.dtype.name for x in promote_dtypes(jnp.int8(1), jnp.float32(2))]
    ['float32', 'float32']
    """
    return promote("promote_dtypes", *args)


def promote_dtypes_inexact(*args: Any) -> list[Array]:
    """Return arrays converted to the inexact dtype that they promote to."""
    return promote_inexact("promote_dtypes_inexact", *args)


def promote_args(fun_name: str, *args: Any) -> list[Array]:
    """Return arrays in the dtype that they promote to."""
    return promote(fun_name, *args)


def promote_args_inexact(fun_name: str, *args: Any) -> list[Array]:
    """Return arrays in the inexact dtype that they promote to."""
    return promote_inexact(fun_name, *args)


def _complex_basetype(dtype: Any) -> np.dtype:
    """Return the real dtype of a dtype's precision."""
    return np.dtype(dtypes.finfo(dtypes.as_dtype(dtype)).dtype)


def ensure_arraylike(fun_name: str, /, *args: Any) -> Any:
    """Return an argument, or a tuple of several, as arrays."""
    arrays = tuple([as_value(x) for x in args])
    return arrays[0] if len(arrays) == 1 else arrays


def check_arraylike(fun_name: str, *args: Any, emit_warning: bool = False, **kwargs: Any) -> None:
    """Raise an error if an argument is no array."""
    ensure_arraylike(fun_name, *args)


def promote_shapes(fun_name: str, *args: Any) -> list[Array]:
    """Return arrays with leading axes of size one, so that all have one rank.

    Scalars beside arrays of one rank stay scalars.
    """
    arrays = [as_value(x) for x in args]
    ranks = {x.ndim for x in arrays if x.ndim}
    return arrays if len(ranks) < 2 else [x.reshape((*(1,) * (max(ranks) - x.ndim), *x.shape)) for x in arrays]


def _H(x: Array) -> Array:  # JAX's name
    """Return the conjugate transposes of matrices."""
    return vnp.conj(vnp.matrix_transpose(x))


def symmetrize(x: Array) -> Array:
    """Return the Hermitian parts of matrices."""
    return (x + _H(x)) / 2


def full_like_aval(ctx: Any, value: Any, aval: ShapedArray) -> Array:
    """Return a number repeated, in a lowering rule."""
    return vnp.full(aval.shape, value, aval.dtype)


def compare_hlo(x: Any, y: Any, direction: str, comparison_type: str | None = None) -> Array:
    """Return a comparison by its name in StableHLO, such as "EQ", in a lowering rule."""
    return compare(as_value(x), as_value(y), direction.lower())


def broadcast_in_dim(ctx: Any, op: Any, aval_out: ShapedArray, *, broadcast_dimensions: Any, **options: Any) -> Array:
    """Return an array repeated to a type, in a lowering rule."""
    return lax.broadcast_in_dim(op, aval_out.shape, tuple(broadcast_dimensions))


def _nan_like_hlo(ctx: Any, aval: ShapedArray) -> Array:
    """Return NaNs of a type."""
    return vnp.full(aval.shape, complex(np.nan, np.nan) if aval.dtype in dtypes.COMPLEX else np.nan, aval.dtype)


def _broadcasting_select_hlo(ctx: Any, which: Any, which_aval: Any, x: Any, x_aval: Any, y: Any, y_aval: Any) -> Array:
    """Return the elements of `x` where `which` is true, else those of `y`."""
    return vnp.where(which, x, y)


def _const(example: Any, val: Any) -> Any:
    """Return a number of the dtype, or of Python's type, of an example.

    >>> _const(jnp.float16(1), 2).dtype
    dtype('float16')
    """
    return type(example)(val) if type(example) in (bool, int, float, complex) else np.array(val, _dtype(example))


def promote_dtypes_complex(*args: Any) -> list[Array]:
    """Return arrays converted to the complex dtype that they promote to."""
    return [x.astype(to_complex_dtype(x.dtype)) for x in promote_dtypes_inexact(*args)]


# The state of JAX's folder of compiled programs, which libraries reset. Programs on disk are found by what they are, so there is none.

_cache = None
_cache_checked = _cache_initialized = _cache_used = False
_cache_initialized_mutex = threading.Lock()


# The parts of `vectorize`.


def _apply_excluded(
    func: Callable[..., Any], excluded: Collection[int | str], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[Callable[..., Any], list[Any], dict[str, Any]]:
    """Return a function of the arguments that are not excluded, and these."""
    positions = [k for k in range(len(args)) if k not in excluded]
    fixed = {name: value for name, value in kwargs.items() if name in excluded}

    @functools.wraps(func)
    def partial(*mapped: Any, **named: Any) -> Any:
        full = list(args)
        for position, value in zip(positions, mapped, strict=True):
            full[position] = value
        return func(*full, **fixed, **named)

    return partial, [args[k] for k in positions], {name: value for name, value in kwargs.items() if name not in excluded}


def _parse_input_dimensions(
    args: Sequence[Any], input_core_dims: Sequence[Sequence[str]], error_context: str = ""
) -> tuple[tuple[int, ...], dict[str, int]]:
    """Return the shape of the leading dimensions, and the core dimensions' sizes.

    Raises:
        ShapeError: Arguments are too many, too few or of too few dimensions, or sizes differ.
    """
    if len(args) != len(input_core_dims):
        raise ShapeError(f"{len(input_core_dims)} arguments are expected, got {len(args)} {error_context}".rstrip())
    shapes = [np.shape(x) for x in args]
    sizes = core_sizes(input_core_dims, shapes, f"vectorize {error_context}".rstrip())
    leading = [shape[: len(shape) - len(names)] for shape, names in zip(shapes, input_core_dims, strict=True)]
    return np.broadcast_shapes(*leading), sizes


def _check_output_dims(
    func: Callable[..., Any], dim_sizes: Mapping[str, int], expected_output_core_dims: Sequence[Sequence[str]], error_context: str = ""
) -> Callable[..., Any]:
    """Return a function whose results are checked for their core dimensions."""

    def checked(*args: Any) -> Any:
        results = func(*args)
        several = results if isinstance(results, tuple) else (results,)
        if len(several) != len(expected_output_core_dims):
            raise ShapeError(f"{len(expected_output_core_dims)} results are expected, got {len(several)} {error_context}".rstrip())
        sizes = dict(dim_sizes)
        for x, names in zip(several, expected_output_core_dims, strict=True):
            if np.ndim(x) != len(names):
                raise ShapeError(f"a result of shape {np.shape(x)} has not the core dimensions {tuple(names)} {error_context}".rstrip())
            for name, size in zip(names, np.shape(x), strict=True):
                if sizes.setdefault(name, size) != size:
                    raise ShapeError(f"the core dimension {name!r} has sizes {sizes[name]} and {size} {error_context}".rstrip())
        return results

    return checked


# Steps of Jacobians and of maps in batches, which libraries put together in other ways.


def _dtype(x: Any) -> np.dtype:
    """Return the dtype of an array or a number."""
    return aval_of(as_value(x)).dtype


def _check_differentiable(name: str, values: str, holomorphic: bool, allowed: Collection[np.dtype], x: Any) -> None:
    dtype = _dtype(x)
    if dtype not in (dtypes.COMPLEX if holomorphic else allowed):
        kind = "holomorphic=True takes complex" if holomorphic else "real derivatives take real"
        raise GradientError(f"{name}: {kind} {values}, got {dtype.name}")


def _check_input_dtype_jacfwd(holomorphic: bool, x: Any) -> None:
    """Raise `GradientError` unless `jacfwd` takes an argument."""
    _check_differentiable("jacfwd", "arguments", holomorphic, dtypes.FLOATS, x)


def _check_output_dtype_jacfwd(holomorphic: bool, x: Any) -> None:
    """Raise `GradientError` unless `jacfwd` takes a result."""
    _check_differentiable("jacfwd", "results", holomorphic, dtypes.STORED, x)


def _check_input_dtype_jacrev(holomorphic: bool, allow_int: bool, x: Any) -> None:
    """Raise `GradientError` unless `jacrev` takes an argument."""
    _check_differentiable("jacrev", "arguments", holomorphic, dtypes.STORED if allow_int else dtypes.INEXACT, x)


def _check_output_dtype_jacrev(holomorphic: bool, x: Any) -> None:
    """Raise `GradientError` unless `jacrev` takes a result."""
    _check_differentiable("jacrev", "results", holomorphic, dtypes.FLOATS, x)


def _std_basis(pytree: Any) -> Any:
    """Return the rows of an identity matrix as trees, stacked in leading axes."""
    leaves = [as_value(leaf) for leaf in tree.leaves(pytree)]
    identity = vnp.eye(sum(leaf.size for leaf in leaves), dtype=dtypes.result_type(*leaves))
    return _split(pytree, 1, None, identity)


def _jacfwd_unravel(input_pytree: Any, output_pytree_leaf: Any, arr: Any) -> Any:
    """Split a result's derivatives along the last axis, as the arguments are."""
    return _split(input_pytree, arr.ndim - 1, output_pytree_leaf, arr)


def _jacrev_unravel(output_pytree: Any, input_pytree_leaf: Any, arr: Any) -> Any:
    """Split an argument's derivatives along the first axis, as the results are."""
    return _split(output_pytree, 0, input_pytree_leaf, arr)


def _split(pytree: Any, axis: int, example: Any, arr: Array) -> Any:
    """Split an array as a tree, of the dtypes of its leaves or of an example."""
    leaves, structure = tree.flatten(pytree)
    shapes, ends = [vnp.shape(leaf) for leaf in leaves], np.cumsum([vnp.size(leaf) for leaf in leaves], dtype=int)
    parts = []
    for leaf, shape, part in zip(leaves, shapes, vnp.split(arr, ends[:-1], axis), strict=True):
        dtype = _dtype(leaf if example is None else example)
        real = part.real if part.dtype in dtypes.COMPLEX and dtype not in dtypes.COMPLEX else part
        parts.append(real.reshape(*arr.shape[:axis], *shape, *arr.shape[axis + 1 :]).astype(dtype))
    return tree.unflatten(structure, parts)


def _batch_and_remainder(x: Any, batch_size: int) -> tuple[Any, Any]:
    """Return a tree's rows in batches, and those that are left.

    Either is None if it has no rows.
    """
    if not (leaves := tree.leaves(x)):
        return x, None
    count = leaves[0].shape[0] // batch_size if batch_size else 0
    whole = count * batch_size
    batches = tree.map(lambda leaf: leaf[:whole].reshape(count, batch_size, *leaf.shape[1:]), x) if count else None
    return batches, tree.map(lambda leaf: leaf[whole:], x) if whole < leaves[0].shape[0] or not count else None


def wraps(wrapped: Callable[..., Any], namestr: str | None = None, docstr: str | None = None, **kwargs: Any) -> Callable[[Any], Any]:
    """Apply `functools.wraps`, with formats for name and docstring.

    They may name the function's `{fun}` and `{doc}`, and the docstring's `kwargs`.
    """

    def wrap_function(fun: Any) -> Any:
        fun = functools_wraps(wrapped)(fun)
        name, doc = function_name(wrapped), getattr(wrapped, "__doc__", None) or ""
        fun.__name__ = namestr.format(fun=name) if namestr is not None else name
        fun.__doc__ = docstr.format(fun=name, doc=doc, **kwargs) if docstr is not None else doc
        return fun

    return wrap_function


# The process and its mesh.


class _ThreadResources:
    """The mesh that a ``with`` block has set."""

    @property
    def physical_mesh(self) -> Mesh:
        """The current mesh; an empty one if none is set."""
        return get_mesh()


#: What a thread has set.
thread_resources = SimpleNamespace(env=_ThreadResources())


class _TraceContext:
    """The trace that is under way."""

    @property
    def trace(self) -> Trace:
        """The current trace."""
        return current_trace()

    def set_trace(self, trace: Trace) -> None:
        """Make a trace the current one."""
        set_trace(trace)


trace_ctx = _TraceContext()


class _GlobalState:
    """The processes of a distributed program; they have no client of a coordinator."""

    client = service = preemption_sync_manager = coordinator_address = None

    @property
    def process_id(self) -> int:
        """The number of this process."""
        return process_index()

    @property
    def num_processes(self) -> int:
        """The number of processes."""
        return process_count()


global_state = _GlobalState()


def backends_are_initialized() -> bool:
    """Return True if a device has been used."""
    return bool(found_devices())


class EffectTypes(set[type]):
    """Types of effects; libraries add their own, of which no program here has any."""

    def add_type(self, effect_type: type) -> None:
        """Add a type."""
        self.add(effect_type)

    def contains(self, eff: Any) -> bool:
        """Return True if an effect is of one of the types."""
        return isinstance(eff, tuple(self))

    def filter_in(self, effects: Iterable[Any]) -> list[Any]:
        """Return the effects that are of one of the types."""
        return list(filter(self.contains, effects))

    def filter_not_in(self, effects: Iterable[Any]) -> list[Any]:
        """Return the effects that are of none of the types."""
        return [eff for eff in effects if not self.contains(eff)]


control_flow_allowed_effects, custom_derivatives_allowed_effects = EffectTypes(), EffectTypes()
lowerable_effects, remat_allowed_effects = EffectTypes(), EffectTypes()
ordered_effects, shardable_ordered_effects = EffectTypes(), EffectTypes()


@dataclass(frozen=True)
class GenericEffect(Effect):
    """The effect of a primitive that must run."""

    prim: Any


#: Paths that libraries leave out of JAX's tracebacks; here `source.register_exclusion` has that effect.
_exclude_paths: list[str] = []


def _sds_aval_mapping(x: ShapeDtypeStruct) -> ShapedArray:
    """Return the type of arrays of a shape and dtype."""
    return ShapedArray(x.shape, x.dtype, x.weak_type)


def p2tz(primal_value: Any) -> Zero:
    """Return the zero tangent of a value."""
    return Zero.from_primal_value(as_value(primal_value))


#: The zero cotangent of a value, whose type is that of tangents.
p2cz = p2tz


def a2tz(primal_aval: ShapedArray) -> Zero:
    """Return the zero tangent of values of a type."""
    return Zero(primal_aval.tangent_aval())


def abstract_eval_fun(fun: Callable[..., Any], *avals: ShapedArray, debug_info: Any = None, **params: Any) -> list[ShapedArray]:
    """Return the types of a function's results by those of its arguments."""
    return trace_to_jaxpr_dynamic(wrap_init(fun, params, debug_info=debug_info), avals)[1]


class _RuntimeTokens:
    """The tokens of effects in order, of which there are none."""

    def clear(self) -> None:
        """Do nothing."""

    def block_until_ready(self) -> None:
        """Do nothing: there are no effects to wait for."""


#: Primitives to whose lowering rules JAX gives the devices, to which libraries add theirs.
prim_requires_devices_during_lowering: set[Any] = set()
runtime_tokens = _RuntimeTokens()


def shard_map(f: Callable[..., Any], mesh: Any, in_specs: Any, out_specs: Any, check_rep: bool = True) -> Callable[..., Any]:
    """Map a function over shards, as `jax.experimental.shard_map` did."""
    return sharding.shard_map(f, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=check_rep)


def full_lower(val: Any) -> Any:
    """Return a value as it is: tracers have no simpler form here."""
    return val


# Slices of references are nodes, whose children are a start or a size that is an array.


def _slice_parts(part: Slice) -> tuple[tuple[Any, Any], tuple[Any, Any, int]]:
    arrays = [None if isinstance(size, int) else size for size in (part.start, part.size)]
    integers = [size if isinstance(size, int) else None for size in (part.start, part.size)]
    return (arrays[0], arrays[1]), (integers[0], integers[1], part.stride)


def _slice_of(integers: tuple[Any, Any, int], arrays: Sequence[Any]) -> Slice:
    start, size = [array if integer is None else integer for integer, array in zip(integers, arrays, strict=False)]
    return Slice(start, size, integers[2])


tree.register_pytree_node(Slice, _slice_parts, _slice_of)


def _overlap_and_add(x: Any, step_size: int) -> Array:
    """Add up frames (*batch, frames, length) that begin `step_size` apart."""
    frames = as_value(x)
    if frames.ndim < 2:
        raise ShapeError(f"_overlap_and_add: x must be frames (*batch, frames, length), got shape {frames.shape}")
    *batch, count, length = frames.shape
    positions = np.arange(count)[:, None] * step_size + np.arange(length)
    result: Array = vnp.zeros((*batch, step_size * (count - 1) + length), frames.dtype).at[..., positions].add(frames)
    return result


def _einsum(
    operands: Sequence[Any],
    contractions: Sequence[tuple[Sequence[int], frozenset[str], str]],
    precision: Any,
    preferred_element_type: Any,
    _dot_general: Any = lax.dot_general,
    out_sharding: Any = None,
) -> Array:
    """Contract operands along a path of `opt_einsum`, one product after the other."""
    remaining = [as_value(x) for x in operands]
    for positions, _, subscripts in contractions:
        parts = [remaining.pop(i) for i in positions]
        product = vnp.einsum(
            subscripts, *parts, precision=precision, preferred_element_type=preferred_element_type, _dot_general=_dot_general
        )
        remaining.append(product)
    result: Array = constrained(remaining[0], out_sharding)
    return result


# Numbers with a dtype.


class _TypedNumber:
    """A number of Python's with a dtype, which functions take as weakly typed."""

    dtype: np.dtype
    weak_type = True

    def __new__(cls, value: Any, dtype: Any) -> Any:
        number: Any = super().__new__(cls, value)  # type: ignore[call-arg]  # of int, float or complex
        number.dtype = np.dtype(dtype)
        return number

    def __getnewargs__(self: Any) -> Any:
        return type(self).__mro__[2](self), self.dtype  # as int, float or complex

    def __repr__(self: Any) -> str:
        return f"{type(self).__name__}({type(self).__mro__[2](self)!r}, dtype={self.dtype.name})"

    @property
    def aval(self) -> ShapedArray:
        """The type as a scalar array."""
        return ShapedArray((), self.dtype, weak_type=True)


class TypedInt(_TypedNumber, int):
    """An integer with a dtype.

    >>> jnp.asarray(TypedInt(5, "int8"))
    Array(5, dtype=int8, weak_type=True)
    """


class TypedFloat(_TypedNumber, float):
    """A float with a dtype."""

    def __str__(self) -> str:
        return str(float(self))


class TypedComplex(_TypedNumber, complex):
    """A complex number with a dtype."""


# Operations of sequences and mappings, as `jax._src.util` has them.

T = TypeVar("T")


def unzip2(xys: Iterable[tuple[Any, Any]]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Return the first and the second elements of pairs.

    >>> unzip2([(1, "a"), (2, "b")])
    ((1, 2), ('a', 'b'))
    """
    pairs = list(xys)
    return tuple([x for x, _ in pairs]), tuple([y for _, y in pairs])


def unzip3(xyzs: Iterable[tuple[Any, Any, Any]]) -> tuple[tuple[Any, ...], tuple[Any, ...], tuple[Any, ...]]:
    """Return the first, second and third elements of triples."""
    triples = list(xyzs)
    return tuple([x for x, _, _ in triples]), tuple([y for _, y, _ in triples]), tuple([z for _, _, z in triples])


def subvals(lst: Sequence[T], replace: Iterable[tuple[int, T]]) -> tuple[T, ...]:
    """Return a sequence with elements replaced, which pairs of index and value give."""
    values = list(lst)
    for i, value in replace:
        values[i] = value
    return tuple(values)


def split_list(args: Sequence[T], ns: Sequence[int]) -> list[list[T]]:
    """Return parts of the lengths `ns`, and the remainder.

    >>> split_list([1, 2, 3, 4], [1, 2])
    [[1], [2, 3], [4]]
    """
    rest, parts = list(args), []
    for n in ns:
        parts.append(rest[:n])
        rest = rest[n:]
    return [*parts, rest]


def split_list_checked(args: Sequence[T], ns: Sequence[int]) -> list[list[T]]:
    """Return parts of the lengths `ns`, which must sum to the length."""
    if sum(ns) != len(args) or any(n < 0 for n in ns):
        raise ValueError(f"split_list_checked: lengths {list(ns)} do not divide {len(args)} elements")
    return split_list(args, ns)[:-1]


def partition_list(bs: Sequence[bool], l: Sequence[T]) -> tuple[list[T], list[T]]:  # noqa: E741  # JAX's name
    """Return the elements whose flag is False, and those whose flag is True."""
    pairs = list(zip(bs, l, strict=True))
    return [x for flag, x in pairs if not flag], [x for flag, x in pairs if flag]


def merge_lists(bs: Sequence[bool], l0: Sequence[T], l1: Sequence[T]) -> list[T]:
    """Return the list that `partition_list` divides into `l0` and `l1`."""
    if sum(bs) != len(l1) or len(bs) != len(l0) + len(l1):
        raise ValueError(f"merge_lists: flags {list(bs)} do not fit lists of {len(l0)} and {len(l1)} elements")
    rest0, rest1 = iter(l0), iter(l1)
    return [next(rest1) if flag else next(rest0) for flag in bs]


def subs_list(subs: Sequence[int | None], src: Sequence[T], base: Iterable[T]) -> list[T]:
    """Return elements of `src` by the indices, and of `base` where they are None."""
    rest = iter(base)
    return [src[i] if i is not None else next(rest) for i in subs]


def concatenate(xs: Iterable[Sequence[T]]) -> list[T]:
    """Return the elements of sequences, one after another."""
    return [x for part in xs for x in part]


flatten = concatenate


def unflatten(xs: Iterable[T], ns: Sequence[int]) -> list[list[T]]:
    """Return consecutive parts of the lengths `ns`."""
    return split_list(list(xs), ns)[:-1]


def curry(f: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function whose call binds the first arguments of `f`."""
    return functools.partial(functools.partial, f)


def tuple_insert(t: tuple[T, ...], idx: int, val: T) -> tuple[T, ...]:
    """Return a tuple with a value inserted before an index."""
    if not 0 <= idx <= len(t):
        raise ValueError(f"tuple_insert: index {idx} is not in a tuple of {len(t)} elements")
    return (*t[:idx], val, *t[idx:])


def tuple_delete(t: tuple[T, ...], idx: int) -> tuple[T, ...]:
    """Return a tuple without the element at an index."""
    if not 0 <= idx < len(t):
        raise ValueError(f"tuple_delete: index {idx} is not in a tuple of {len(t)} elements")
    return (*t[:idx], *t[idx + 1 :])


def tuple_update(t: tuple[T, ...], idx: int, val: T) -> tuple[T, ...]:
    """Return a tuple with another value at an index."""
    if not 0 <= idx < len(t):
        raise ValueError(f"tuple_update: index {idx} is not in a tuple of {len(t)} elements")
    return (*t[:idx], val, *t[idx + 1 :])


def moveaxis(x: Any, src: int, dst: int) -> Any:
    """Return an array with an axis moved; an equal position returns `x` itself."""
    return x if src == dst else x.transpose(_moved(x.ndim, src % x.ndim, dst % x.ndim))


def _moved(ndim: int, src: int, dst: int) -> list[int]:
    axes = [axis for axis in range(ndim) if axis != src]
    axes.insert(dst, src)
    return axes


def canonicalize_axis_tuple(axis: int | Sequence[int] | None, ndim: int, allow_duplicate: bool = False) -> tuple[int, ...]:
    """Return axes as non-negative numbers; all of them for None."""
    if axis is None:
        return tuple(range(ndim))
    items = [axis] if isinstance(axis, int) else list(axis)
    if any(not -ndim <= a < ndim for a in items):
        raise ValueError(f"axis {axis} is out of bounds for an array of {ndim} dimensions")
    axes = tuple([a % ndim for a in items])
    if len({*axes}) != len(axes) and not allow_duplicate:
        raise ValueError(f"duplicate value in axis: {axes}")
    return axes


def ceil_of_ratio(x: int, y: int) -> int:
    """Return a quotient, rounded up."""
    return -(-x // y)


def wrap_name(transform_name: str, name: str) -> str:
    """Return the name of a function under a transform."""
    return f"{transform_name}({name})"


def fun_name(fun: Callable[..., Any], default_name: str = "<unnamed function>") -> str:
    """Return a function's name, that of its function if it binds arguments."""
    while isinstance(fun, functools.partial):
        fun = fun.func
    return str(getattr(fun, "__name__", default_name))


def stable_unique(it: Iterable[Hashable]) -> Iterator[Any]:
    """Return the distinct elements in their order."""
    return iter(dict.fromkeys(it))


def set_module(module: str) -> Callable[[T], T]:
    """Return a decorator that sets the module of a function or class."""

    def decorate(decorated: T) -> T:
        decorated.__module__ = module
        return decorated

    return decorate


def cache(max_size: int | None = 4096, **options: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that keeps a function's results.

    The options concern JAX's settings, and have no effect.
    """
    return functools.lru_cache(maxsize=max_size)


memoize = cache(max_size=None)


@memoize
def xla_primitive_callable(prim: Any, **params: Any) -> Callable[..., Any]:
    """Return the compiled function of a primitive and its parameters."""
    return jit(functools.partial(prim.bind, **params))
