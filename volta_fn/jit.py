"""The driver: traces functions, compiles them to plans, keeps the compiled programs, runs them; and evaluates single primitives.

A jitted call first looks for a program by its arguments' types alone. Only on a miss does it look at structures and trace.
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from volta_fn import tree
from volta_fn.backends.numpy import backend as _cpu  # noqa: F401  # registers the CPU
from volta_fn.backends.numpy import kernels as _kernels  # noqa: F401  # attaches the evaluation rules
from volta_fn.compiler.plan import Plan, make_plan
from volta_fn.core.array import Array, ArraySpec, ConcreteArray, array_spec, as_value
from volta_fn.core.aval import ShapedArray, ShapeDtypeStruct
from volta_fn.core.axes import axis_environment
from volta_fn.core.device import Device, current_default_device
from volta_fn.core.flatten import FlatFunction, argument_labels, check_callable, function_name
from volta_fn.core.jaxpr import ClosedJaxpr, sub_jaxprs
from volta_fn.core.primitive import Primitive
from volta_fn.core.staging import hoist_tracers, trace_to_jaxpr
from volta_fn.core.trace import EVAL, bind, current_trace, set_evaluator
from volta_fn.errors import ArgumentError, ArgumentTypeError, DeviceError, UnhashableStaticError
from volta_fn.primitives.call import jit_p

#: Programs kept per function, and kernels per primitive, before the oldest go.
_CACHE_LIMIT = 4096

# One primitive at a time: eager evaluation.


def common_device(arrays: Sequence[Any]) -> Device:
    """The device that holds all `arrays` (the default device if there are none)."""
    if not arrays:
        return current_default_device()
    device: Device = arrays[0].device
    for other in arrays[1:]:
        if other.device is not device:
            raise DeviceError(
                f"the arguments are on different devices ({', '.join(str(a.device) for a in arrays)}); move them with device_put"
            )
    return device


def _evaluate(primitive: Primitive, args: Sequence[Any], params: dict[str, Any]) -> Any:
    key: tuple[Any, ...] = tuple([a._spec for a in args])
    cache = primitive.eager
    if params or not args:
        key = (*key, *params.items(), None if args else current_default_device())
        programs = sub_jaxprs(params) if primitive.partial_eval is not None else ()
        if programs:  # the kernel lives as long as the sub-program that it runs
            cache, key = programs[0].cache, (primitive, *key)
    run = cache.get(key)
    if run is None:
        run = _eager_kernel(primitive, args, params)
        if len(cache) >= _CACHE_LIMIT:
            cache.clear()
        cache[key] = run
    return run(*args)


def _eager_kernel(primitive: Primitive, args: Sequence[Any], params: dict[str, Any]) -> Callable[..., Any]:
    """A primitive as a function of concrete arrays of the types of `args`."""
    _check_not_donated(args)
    avals = tuple([a.aval for a in args])
    device = common_device(args)
    out_avals = primitive.abstract(*avals, **params)
    compute = device.backend.kernel(primitive, avals, params)
    if primitive.multiple_results:
        return _several_results(compute, [array_spec(a, device) for a in out_avals])
    return _one_result(compute, array_spec(out_avals, device), len(args))


def _one_result(compute: Callable[..., Any], spec: ArraySpec, arity: int) -> Callable[..., Any]:
    """A kernel with one result as a function of arrays; written out for one and two operands, where every call counts."""

    def unary(x: Any) -> ConcreteArray:
        return ConcreteArray(_solid(compute(x._buffer)), spec)

    def binary(x: Any, y: Any) -> ConcreteArray:
        return ConcreteArray(_solid(compute(x._buffer, y._buffer)), spec)

    def nary(*args: Any) -> ConcreteArray:
        return ConcreteArray(_solid(compute(*[a._buffer for a in args])), spec)

    forms: dict[int, Callable[..., Any]] = {1: unary, 2: binary}
    return forms.get(arity, nary)


def _several_results(compute: Callable[..., Any], specs: Sequence[ArraySpec]) -> Callable[..., Any]:
    def run(*args: Any) -> tuple[ConcreteArray, ...]:
        outs = compute(*[a.buffer() for a in args])
        return tuple([ConcreteArray(_solid(o), s) for o, s in zip(outs, specs, strict=True)])

    return run


def _solid(buffer: Any) -> Any:
    """NumPy's functions return scalars for zero-dimensional results; buffers are arrays."""
    return buffer if type(buffer) is np.ndarray or not isinstance(buffer, np.generic) else np.asarray(buffer)


def _check_not_donated(args: Sequence[Any]) -> None:
    """Raise `DonatedBufferError` if an array was deleted. Kernels and programs found by type need no check: none is kept for those."""
    for arg in args:
        arg.buffer()


set_evaluator(_evaluate)

# Whole functions.


class _Statics(NamedTuple):
    """Which arguments are static (part of the program) or donated."""

    argnums: frozenset[int]
    argnames: frozenset[str]
    donate_argnums: frozenset[int]
    donate_argnames: frozenset[str]


@dataclass(slots=True)
class Traced:
    """A function's program for one structure and set of types of arguments."""

    jaxpr: ClosedJaxpr
    out_tree: Any
    #: Tracers of outer traces that the function closed over, passed as leading arguments.
    captured: list[Array]
    donated: tuple[bool, ...]
    name: str


class Lowered:
    """A traced function to look at: its program (`jaxpr`), its plan, and the compiled function."""

    def __init__(self, traced: Traced, in_tree: Any, device: Device) -> None:
        self._traced = traced
        self._in_tree = in_tree
        self._device = device

    @property
    def jaxpr(self) -> ClosedJaxpr:
        """The program."""
        return self._traced.jaxpr

    @property
    def out_info(self) -> Any:
        """The results' shapes and dtypes, as a pytree of `ShapeDtypeStruct`."""
        return tree.unflatten(self._traced.out_tree, [struct_of(a) for a in self._traced.jaxpr.out_avals])

    @property
    def plan(self) -> Plan:
        """The straight-line plan that would run."""
        return make_plan(self._traced.jaxpr, self._traced.donated)

    def as_text(self) -> str:
        """The program in JAX's notation."""
        return str(self._traced.jaxpr)

    def compile(self) -> Callable[..., Any]:
        """The compiled function, of arguments (but the static ones) of exactly the types that it was lowered for.

        It raises `ArgumentTypeError` for others.
        """
        traced, in_tree = self._traced, self._in_tree
        run = compiled(traced, self._device)
        wanted = [(a.shape, a.dtype) for a in traced.jaxpr.in_avals]

        def call(*args: Any, **kwargs: Any) -> Any:
            leaves, structure = tree.flatten((args, kwargs))
            values = [as_value(x) for x in leaves]
            if structure != in_tree or [(v.shape, v.dtype) for v in values] != wanted:
                raise ArgumentTypeError(
                    f"{traced.name} was compiled for arguments of structure {in_tree} and types {traced.jaxpr.in_avals}, "
                    f"but called with {structure} and {[v.aval for v in values]}"
                )
            _check_not_donated(values)
            return run(values)

        return call


def struct_of(aval: ShapedArray) -> ShapeDtypeStruct:
    """The public description of an aval."""
    return ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=aval.weak_type)


def compiled(traced: Traced, device: Device) -> Callable[[Sequence[Any]], Any]:
    """The traced program as a function from a list of concrete arrays to the result's pytree."""
    run_flat = _flat_program(traced, device)
    specs = [array_spec(a, device) for a in traced.jaxpr.out_avals]
    out_tree = traced.out_tree
    donating = any(traced.donated)

    if out_tree == _LEAF and not donating:
        (spec,) = specs

        def run_one(args: Sequence[Any]) -> Any:
            return ConcreteArray(_solid(run_flat(False, *[a._buffer for a in args])[0]), spec)

        return run_one

    def run(args: Sequence[Any]) -> Any:
        outs = (
            run_flat(_may_overwrite(traced, args), *[a.buffer() for a in args]) if donating else run_flat(False, *[a._buffer for a in args])
        )
        if donating:
            _delete_donated(traced, args)
        return tree.unflatten(out_tree, [ConcreteArray(_solid(o), s) for o, s in zip(outs, specs, strict=True)])

    return run


_LEAF = tree.structure(0)


def _flat_program(traced: Traced, device: Device) -> Callable[..., tuple[Any, ...]]:
    return device.backend.compile(make_plan(traced.jaxpr, traced.donated))


def _may_overwrite(traced: Traced, args: Sequence[Any]) -> bool:
    """Whether nobody else sees the donated buffers: no view, no other array, no other argument."""
    if len({id(a._buffer) for a in args}) < len(args):  # one array is passed twice
        return False
    donated = [a for a, d in zip(args, traced.donated, strict=True) if d]
    # References to a buffer that is not shared: the array's own, the loop variable's through getrefcount's argument.
    return all(sys.getrefcount(a._buffer) <= 2 and a._buffer.base is None for a in donated)


def _delete_donated(traced: Traced, args: Sequence[Any]) -> None:
    for arg, donated in zip(args, traced.donated, strict=True):
        if donated:
            arg.delete()


def trace_function(function: Callable[..., Any], leaves: Sequence[Any], in_tree: Any, avals: Sequence[ShapedArray], name: str) -> Traced:
    """Write down `function` for arguments of these types."""
    flat = FlatFunction(function, in_tree)
    labels = argument_labels(function, in_tree, len(leaves))
    closed = trace_to_jaxpr(flat, avals, name, labels)
    program, captured = hoist_tracers(closed)
    return Traced(program, flat.out_tree, captured, (), name)


class _Cache:
    """Traced and compiled programs of one function, by structure and types of its arguments."""

    def __init__(self) -> None:
        self.traced: dict[Any, Traced] = {}
        self.fast: dict[Any, Callable[[Sequence[Any]], Any]] = {}
        self.lock = threading.Lock()
        self.traces = 0

    def keep(self, key: Any, traced: Traced) -> Traced:
        """Store a program; if another thread was faster, its program is the one to use."""
        with self.lock:
            self.traces += 1
            if len(self.traced) >= _CACHE_LIMIT:
                self.traced.clear()
                self.fast.clear()
            return self.traced.setdefault(key, traced)

    def clear(self) -> None:
        with self.lock:
            self.traced.clear()
            self.fast.clear()


class CacheInfo(NamedTuple):
    """How many programs a jitted function keeps, and how often it had to trace."""

    programs: int
    traces: int


def jit(
    fun: Callable[..., Any] | None = None,
    *,
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Sequence[str] | None = None,
    donate_argnums: int | Sequence[int] | None = None,
    donate_argnames: str | Sequence[str] | None = None,
    inline: bool = False,
) -> Any:
    """Compile `fun`: it is traced once per structure, shapes and dtypes of its arguments, and then runs as one program.

    Args:
        fun: a pure function of pytrees of arrays. Without it, `jit` returns a decorator.
        static_argnums, static_argnames: arguments that are hashable Python values, known while tracing; each value has its program.
        donate_argnums, donate_argnames: arguments whose memory the program may reuse; they cannot be used afterwards.
        inline: accepted for compatibility; nested jitted functions are always compiled into their caller.

    Returns:
        a function like `fun`, with `lower(*args)` to look at the program, `cache_info()` and `clear_cache()`.

    Raises:
        ConcretizationError: `fun` needs the value of an argument that is not static.
        UnhashableStaticError: a static argument is not hashable.

    >>> import volta_fn as vf
    >>> square = vf.jit(lambda x: x * x)
    >>> square(vf.numpy.arange(3.0))
    Array([0., 1., 4.], dtype=float32)
    """
    if fun is None:
        return functools.partial(
            jit,
            static_argnums=static_argnums,
            static_argnames=static_argnames,
            donate_argnums=donate_argnums,
            donate_argnames=donate_argnames,
        )
    check_callable(fun, "jit")
    statics = _resolve_statics(fun, static_argnums, static_argnames, donate_argnums, donate_argnames)
    return _jitted(fun, statics)


def _jitted(fun: Callable[..., Any], statics: _Statics) -> Callable[..., Any]:
    cache = _Cache()
    fast = cache.fast
    plain = not (statics.argnums or statics.argnames)

    @functools.wraps(fun)
    def call(*args: Any, **kwargs: Any) -> Any:
        if plain and current_trace() is EVAL:
            if not kwargs:
                try:
                    run = fast.get(tuple([a._spec for a in args]))
                except AttributeError:  # some argument is no array by itself
                    run = None
                if run is not None:
                    return run(args)
            leaves, structure = tree.flatten((args, kwargs))
            try:
                run = fast.get((structure, *[x._spec for x in leaves]))
            except AttributeError:
                run = None
            if run is not None:
                return run(leaves)
        return slow_call(args, kwargs)

    def slow_call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        request = _Request(fun, statics, args, kwargs)
        values = [as_value(x) for x in request.leaves]
        traced = lookup(request, values)
        if current_trace() is EVAL and not traced.captured:
            _check_not_donated(values)
            run = _compiled_for(traced, common_device(values))
            if plain and all(type(x) is ConcreteArray for x in request.leaves):
                flat_call = not kwargs and len(args) == len(values) > 0 and all(type(a) is ConcreteArray for a in args)
                specs = tuple([x._spec for x in request.leaves])
                fast[specs if flat_call else (request.in_tree, *specs)] = run
            return run(values)
        outs = bind(jit_p, *traced.captured, *values, jaxpr=traced.jaxpr, name=traced.name, donated=())
        return tree.unflatten(traced.out_tree, outs)

    def lookup(request: _Request, values: Sequence[Array]) -> Traced:
        avals = tuple([v.aval for v in values])
        key = (request.key, avals, axis_environment(), current_default_device())
        found = cache.traced.get(key)
        if found is not None:
            return found
        # No lock is held while tracing: the function may call other jitted functions, which other threads may be tracing.
        traced = trace_function(request.function, values, request.in_tree, avals, function_name(fun))
        traced.donated = request.donated()
        return traced if traced.captured else cache.keep(key, traced)

    def lower(*args: Any, **kwargs: Any) -> Lowered:
        """The program for arguments like these (arrays or `ShapeDtypeStruct`), without running it."""
        request = _Request(fun, statics, args, kwargs)
        traced = trace_function(
            request.function, request.leaves, request.in_tree, [_abstract(x) for x in request.leaves], function_name(fun)
        )
        traced.donated = request.donated()
        return Lowered(traced, request.in_tree, current_default_device())

    call.lower = lower  # type: ignore[attr-defined]  # functions carry attributes
    call.clear_cache = cache.clear  # type: ignore[attr-defined]
    call.cache_info = lambda: CacheInfo(len(cache.traced), cache.traces)  # type: ignore[attr-defined]
    return call


def _abstract(value: Any) -> ShapedArray:
    if isinstance(value, ShapeDtypeStruct):
        return ShapedArray(value.shape, value.dtype, value.weak_type)
    return as_value(value).aval


def _compiled_for(traced: Traced, device: Device) -> Callable[[Sequence[Any]], Any]:
    key = ("compiled", device)
    run = traced.jaxpr.cache.get(key)
    return run or traced.jaxpr.cache.setdefault(key, compiled(traced, device))


class _Request:
    """One call's arguments, with the static ones taken out."""

    def __init__(self, fun: Callable[..., Any], statics: _Statics, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.statics = statics
        self.args = args
        self.kwargs = kwargs
        static_args = {i: args[i] for i in sorted(statics.argnums) if i < len(args)}
        static_kwargs = {n: kwargs[n] for n in sorted(statics.argnames) if n in kwargs}
        self.dynamic_args = tuple([a for i, a in enumerate(args) if i not in static_args])
        self.dynamic_kwargs = {n: v for n, v in kwargs.items() if n not in static_kwargs}
        self.leaves, self.in_tree = tree.flatten((self.dynamic_args, self.dynamic_kwargs))
        self.function = _with_statics(fun, static_args, static_kwargs) if static_args or static_kwargs else fun
        self.key = (self.in_tree, _static_key(fun, static_args), _static_key(fun, static_kwargs))

    def donated(self) -> tuple[bool, ...]:
        """For each leaf, whether its argument is donated."""
        if not (self.statics.donate_argnums or self.statics.donate_argnames):
            return (False,) * len(self.leaves)
        positions = [i for i in range(len(self.args)) if i not in self.statics.argnums]
        flags: list[bool] = []
        for position, arg in zip(positions, self.dynamic_args, strict=True):
            flags += [position in self.statics.donate_argnums] * len(tree.leaves(arg))
        for name in sorted(self.dynamic_kwargs):
            flags += [name in self.statics.donate_argnames] * len(tree.leaves(self.dynamic_kwargs[name]))
        return tuple(flags)


def _with_statics(fun: Callable[..., Any], static_args: dict[int, Any], static_kwargs: dict[str, Any]) -> Callable[..., Any]:
    """`fun` as a function of its other arguments."""

    @functools.wraps(fun)
    def with_statics(*args: Any, **kwargs: Any) -> Any:
        rest = iter(args)
        count = len(args) + len(static_args)
        merged = [static_args[i] if i in static_args else next(rest) for i in range(count)]
        return fun(*merged, **kwargs, **static_kwargs)

    return with_statics


def _static_key(fun: Callable[..., Any], values: dict[Any, Any]) -> tuple[Any, ...]:
    for name, value in values.items():
        try:
            hash(value)
        except TypeError:
            raise UnhashableStaticError(
                f"static argument {name!r} of {function_name(fun)} is {value!r:.80} of type {type(value).__name__}, which is not hashable. "
                "Pass a tuple instead of a list, a frozen dataclass instead of a dict; arrays cannot be static."
            ) from None
    return tuple([(name, type(value), value) for name, value in values.items()])


def _as_tuple(value: Any) -> tuple[Any, ...]:
    if value is None:
        return ()
    return (value,) if isinstance(value, (int, str)) else tuple(value)


def _resolve_statics(fun: Callable[..., Any], argnums: Any, argnames: Any, donate_argnums: Any, donate_argnames: Any) -> _Statics:
    """Complete positions by names and names by positions, so that an argument is static however it is passed."""
    nums, names = _as_tuple(argnums), _as_tuple(argnames)
    donate_nums, donate_names = _as_tuple(donate_argnums), _as_tuple(donate_argnames)
    try:
        parameters = list(inspect.signature(fun).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    named = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    variadic = any(p.kind is p.VAR_POSITIONAL for p in parameters) or not parameters

    def positions(numbers: tuple[int, ...], labels: tuple[str, ...], option: str) -> tuple[frozenset[int], frozenset[str]]:
        resolved = set()
        for number in numbers:
            if not variadic and not -len(named) <= number < len(named):
                raise ArgumentError(f"{option}={number} is out of range: {function_name(fun)} takes {len(named)} positional arguments")
            resolved.add(number % len(named) if number < 0 and named else number)
        resolved |= {named.index(n) for n in labels if n in named}
        return frozenset(resolved), frozenset(labels) | {named[i] for i in resolved if i < len(named)}

    static_numbers, static_labels = positions(nums, names, "static_argnums")
    donated_numbers, donated_labels = positions(donate_nums, donate_names, "donate_argnums")
    if static_numbers & donated_numbers:
        raise ArgumentError("an argument cannot be both static and donated")
    return _Statics(static_numbers, static_labels, donated_numbers, donated_labels)
