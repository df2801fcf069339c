"""`jit`: each call looks up its program (`cache` tells how), and traces on a miss."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from volta_fn import tree
from volta_fn.core.array import Array, as_value
from volta_fn.core.aval import ShapedArray, ShapeDtypeStruct
from volta_fn.core.axes import axis_environment
from volta_fn.core.device import current_default_device
from volta_fn.core.flatten import check_callable, function_name
from volta_fn.core.staging import eval_jaxpr
from volta_fn.core.trace import EVAL, bind, current_trace
from volta_fn.jit.arguments import Request, Statics, call_key, resolve_statics
from volta_fn.jit.cache import Cache, matched
from volta_fn.jit.compile import Traced, compiled_for, trace_function, with_full
from volta_fn.jit.eager import check_usable, common_device, on_device
from volta_fn.lazy_imports import load
from volta_fn.primitives.call import call_params, jit_p
from volta_fn.settings import current as settings

if TYPE_CHECKING:
    from volta_fn.jit.lowered import Lowered


class CacheInfo(NamedTuple):
    """The number of programs that a jitted function keeps, and of its traces."""

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
    device: Any = None,
    backend: Any = None,
) -> Any:
    """Compile `fun` to one program per structure, shapes and dtypes of its arguments.

    Args:
        fun: a pure function of pytrees of arrays. Without it, `jit` returns a decorator.
        static_argnums, static_argnames: arguments that are hashable Python values, known while tracing; each value has its own program.
        donate_argnums, donate_argnames: arguments whose memory the program may reuse; they cannot be used afterwards.
        inline: accepted for compatibility; nested jitted functions are always compiled into their caller.
        device, backend: accepted for compatibility; a program runs where its arguments are.

    Returns:
        a function like `fun`, with `lower(*args)` to inspect the program, `cache_info()` and `clear_cache()`.

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
    statics = resolve_statics(fun, static_argnums, static_argnames, donate_argnums, donate_argnames)
    return _jitted(fun, statics)


def _jitted(fun: Callable[..., Any], statics: Statics) -> Callable[..., Any]:
    function = _Function(fun, statics)
    cache, argnums, plain = function.cache, statics.argnums, not statics.some
    compiled, matchers = cache.compiled, cache.matchers

    @functools.wraps(fun)
    def call(*args: Any, **kwargs: Any) -> Any:
        # Every microsecond counts here, so the fastest lookups come first.
        if plain and current_trace() is EVAL:
            if not kwargs:
                known = matched(matchers, args) if matchers else None
                if known is not None:
                    return known[0](known[1])
                try:
                    run = compiled.get(tuple([a._spec for a in args]))
                except AttributeError:  # some argument is not an array
                    run = None
                if run is not None:
                    return run(args)
            known = cache.find(args, kwargs)
            if known is not None:
                return known[0](known[1])
        elif argnums and not kwargs and current_trace() is EVAL:
            try:
                run = compiled.get(call_key(argnums, len(args), "_spec")(*args))
            except (AttributeError, TypeError):  # a pytree of arrays; a static argument that cannot be hashed
                run = None
            if run is not None:
                return run(args)
        return function.slow_call(args, kwargs) if kwargs else function.traced_call(args)

    call.lower = function.lower  # type: ignore[attr-defined]  # functions carry attributes
    call.clear_cache = cache.clear  # type: ignore[attr-defined]
    call.cache_info = lambda: CacheInfo(len(cache.traced), cache.traces)  # type: ignore[attr-defined]
    return call


class _Function:
    """A jitted function: its programs, and the calls for which none is compiled."""

    def __init__(self, fun: Callable[..., Any], statics: Statics) -> None:
        self.fun = fun
        self.statics = statics
        self.cache = Cache()

    def traced_call(self, args: tuple[Any, ...]) -> Any:
        """Call it in a function that is being traced; a known call becomes one equation."""
        if current_trace() is EVAL or settings.disable_jit:
            return self.slow_call(args, {})
        try:
            found = self.cache.staged.get(self._staged_key(args))
        except (AttributeError, TypeError):  # a pytree of arrays; a static argument that cannot be hashed
            found = None
        if found is None:
            return self.slow_call(args, {})
        params, assemble = found
        arrays = [a for i, a in enumerate(args) if i not in self.statics.argnums and a is not None]
        return assemble(current_trace().process(jit_p, arrays, params))

    def slow_call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call it with any arguments; the next call like this one may be found faster."""
        if settings.disable_jit:
            return self.fun(*args, **kwargs)
        request = Request(self.fun, self.statics, args, kwargs)
        values = [as_value(x) for x in request.leaves]
        traced = self.cache.program(request, values)
        if current_trace() is EVAL and not traced.captured:
            return self._evaluated(request, traced, values)
        params = call_params(traced.jaxpr, traced.name)
        as_given = not traced.captured and not traced.in_full
        if as_given and not kwargs and all(a is None or isinstance(a, Array) for a in request.dynamic_args):
            self.cache.staged[self._staged_key(args)] = params, _assembler(traced.out_tree)
        outs = bind(jit_p, *traced.captured, *with_full(values, traced), **params)
        return tree.unflatten(traced.out_tree, outs)

    def _evaluated(self, request: Request, traced: Traced, values: Sequence[Any]) -> Any:
        check_usable(values)
        device = common_device(values)
        if settings.debug_nans or settings.debug_infs:
            return tree.unflatten(traced.out_tree, eval_jaxpr(traced.jaxpr, *with_full(values, traced)))
        run = compiled_for(traced, device)
        if any(v.device is not device for v in values):
            return run(on_device(values, device))
        self.cache.remember(request, run)
        return run(values)

    def _staged_key(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the key of `Cache.staged`; raise `AttributeError` for non-arrays."""
        return call_key(self.statics.argnums, len(args), "aval")(*args), axis_environment(), current_default_device()

    def lower(self, *args: Any, **kwargs: Any) -> Lowered:
        """Trace for arguments like these (arrays or `ShapeDtypeStruct`)."""
        request = Request(self.fun, self.statics, args, kwargs)
        avals = [_abstract(x) for x in request.leaves]
        traced = trace_function(request.function, request.leaves, request.in_tree, avals, function_name(self.fun))
        traced.donate(request.donated())
        made: Lowered = load("volta_fn.jit.lowered").Lowered(traced, request.in_tree, current_default_device())
        return made


def _assembler(out_tree: Any) -> Callable[[Sequence[Any]], Any]:
    """Return the function that makes a call's result of its leaves."""
    return itemgetter(0) if out_tree == tree.structure(0) else functools.partial(tree.unflatten, out_tree)


def _abstract(value: Any) -> ShapedArray:
    if isinstance(value, ShapeDtypeStruct):
        return ShapedArray(value.shape, value.dtype, value.weak_type)
    return as_value(value).aval
