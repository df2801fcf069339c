"""Jitted functions: `jit`, and its calls that read and write references."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Hashable, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Concatenate, Generic, NamedTuple, ParamSpec, Self, TypeVar, overload

from volta_fn import tree
from volta_fn.core.arrays.array import Array, ConcreteArray, as_value
from volta_fn.core.arrays.memory import common_device
from volta_fn.core.aval import ShapedArray, ShapeDtypeStruct
from volta_fn.core.devices.device import Device, current_default_device, find_device, local_devices
from volta_fn.core.jaxpr import constraints_of, devices_of
from volta_fn.core.refs import (
    PassedRefError,
    Ref,
    RefArguments,
    borrowed,
    positions_of_refs,
    read_all,
    taking_values,
    with_view_nodes,
    write_all,
)
from volta_fn.core.staging import JittedFunction, UsedRefsError, check_callable, describe_data, function_name, leaf_structure
from volta_fn.core.trace import EVAL, axis_environment, bind, current_trace
from volta_fn.errors import ArgumentError, ArgumentTypeError, DeviceError
from volta_fn.jit.cache import JitOptions, ProgramCache, Request, key_function, resolve_options, shared_cache
from volta_fn.jit.compile import OtherContextError, TracedProgram, compiled_once, mesh_key, trace_function, with_wide_inputs
from volta_fn.jit.eager import SHARDED, check_usable, on_device
from volta_fn.lazy_imports import load
from volta_fn.primitives.call import call_params, jit_p
from volta_fn.runtime.threads import compile_in_foreground
from volta_fn.settings import current as settings
from volta_fn.source import signature

if TYPE_CHECKING:
    from volta_fn.jit.stages import Lowered
    from volta_fn.jit.stages import Traced as PublicTraced

P = ParamSpec("P")
Rest = ParamSpec("Rest")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
T = TypeVar("T")


class CacheInfo(NamedTuple):
    """The number of programs that a jitted function keeps, and of its traces."""

    programs: int
    traces: int


#: Transforms kept per function before all are dropped.
_TRANSFORMS = 64


@overload
def jit(
    fun: Callable[P, R],
    *,
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Sequence[str] | None = None,
    donate_argnums: int | Sequence[int] | None = None,
    donate_argnames: str | Sequence[str] | None = None,
    inline: bool = False,
) -> PjitFunction[P, R]: ...
@overload
def jit(
    fun: None = None,
    *,
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Sequence[str] | None = None,
    donate_argnums: int | Sequence[int] | None = None,
    donate_argnames: str | Sequence[str] | None = None,
    inline: bool = False,
) -> Callable[[Callable[P, R]], PjitFunction[P, R]]: ...
def jit(
    fun: Callable[..., Any] | None = None,
    *,
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Sequence[str] | None = None,
    donate_argnums: int | Sequence[int] | None = None,
    donate_argnames: str | Sequence[str] | None = None,
    inline: bool = False,
    in_shardings: Any = None,
    out_shardings: Any = None,
    keep_unused: bool = False,
    compiler_options: Any = None,
    device: Any = None,
    backend: Any = None,
) -> Any:
    """Compile `fun` to one program per structure, shapes and dtypes of its arguments.

    Another `jit` of the same function object with the same options shares the programs.

    Args:
        fun: a pure function of pytrees of arrays. Without it, `jit` returns a decorator.
        static_argnums, static_argnames: arguments that are hashable Python values, known while tracing; each value has its own program.
        donate_argnums, donate_argnames: arguments whose memory the program may reuse; they cannot be used afterwards.
        inline: accepted for compatibility; nested jitted functions are always compiled into their caller.
        in_shardings, out_shardings: how positional arguments that are not static, and results, are split between devices, as for
            `lax.with_sharding_constraint`; a `SingleDeviceSharding` is a `device`.
        keep_unused, compiler_options: accepted for compatibility.
        device, backend: the device that calls run on, or a platform for its first device; arguments elsewhere are copied. Without them, a
            program runs where its arguments are. Inside another jitted function they have no effect.

    Returns:
        a function like `fun`, with `trace(*args)` and `lower(*args)` to inspect the program (`volta_fn.stages`), `eval_shape(*args)`,
        `cache_info()`, `why_missed(*args)` and `clear_cache()`.

    Raises:
        ConcretizationError: `fun` needs the value of an argument that is not static.
        UnhashableStaticError: a static argument is not hashable.
        DeviceError: there is no such `device` or `backend`, or shardings name several devices. ArgumentError: both are passed.

    >>> square = vf.jit(lambda x: x * x)
    >>> square(vf.numpy.arange(3.0))
    Array([0., 1., 4.], dtype=float32)
    """
    if device is not None and backend is not None:
        raise ArgumentError(f"jit: pass either a device or a backend, got device={device!r} and backend={backend!r}")
    if backend is not None:
        device = local_devices(backend=backend)[0]
    elif device is not None:
        device = find_device(device)
    if fun is None:
        return functools.partial(
            jit,
            static_argnums=static_argnums,
            static_argnames=static_argnames,
            donate_argnums=donate_argnums,
            donate_argnames=donate_argnames,
            in_shardings=in_shardings,
            out_shardings=out_shardings,
            device=device,
        )
    check_callable(fun, "jit")
    if isinstance(fun, staticmethod):
        raise ArgumentTypeError(f"jit of {fun!r:.80}: decorate in the other order, @staticmethod above @jit")
    if inspect.isgeneratorfunction(fun) or inspect.iscoroutinefunction(fun):
        kind = "a generator, which yields" if inspect.isgeneratorfunction(fun) else "a coroutine, which is awaited"
        raise ArgumentTypeError(
            f"jit of {function_name(fun)}: it is {kind}, and a jitted function returns its results. Jit the function that computes a step, "
            "and call it in the loop"
        )
    options = resolve_options(fun, static_argnums, static_argnames, donate_argnums, donate_argnames)
    if in_shardings is not None or out_shardings is not None:
        placement = load("volta_fn.core.devices.placement")
        device = device or placement.single_device_of((in_shardings, out_shardings))
        fun = placement.constrained_function(fun, in_shardings, out_shardings, options.argnums)
    if device is not None:
        options = options._replace(device=device)
    return PjitFunction(fun, options, shared_cache(fun, options))


class _Signature:
    """The signature of the original function, which needs no `__wrapped__`."""

    def __get__(self, function: PjitFunction[..., Any] | None, owner: type) -> inspect.Signature:
        if function is None:  # the class has one of its own
            raise AttributeError("__signature__")
        return signature(function._fun)


class PjitFunction(JittedFunction, Generic[P, R_co]):
    """A jitted function, which is called like the original; made by `jit`.

    >>> square = vf.jit(lambda x: x * x)
    >>> _ = square(2.0), square(3.0), square(vf.numpy.arange(3))
    >>> square
    <jit of <lambda>: 2 programs>
    """

    __slots__ = (
        "__dict__",
        "__weakref__",
        "_argnums",
        "_cache",
        "_fun",
        "_options",
        "_ref_passing",
        "_transforms",
    )

    __signature__ = _Signature()

    def __init__(self, fun: Callable[..., Any], options: JitOptions, cache: ProgramCache | None = None) -> None:
        functools.update_wrapper(self, fun)
        self._fun = fun
        self._options = options
        self._cache = cache or ProgramCache(options)
        self._cache.users += 1
        #: The positions of static arguments; None, which is tested faster, if there are none.
        self._argnums = options.argnums or None
        self._transforms: dict[Any, PjitFunction] = {}
        #: How it is called if it uses references from outside, or gets some as arguments.
        self._ref_passing: RefPassing | None = None

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Call the function."""
        if current_trace() is not EVAL:
            in_python = settings.disable_jit or settings.sees_results
            return self._call_by_request(args, kwargs) if kwargs or in_python else self._call_as_equation(args)
        cache = self._cache
        try:
            if not (kwargs or cache.matchers):
                # The most frequent calls are looked up here: another Python function to cross would take a tenth of their time.
                try:
                    if self._argnums is None:
                        run = cache.calls.get(tuple([a._spec for a in args]))  # type: ignore[attr-defined]
                    else:
                        run = cache.calls.get(key_function(self._argnums, len(args), "_spec")(*args))
                except (AttributeError, TypeError, ValueError):
                    run = None  # an argument that is no array; a static one that has no hash, or is an array
                if run is not None:
                    return run(args)
            call = cache.lookup_tree(args, kwargs) if kwargs else cache.lookup(args)
            if call is not None:
                run, arrays = call
                return run(arrays)
        except OtherContextError:
            pass  # traced again
        return self._call_by_request(args, kwargs)

    def __dir__(self) -> list[str]:
        return [name for name in object.__dir__(self) if name[0] != "_" or name.startswith("__")]

    def __repr__(self) -> str:
        count = len(self._cache.programs)
        return f"<jit of {getattr(self._fun, '__qualname__', function_name(self._fun))}: {count} program{'s' * (count != 1)}>"

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...
    @overload
    def __get__(self: PjitFunction[Concatenate[Any, Rest], R_co], instance: object, owner: type | None = None) -> Callable[Rest, R_co]: ...
    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    def __reduce__(self) -> str:
        return getattr(self, "__qualname__", function_name(self._fun))  # as functions: pickled by name, copied as themselves

    def cache_info(self) -> CacheInfo:
        """Return the number of programs and of traces so far."""
        return CacheInfo(len(self._cache.programs), self._cache.traces)

    def _cache_size(self) -> int:
        """Return the number of programs, by the name that JAX's tests and libraries use."""
        return len(self._cache.programs)

    def clear_cache(self) -> None:
        """Forget all programs, also those of transforms.

        Other jitted functions of the same function and options forget theirs, too.
        """
        self._cache.clear()
        self._transforms.clear()

    def why_missed(self, *args: P.args, **kwargs: P.kwargs) -> str | None:
        """Return why a call with these arguments would be compiled; None if it would not.

        The reason is what differs from the closest program: structure, shapes and dtypes of the arguments, values of the static ones, named
        axes in scope or the default device. `volta_fn.explain_cache_misses` logs it at each call that is compiled.

        >>> double = vf.jit(lambda x: 2 * x)
        >>> y = double(vf.numpy.ones(3))
        >>> double.why_missed(vf.numpy.zeros(3)) is None
        True
        >>> double.why_missed(vf.numpy.ones(4))
        'compared with the closest of 1 programs, x has 2 types, such as f32[3], f32[4]'
        """
        if self._ref_passing is not None:
            return self._ref_passing.why_missed(args, kwargs)
        request = Request(self._fun, self._options, args, kwargs)
        if positions_of_refs(request.leaves):
            return RefPassing(self._fun, self._options, [], PjitFunction).why_missed(args, kwargs)
        return self._cache.reason_of_miss(request, self._cache.key(request, request.values()))

    def transformed(self, key: Hashable, function: Callable[..., Any], same_arguments: bool) -> Callable[..., Any]:
        """Jit a transform of this function; see `JittedFunction`."""
        if self._options.has_static and not same_arguments:
            return function
        transform = self._transforms.get(key)
        if transform is None:
            if len(self._transforms) >= _TRANSFORMS:
                self._transforms.clear()
            nothing: frozenset[Any] = frozenset()
            transform = PjitFunction(function, self._options._replace(donate_argnums=nothing, donate_argnames=nothing))
            self._transforms[key] = transform
        return transform

    def _call_as_equation(self, args: tuple[Any, ...]) -> Any:
        """Call it under a trace: a call that was traced before becomes one equation."""
        try:
            equation = self._cache.equations.get(self._equation_key(args))
        except (AttributeError, TypeError, ValueError):  # a pytree of arrays; a static argument that cannot be hashed, or is an array
            equation = None
        arrays = [a for i, a in enumerate(args) if i not in self._options.argnums and a is not None]
        if equation is None or (Ref.exist and not all(isinstance(a, Array) for a in arrays)):  # a reference has its array's type
            return self._call_by_request(args, {})
        params, assemble = equation
        return assemble(current_trace().process(jit_p, arrays, params))

    def _call_by_request(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call it with any arguments; the next call like this one may be found faster."""
        return compile_in_foreground(self._call_traced, args, kwargs)

    def _call_traced(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the program of these arguments, which is traced if there is none."""
        if settings.disable_jit or settings.sees_results:
            return self._in_python(Request(self._fun, self._options, args, kwargs))
        if self._ref_passing is not None:
            return self._ref_passing(args, kwargs)
        args, kwargs = with_view_nodes((args, kwargs))
        request = Request(self._fun, self._options, args, kwargs)
        if Ref.exist and positions_of_refs(request.leaves):
            return self._switch_to_ref_passing([])(args, kwargs)
        values = request.values()
        try:
            traced = self._cache.traced_program(request, values)
        except UsedRefsError as used:
            if "_ref_values" in kwargs:  # their values are given: it is a program inside that cannot use them
                raise
            return self._switch_to_ref_passing(used.refs)(args, kwargs)
        if current_trace() is EVAL and not traced.captured:
            return self._run(traced, request, values)
        return self._bind(traced, request, values)

    def _run(self, traced: TracedProgram, request: Request, values: Sequence[Any]) -> Any:
        """Run a program, and let the next call like this one find it by its types."""
        check_usable(values)
        if constraints_of(traced.jaxpr) or any(v.device.sharding is not None for v in values) or devices_of(traced.jaxpr):
            run = SHARDED.sharded_program(traced, values)
        else:
            device = self._options.device or common_device(values)
            run = compiled_once(traced, device)
            if any(v.device is not device for v in values):
                return run(on_device(values, device))
        self._cache.store_by_types(request, values, traced.guarded(run))
        return run(values)

    def _bind(self, traced: TracedProgram, request: Request, values: Sequence[Any]) -> Any:
        """Call a program under a trace, as one equation, which later calls find."""
        params = call_params(traced.jaxpr, traced.name)
        takes_arguments_alone = not traced.captured and not traced.wide_inputs
        if takes_arguments_alone and not request.kwargs and all(a is None or isinstance(a, Array) for a in request.dynamic_args):
            self._cache.equations[self._equation_key(request.args)] = params, _assembler(traced.out_tree)
        outs = bind(jit_p, *traced.captured, *with_wide_inputs(values, traced), **params)
        return tree.unflatten(traced.out_tree, outs)

    def _in_python(self, request: Request) -> Any:
        """Call the function in Python, with arrays in place of numbers and NumPy's arrays."""
        if positions_of_refs(request.leaves):
            return self._fun(*request.args, **request.kwargs)
        args, kwargs = tree.unflatten(request.in_tree, request.values())
        return tree.map(as_value, request.function(*args, **kwargs))

    def _switch_to_ref_passing(self, refs: Sequence[Any]) -> RefPassing:
        """Pass its references' values as arguments from now on."""
        self._ref_passing = RefPassing(self._fun, self._options, refs, PjitFunction)
        return self._ref_passing

    def _equation_key(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the key of the table `equations`; raise `AttributeError` for non-arrays."""
        mesh = mesh_key() if self._cache.reads_mesh else ()
        return key_function(self._options.argnums, len(args), "aval")(*args), axis_environment(), current_default_device(), mesh

    def trace(self, *args: Any, **kwargs: Any) -> PublicTraced:
        """Trace for arguments like these (arrays or `ShapeDtypeStruct`)."""
        if self._ref_passing is not None:
            return self._ref_passing.trace(args, kwargs)
        args, kwargs = with_view_nodes((args, kwargs))
        request = Request(self._fun, self._options, args, kwargs)
        if positions_of_refs(request.leaves):
            return self._switch_to_ref_passing([]).trace(args, kwargs)
        request.leaves, request.in_tree = describe_data(request.leaves, request.in_tree)
        avals = [_abstract(x) for x in request.leaves]
        shardings = [_sharding(x) for x in request.leaves]
        function = SHARDED.with_argument_shardings(request.function, shardings) if any(shardings) else request.function
        try:
            traced = trace_function(function, request.in_tree, avals, function_name(self._fun))
        except UsedRefsError as used:
            if "_ref_values" in kwargs:
                raise
            return self._switch_to_ref_passing(used.refs).trace(args, kwargs)
        traced.donate(request.donated(), request.in_tree)
        device = current_default_device() if any(shardings) else self._options.device or _device_of(request.leaves)
        public: PublicTraced = load("volta_fn.jit.stages").Traced(traced, request.in_tree, device)
        return public

    def lower(self, *args: Any, **kwargs: Any) -> Lowered:
        """Trace and lower for arguments like these (arrays or `ShapeDtypeStruct`)."""
        return self.trace(*args, **kwargs).lower()

    def eval_shape(self, *args: Any, **kwargs: Any) -> Any:
        """Return the shapes and dtypes of the results for arguments like these."""
        return self.trace(*args, **kwargs).out_info


def _assembler(out_tree: Any) -> Callable[[Sequence[Any]], Any]:
    """Return the function that makes a call's result of its leaves."""
    return itemgetter(0) if out_tree == leaf_structure() else functools.partial(tree.unflatten, out_tree)


def _abstract(value: Any) -> ShapedArray:
    if isinstance(value, ShapeDtypeStruct):
        return ShapedArray(value.shape, value.dtype, value.weak_type)
    return as_value(value).aval


def _sharding(value: Any) -> Any:
    """Return the sharding of an array, or of a described one, if it is split."""
    if isinstance(value, ShapeDtypeStruct):
        return value.sharding if hasattr(value.sharding, "spec") else None
    return value.device.sharding if isinstance(value, ConcreteArray) else None


def _device_of(values: Sequence[Any]) -> Device:
    """Return the device of some values: one that is not the default, if any is."""
    named = {x.sharding.device for x in values if isinstance(x, ShapeDtypeStruct) and hasattr(x.sharding, "device")}
    arrays = [x for x in values if isinstance(x, ConcreteArray)]
    others = {*named, common_device(arrays)} - {current_default_device()}
    if len(others) > 1:
        raise DeviceError(f"the arguments are on different devices ({', '.join(sorted(map(str, others)))}); move them with device_put")
    return others.pop() if others else current_default_device()


# Calls of jitted functions that use mutable references.
#
# A program takes the references' values as further arguments, and returns the last ones as further results.


class _RefCall:
    """A call of a jitted function with values in place of references."""

    def __init__(self, function: Any, args: Sequence[Any], kwargs: dict[str, Any], refs: Sequence[Ref], arguments: Sequence[Ref]) -> None:
        #: The `PjitFunction` function that returns a result, and the last values.
        self.function = function
        self.args, self.kwargs, self.refs = args, kwargs, refs
        #: The references that are arguments.
        self.arguments = arguments


class RefPassing:
    """The calls of a jitted function that closes over `refs`, or gets references."""

    def __init__(
        self, fun: Callable[..., Any], options: JitOptions, refs: Sequence[Ref], jitted: Callable[..., PjitFunction[..., Any]]
    ) -> None:
        self.name = function_name(fun)
        self.refs = list(refs)
        self.options = options
        self.jitted = jitted
        self.fun = fun
        self.closing_over = jitted(taking_values(fun, (), (), (), self.refs, self), options) if refs else None
        #: Functions of arguments with values in place of references, by where these are.
        self.by_positions: dict[Any, PjitFunction[..., Any]] = {}
        #: Whether derivative rules keep arguments: each program is one of certain references then.
        self.binds_arguments = False

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any], compiled: Callable[..., Any] | None = None) -> Any:
        """Call the function, or what `trace` returned, when it is compiled."""
        call, (result, values) = self._run(lambda call: (compiled or call.function)(*call.args, **call.kwargs), args, kwargs)
        write_all(call.refs, values)
        return result

    def trace(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> PublicTraced:
        """Trace for arguments like these; see `PjitFunction.trace`."""
        _, traced = self._run(lambda call: call.function.trace(*call.args, **call.kwargs), args, kwargs)
        traced.passings.insert(0, self)
        return traced

    def why_missed(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
        """Return why a call would be compiled; see `PjitFunction.why_missed`."""
        return self._run(lambda call: call.function.why_missed(*call.args, **call.kwargs), args, kwargs)[1]

    def _run(self, run: Callable[[_RefCall], T], args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[_RefCall, T]:
        """Return a call with values in place of references, and what `run` makes of it."""
        args, kwargs = with_view_nodes((args, kwargs))
        call = self._call(args, kwargs)
        try:
            with borrowed(call.arguments):
                return call, run(call)
        except PassedRefError as error:
            if error.passing is not self:
                raise
        self.binds_arguments = True
        return self._run(run, args, kwargs)

    def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _RefCall:
        if self.closing_over is not None:
            return _RefCall(self.closing_over, args, {**kwargs, "_ref_values": read_all(self.refs)}, self.refs, ())
        leaves, structure = tree.flatten((args, kwargs))
        arguments = RefArguments(leaves, positions_of_refs(leaves), self.name)
        positional, named = tree.unflatten(structure, arguments.values())
        outer = arguments.refs if self.binds_arguments else []
        constant = tuple([r.is_constant for r in arguments.refs])
        key = structure, arguments.positions, constant, *outer
        if key not in self.by_positions:
            if len(self.by_positions) >= _TRANSFORMS:
                self.by_positions.clear()
            self.by_positions[key] = self.jitted(taking_values(self.fun, arguments.positions, constant, outer, (), self), self.options)
        return _RefCall(self.by_positions[key], positional, named, arguments.refs, arguments.refs)
