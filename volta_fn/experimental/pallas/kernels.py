"""What kernels are written with, and functions that are fused with kernels.

The step's indices, branches, loops, memory.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np

from volta_fn import tree
from volta_fn.core.arrays.array import Array, as_value, aval_of
from volta_fn.core.refs import Ref, converted, new_ref
from volta_fn.core.staging import check_callable, wraps
from volta_fn.core.trace import is_concrete
from volta_fn.debug import print as _print
from volta_fn.dtypes import result_type
from volta_fn.errors import ArgumentError
from volta_fn.experimental import checkify
from volta_fn.experimental.pallas.specs import allocated, memory_aval, uninitialized
from volta_fn.numpy.indexing import where
from volta_fn.primitives.array_operations.operators import empty
from volta_fn.primitives.array_operations.operators import reciprocal as _reciprocal
from volta_fn.primitives.array_operations.ref_views import RefView, Slice, read_part, write_part
from volta_fn.primitives.data_movement.movement import broadcast_to as _broadcast_to
from volta_fn.primitives.data_movement.slicing import pad
from volta_fn.primitives.data_movement.slicing import slice as slice_
from volta_fn.primitives.elementwise.cast import convert_element_type
from volta_fn.primitives.loops import cond, fori_loop

T = TypeVar("T")


class _Step(NamedTuple):
    """A step of a grid: its indices, and the sizes of the grid."""

    indices: Sequence[Array]
    grid: Sequence[Any]


_step: ContextVar[_Step | None] = ContextVar("pallas_step", default=None)


@contextlib.contextmanager
def running_step(indices: Sequence[Array], grid: Sequence[Any]) -> Iterator[None]:
    """Let `program_id` and `num_programs` answer for a step."""
    token = _step.set(_Step(indices, grid))
    try:
        yield
    finally:
        _step.reset(token)


def _of_step(name: str, axis: int, values: Callable[[_Step], Sequence[Any]]) -> Any:
    step = _step.get()
    if step is None:
        raise ArgumentError(f"{name} has a meaning in a kernel alone, which pallas_call runs")
    if not isinstance(axis, (int, np.integer)) or not 0 <= axis < len(step.grid):
        raise ArgumentError(f"{name}: axis {axis!r} is none of the {len(step.grid)} axes of the grid")
    return values(step)[axis]


def program_id(axis: int) -> Array:
    """Return the index of the kernel's step along an axis of the grid.

    Raises `ArgumentError` outside of a kernel, and if the grid has no such axis.

    >>> from volta_fn.experimental import pallas as pl
    >>> def kernel(o_ref):
    ...     o_ref[pl.program_id(0)] = 10 * pl.program_id(0)
    >>> pl.pallas_call(kernel, vf.ShapeDtypeStruct((3,), "int32"), grid=3)()
    Array([ 0, 10, 20], dtype=int32)
    """
    index: Array = _of_step("program_id", axis, lambda step: step.indices)
    return index


def num_programs(axis: int) -> Any:
    """Return the size of the grid along an axis.

    It is an integer, or an array if the size is traced. Raises what `program_id` does.
    """
    return _of_step("num_programs", axis, lambda step: step.grid)


def when(condition: Any, /) -> Callable[[Callable[[], Any]], None]:
    """Run the decorated function of no arguments if a condition is true.

    >>> from volta_fn.experimental import pallas as pl
    >>> def kernel(x_ref, o_ref):
    ...     o_ref[...] = x_ref[...]
    ...
    ...     @pl.when(x_ref[0] < 0)
    ...     def _():
    ...         o_ref[0] = 0.0
    >>> pl.pallas_call(kernel, vf.ShapeDtypeStruct((2,), "float32"))(vf.numpy.array([-1.0, 2.0]))
    Array([0., 2.], dtype=float32)
    """

    def decorate(function: Callable[[], Any]) -> None:
        if not isinstance(condition, bool):
            cond(condition, function, lambda: None)
        elif condition:
            function()

    return decorate


def loop(lower: Any, upper: Any, *, init_carry: Any = None, step: Any = 1, unroll: int | bool | None = None) -> Callable[..., Any]:
    """Run the decorated function for each index from `lower` to below `upper`.

    With `init_carry` it is a function of index and carry, and its name becomes the last carry.

    >>> from volta_fn.experimental import pallas as pl
    >>> pl.loop(0, 10, step=3, init_carry=0)(lambda i, total: total + i)
    Array(18, dtype=int32, weak_type=True)
    """
    zero: Any = 0
    if all(is_concrete(as_value(x)) for x in (lower, upper, step)):
        lower, upper, step = (int(np.asarray(x)) for x in (lower, upper, step))
    else:
        dtype = result_type(*[as_value(x) for x in (lower, upper, step)])
        lower, upper, step = (convert_element_type(x, dtype) for x in (lower, upper, step))
        zero = np.zeros((), dtype)

    def decorate(body: Callable[..., Any]) -> Any:
        def numbered(i: Array, carry: Any) -> Any:
            index = lower + i * step
            return body(index) if init_carry is None else body(index, carry)

        return fori_loop(zero, cdiv(upper - lower, step), numbered, init_carry, unroll=unroll)

    return decorate


def run_scoped(f: Callable[..., Any], *types: Any, collective_axes: Hashable = (), **kw_types: Any) -> Any:
    """Return ``f(*refs, **refs)`` with references to memory of these types.

    `collective_axes` is accepted for compatibility. Raises `ArgumentTypeError` for what is no type of memory.

    >>> from volta_fn.experimental import pallas as pl
    >>> def square(x, ref):
    ...     ref[...] = x
    ...     return ref[...] * ref[...]
    >>> pl.run_scoped(lambda ref: square(3.0, ref), pl.ANY((), "float32"))
    Array(9., dtype=float32)
    """
    args, kwargs = tree.map(lambda type: Ref(allocated(type)), (types, kw_types))
    return f(*args, **kwargs)


def with_scoped(*types: Any, collective_axes: Hashable = (), **kw_types: Any) -> Callable[..., Any]:
    """Decorate a function with references to memory, as `run_scoped` gives.

    They follow its other arguments.
    """

    def decorate(f: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(f)
        def run(*args: Any) -> Any:
            return run_scoped(functools.partial(f, *args), *types, collective_axes=collective_axes, **kw_types)

        return run

    return decorate


def run_state(f: Callable[..., None]) -> Callable[[T], T]:
    """Make a function of arrays of one that changes references to them.

    It returns the references' last values.

    >>> from volta_fn.experimental import pallas as pl
    >>> pl.run_state(lambda ref: ref.__setitem__(0, 5.0))(vf.numpy.zeros(2))
    Array([5., 0.], dtype=float32)
    """

    def run(init: T) -> T:
        refs = tree.map(new_ref, init)
        f(refs)
        return tree.map(lambda ref: ref[...], refs)

    return run


def empty_like(x: Any) -> Any:
    """Return arrays like the leaves of `x`, whose elements mean nothing."""
    return tree.map(lambda leaf: empty(leaf.shape, leaf.dtype), x)


def empty_ref_like(x: Any) -> Ref:
    """Return a reference to an array like `x`, whose elements mean nothing.

    `x` is a type of memory or a `ShapeDtypeStruct`.
    """
    aval = memory_aval(x)
    return new_ref(empty(aval.shape, aval.dtype))


def debug_print(fmt: str, *args: Any) -> None:
    """Print values from a kernel: `fmt` has ``{}`` for each of them.

    Of references their values are printed.
    """
    _print(fmt, *args)


class _Switch:
    """A setting that is a context manager as well."""

    def __init__(self) -> None:
        self.value = False

    @contextlib.contextmanager
    def __call__(self, new_val: bool = True) -> Iterator[None]:
        before, self.value = self.value, new_val
        try:
            yield
        finally:
            self.value = before


#: Whether `debug_check` checks: `enable_debug_checks.value`, and within ``with enable_debug_checks():``.
enable_debug_checks = _Switch()
#: Accepted, as memory of kernels holds NaN here before it is written, whatever this is.
enable_poison_buffers = _Switch()


def debug_checks_enabled() -> bool:
    """Return `enable_debug_checks.value`."""
    return enable_debug_checks.value


def debug_check(condition: Any, message: str) -> None:
    """Check a condition by `checkify.check`, if `enable_debug_checks` is set."""
    if enable_debug_checks.value:
        checkify.check(condition, message)


def multiple_of(x: Any, values: Sequence[int] | int) -> Any:
    """Return `x`, which is said to be a multiple of these numbers."""
    return x


def reciprocal(x: Any, *, approx: bool = False, full_range: bool = True) -> Array:
    """Return ``1 / x``; it is exact even if `approx` allows errors."""
    return _reciprocal(x)


def broadcast_to(a: Any, shape: tuple[int, ...]) -> Array:
    """Return `a` repeated along new and single-element dimensions."""
    return _broadcast_to(as_value(a), shape)


def delay(nanos: Any) -> None:
    """Do nothing: no kernel waits here."""


# Sizes.


def cdiv(a: Any, b: Any) -> Any:
    """Return ``a / b``, rounded up.

    >>> from volta_fn.experimental import pallas as pl
    >>> pl.cdiv(10, 4)
    3
    """
    whole = a if isinstance(a, (int, np.integer)) and isinstance(b, (int, np.integer)) else as_value(a)
    return whole // b + (whole % b != 0)  # neither a sum nor a negative, which integers of few bits or without a sign may not have


def align_to(a: Any, alignment: Any) -> Any:
    """Return `a`, rounded up to a multiple of `alignment`.

    >>> from volta_fn.experimental import pallas as pl
    >>> pl.align_to(10, 4)
    12
    """
    return cdiv(a, alignment) * alignment


def next_power_of_2(x: int) -> int:
    """Return the least power of 2 that is not less than `x`.

    Raises `ArgumentError` for negative numbers.

    >>> from volta_fn.experimental import pallas as pl
    >>> pl.next_power_of_2(5)
    8
    """
    if x < 0:
        raise ArgumentError(f"`next_power_of_2` requires a non-negative integer, got {x}")
    return 1 if x == 0 else 1 << (x - 1).bit_length()


def strides_from_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides of a row-major array, in elements.

    >>> from volta_fn.experimental import pallas as pl
    >>> pl.strides_from_shape((4, 2, 3))
    (6, 3, 1)
    """
    strides, size = [], 1
    for extent in reversed(shape):
        strides.append(size)
        size *= extent
    return tuple(reversed(strides))


# Semaphores, which are counters in references.


def semaphore_signal(
    sem_or_view: Ref | RefView, inc: Any = 1, *, device_id: Any = None, device_id_type: Any = None, core_index: Any = None
) -> None:
    """Add `inc` to a counter; raise `ArgumentError` for that of another device."""
    if device_id is not None or core_index is not None:
        raise ArgumentError("semaphore_signal: kernels run on one device and one core here, so that no other can be signalled")
    sem_or_view[...] = sem_or_view[...] + convert_element_type(inc, sem_or_view.dtype)


def semaphore_wait(sem_or_view: Ref | RefView, value: Any = 1, *, decrement: bool = True) -> None:
    """Take `value` from a counter, without waiting: steps run in their order."""
    if decrement:
        sem_or_view[...] = sem_or_view[...] - convert_element_type(value, sem_or_view.dtype)


def semaphore_read(sem_or_view: Ref | RefView) -> Array:
    """Return a counter."""
    return sem_or_view[...]


# Masks.
#
# A block at a traced position that reaches beyond the array is read as it lies, unlike ``ref[…]``, which moves it inside: what is beyond is
# uninitialized, and dropped where it is written.


def _split(ref: Ref | RefView) -> tuple[RefView, Any]:
    return ref.split() if isinstance(ref, RefView) else (RefView(ref, ()), ...)


def _padded(value: Array, index: Any) -> Array:
    """Return an array with what a block at a traced position may reach behind it."""
    items = index if isinstance(index, tuple) else (index,)
    if not any(isinstance(item, Slice) and item.is_dynamic_start for item in items):
        return value
    return pad(value, uninitialized(value.aval.update(shape=())), [(0, size, 0) for size in value.shape])


def masked_read(ref: Ref | RefView, mask: Any = None, other: Any = None) -> Array:
    """Return the elements of a reference or view, and `other` where not `mask`.

    Without `other`, the mask has no effect.
    """
    base, index = _split(ref)
    elements = read_part(_padded(base[...], index), index)
    if mask is None or other is None:
        return elements
    return where(mask, elements, as_value(other).astype(elements.dtype))


def masked_write(
    ref: Ref | RefView, value: Any, mask: Any = None, combine: Callable[[Array, Array], Array] | None = None, method: str = "set"
) -> Array:
    """Write `value` where `mask` is True; return the old elements.

    With `combine`, what is written is that function of the old and the new elements. The `method` "add", "max" or "min" does the same, also
    for elements that an index has several times, each of which counts.
    """
    base, index = _split(ref)
    array = base[...]
    padded = _padded(array, index)
    old = read_part(padded, index)
    update = _broadcast_to(converted(value, ref.dtype), old.shape)
    if method != "set" and any(getattr(item, "ndim", 0) for item in (index if isinstance(index, tuple) else (index,))):
        unchanged = old if method != "add" else 0
        result = write_part(padded, index, update if mask is None else where(mask, update, unchanged), method)
    else:
        new = update if combine is None else combine(old, update)
        result = write_part(padded, index, new if mask is None else where(mask, new, old))
    base[...] = slice_(result, [0] * array.ndim, array.shape) if padded is not array else result
    return old


# Elements at an index, as in `jax._src.pallas.primitives`.


def load_at(ref: Ref | RefView, index: Any, *, mask: Any = None, other: Any = None, **_hints: Any) -> Array:
    """Return the elements at `index`, and `other` where `mask` is False."""
    return masked_read(_at(ref, index), mask, other)


def store_at(ref: Ref | RefView, index: Any, value: Any, *, mask: Any = None, **_hints: Any) -> None:
    """Write the elements at `index` where `mask` is True."""
    masked_write(_at(ref, index), value, mask)


def swap_at(ref: Ref | RefView, index: Any, value: Any, *, mask: Any = None, **_hints: Any) -> Array:
    """Write the elements at `index` where `mask` is True; return the old ones."""
    return masked_write(_at(ref, index), value, mask)


def _at(ref: Ref | RefView, index: Any) -> Ref | RefView:
    return ref.at[... if index is None or (isinstance(index, tuple) and not index) else index]


# Kernels that are fused with what is computed before and after them, as in `jax.experimental.pallas.fuser`.
#
# There a fusible kernel gets functions that compute blocks of its inputs, and others to apply to blocks of its outputs. Here the compiler
# fuses what surrounds a kernel by itself: `fuse` returns a function as it is, a fusible gets functions that return its arguments, and None
# for its outputs.


@dataclass
class Fusion:
    """A function of arrays with its types.

    They are those of the arguments, as ``(args, kwargs)``, and of the results.
    """

    func: Callable[..., Any]
    in_type: Any
    out_type: Any
    strict_mode: bool = True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return the function's result."""
        return self.func(*args, **kwargs)

    @property
    def shape(self) -> Any:
        """The shapes of the results."""
        return tree.map(lambda aval: aval.shape, self.out_type)

    @property
    def dtype(self) -> Any:
        """The dtypes of the results."""
        return tree.map(lambda aval: aval.dtype, self.out_type)

    @property
    def type(self) -> Any:
        """The types of the results."""
        return self.out_type

    @property
    def in_shape(self) -> Any:
        """The shapes of the arguments."""
        return tree.map(lambda aval: aval.shape, self.in_type)

    @property
    def in_dtype(self) -> Any:
        """The dtypes of the arguments."""
        return tree.map(lambda aval: aval.dtype, self.in_type)


def fusible(f: Callable[..., Any] | None = None, *, output_fusion_prefix: Any = True) -> Any:
    """Return a function of arrays, given one of functions that return them.

    Args:
        f: called with a `Fusion` without arguments in place of each array, and last with a tree of None.
        output_fusion_prefix: the structure of this tree.

    >>> double = fusible(lambda x, out: 2 * x() if out is None else out(2 * x()))
    >>> fuse(lambda x: double(x + 1) - 1)(vf.numpy.arange(3))
    Array([1, 3, 5], dtype=int32)
    """
    if f is None:
        return lambda f: fusible(f, output_fusion_prefix=output_fusion_prefix)
    check_callable(f, "fusible")
    function = f
    outputs = tree.map(lambda _: None, output_fusion_prefix)

    @wraps(function)
    def call(*args: Any) -> Any:
        return function(*tree.map(lambda x: Fusion(lambda: x, ((), {}), aval_of(x)), args), outputs)

    return call


def fuse(f: Callable[..., Any] | None = None, *, resolve_fusion_dtypes: bool = True, debug: bool = False, strict_mode: bool = True) -> Any:
    """Return a function as it is; the options have no effect."""
    if f is None:
        return fuse
    check_callable(f, "fuse")
    return f


class custom_fusion:  # JAX's name
    """A function with rules for its blocks, which are accepted and have no effect."""

    def __init__(self, fun: Callable[..., Any]) -> None:
        check_callable(fun, "custom_fusion")
        self.fun = fun

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return the function's result."""
        return self.fun(*args, **kwargs)

    def def_pull_block_spec(self, rule: Callable[..., Any]) -> Callable[..., Any]:
        """Accept a rule for blocks of the arguments, given those of the results."""
        return rule

    def_push_block_spec = def_eval_rule = def_pallas_impl = def_pull_block_spec
