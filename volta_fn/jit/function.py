"""`jit`: a function that finds the program for each call.

A jitted call first looks for a program by its arguments' types alone. Only on a miss does it look at structures and trace.
"""

from __future__ import annotations

import functools
import importlib
import threading
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from volta_fn import tree
from volta_fn.core.array import Array, ConcreteArray, as_value
from volta_fn.core.aval import ShapedArray, ShapeDtypeStruct
from volta_fn.core.axes import axis_environment
from volta_fn.core.device import current_default_device
from volta_fn.core.flatten import check_callable, function_name
from volta_fn.core.trace import EVAL, bind, current_trace
from volta_fn.jit.arguments import Request, Statics, call_key, resolve_statics
from volta_fn.jit.eager import check_not_donated, common_device, on_device
from volta_fn.jit.programs import Traced, compiled_for, trace_function
from volta_fn.primitives.call import call_params, jit_p

if TYPE_CHECKING:
    from volta_fn.jit.lowered import Lowered
    from volta_fn.tree.matching import Match

#: Programs kept per function before all are dropped, and structures of arguments that are taken apart by code of their own.
_CACHE_LIMIT = 4096
_MATCHERS = 4

#: What takes trees of one structure apart, and what runs calls by such trees, by their arrays' types.
_Matcher = tuple["Match", dict[Any, Callable[[Sequence[Any]], Any]]]


class _Cache:
    """Traced and compiled programs of one function, by structure and types of its arguments."""

    def __init__(self) -> None:
        self.traced: dict[Any, Traced] = {}
        #: Of calls by arrays: compiled programs by their types, and what a traced call needs by theirs.
        self.fast: dict[Any, Callable[[Sequence[Any]], Any]] = {}
        self.met: dict[Any, tuple[dict[str, Any], Callable[[Sequence[Any]], Any]]] = {}
        #: Of calls by trees of arrays that were made before.
        self.matchers: list[_Matcher] = []
        self.structures: set[Any] = set()
        #: Structures for which there is no such code: it cannot be written, or there were others before.
        self.without_code: set[Any] = set()
        self.lock = threading.Lock()
        self.traces = 0

    def program(self, request: Request, values: Sequence[Array]) -> Traced:
        """The program of a call, traced if there is none for its types."""
        avals = tuple([v.aval for v in values])
        key = (request.key, avals, axis_environment(), current_default_device())
        found = self.traced.get(key)
        if found is not None:
            return found
        # No lock is held while tracing: the function may call other jitted functions, which other threads may be tracing.
        traced = trace_function(request.function, values, request.in_tree, avals, function_name(request.fun))
        traced.donated = request.donated()
        return traced if traced.captured else self.keep(key, traced)

    def keep(self, key: Any, traced: Traced) -> Traced:
        """Store a program; if another thread was faster, its program is the one to use."""
        with self.lock:
            self.traces += 1
            if len(self.traced) >= _CACHE_LIMIT:
                self._drop()
            return self.traced.setdefault(key, traced)

    def learn(self, structure: Any, args: tuple[Any, ...], leaves: Sequence[Any], run: Callable[[Sequence[Any]], Any]) -> None:
        """Let calls like this one find what runs them without looking at every node of their arguments."""
        with self.lock:
            if structure not in self.structures:
                match = self._matcher(structure, args) if len(self.matchers) < _MATCHERS else None
                if match is None:
                    self.without_code.add(structure)
                    return
                self.structures.add(structure)
                self.matchers.append((match, {}))
            for match, programs in self.matchers:
                if match(args) is not None:
                    programs[tuple([x._spec for x in leaves])] = run

    @staticmethod
    def _matcher(structure: Any, args: tuple[Any, ...]) -> Match | None:
        made: Match | None = importlib.import_module("volta_fn.tree.matching").matcher(structure.child(0), args)
        return made

    def clear(self) -> None:
        with self.lock:
            self._drop()

    def _drop(self) -> None:
        for programs in (self.traced, self.fast, self.met, self.matchers, self.structures, self.without_code):
            programs.clear()


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
    statics = resolve_statics(fun, static_argnums, static_argnames, donate_argnums, donate_argnames)
    return _jitted(fun, statics)


def _jitted(fun: Callable[..., Any], statics: Statics) -> Callable[..., Any]:
    cache = _Cache()
    fast, matchers = cache.fast, cache.matchers
    plain = not (statics.argnums or statics.argnames)
    argnums = statics.argnums

    @functools.wraps(fun)
    def call(*args: Any, **kwargs: Any) -> Any:
        if plain and current_trace() is EVAL:
            if not kwargs:
                known = _matched(matchers, args) if matchers else None
                if known is not None:
                    return known[0](known[1])
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
                if not kwargs and structure not in cache.without_code:
                    cache.learn(structure, args, leaves, run)
                return run(leaves)
        elif argnums and not kwargs and current_trace() is EVAL:
            try:
                run = fast.get(call_key(argnums, len(args), "_spec")(*args))
            except (AttributeError, TypeError):  # a pytree of arrays; a static argument that cannot be hashed
                run = None
            if run is not None:
                return run(args)
        return slow_call(args, kwargs) if kwargs else traced_call(args)

    def traced_call(args: tuple[Any, ...]) -> Any:
        """A call by arrays, or tracers of them, of types that were met before: one equation."""
        try:
            found = cache.met.get((call_key(argnums, len(args), "aval")(*args), axis_environment(), current_default_device()))
        except (AttributeError, TypeError):  # a pytree of arrays; a static argument that cannot be hashed
            found = None
        if found is None or current_trace() is EVAL:
            return slow_call(args, {})
        params, together = found
        return together(current_trace().process(jit_p, arrays_of(args), params))

    def arrays_of(args: tuple[Any, ...]) -> list[Any]:
        return [a for i, a in enumerate(args) if i not in argnums and a is not None]

    def slow_call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        request = Request(fun, statics, args, kwargs)
        values = [as_value(x) for x in request.leaves]
        traced = cache.program(request, values)
        if current_trace() is EVAL and not traced.captured:
            check_not_donated(values)
            device = common_device(values)
            run = compiled_for(traced, device)
            if any(v.device is not device for v in values):
                return run(on_device(values, device))
            _remember(fast, run, request, plain)
            return run(values)
        params = call_params(traced.jaxpr, traced.name)
        if not kwargs and not traced.captured and all(a is None or isinstance(a, Array) for a in request.dynamic_args):
            key = call_key(argnums, len(args), "aval")(*args), axis_environment(), current_default_device()
            cache.met[key] = params, _put_together(traced.out_tree)
        outs = bind(jit_p, *traced.captured, *values, **params)
        return tree.unflatten(traced.out_tree, outs)

    def lower(*args: Any, **kwargs: Any) -> Lowered:
        """The program for arguments like these (arrays or `ShapeDtypeStruct`), without running it."""
        return _lowered(Request(fun, statics, args, kwargs))

    call.lower = lower  # type: ignore[attr-defined]  # functions carry attributes
    call.clear_cache = cache.clear  # type: ignore[attr-defined]
    call.cache_info = lambda: CacheInfo(len(cache.traced), cache.traces)  # type: ignore[attr-defined]
    return call


def _put_together(out_tree: Any) -> Callable[[Sequence[Any]], Any]:
    """What makes a call's result of its leaves."""
    return itemgetter(0) if out_tree == tree.structure(0) else functools.partial(tree.unflatten, out_tree)


def _matched(matchers: Sequence[_Matcher], args: tuple[Any, ...]) -> tuple[Callable[[Sequence[Any]], Any], list[Any]] | None:
    """What runs a call by trees that were met before, and their arrays; None if there is nothing."""
    for match, programs in matchers:
        leaves = match(args)
        if leaves is None:
            continue
        try:
            run = programs.get(tuple([x._spec for x in leaves]))
        except AttributeError:  # a tree, or a number, in the place of an array
            continue
        if run is not None:
            return run, leaves
    return None


def _remember(fast: dict[Any, Callable[[Sequence[Any]], Any]], run: Callable[[Sequence[Any]], Any], request: Request, plain: bool) -> None:
    """Note what runs calls like this one, under the key that the next one finds it by. `plain`: the function has no static arguments."""
    args, argnums = request.args, request.statics.argnums
    if not plain and not request.kwargs and all(a is None or type(a) is ConcreteArray for a in request.dynamic_args):
        places = [i for i, a in enumerate(args) if i not in argnums and a is not None]
        fast[call_key(argnums, len(args), "_spec")(*args)] = _of_places(run, places)
    elif plain and all(type(x) is ConcreteArray for x in request.leaves):
        flat_call = not request.kwargs and len(args) == len(request.leaves) > 0 and all(type(a) is ConcreteArray for a in args)
        specs = tuple([x._spec for x in request.leaves])
        fast[specs if flat_call else (request.in_tree, *specs)] = run


def _of_places(run: Callable[[Sequence[Any]], Any], places: list[int]) -> Callable[[Sequence[Any]], Any]:
    """`run` of all arguments, of which it takes those at the places."""
    first, last = (places[0], places[-1] + 1) if places else (0, 0)
    if last - first == len(places):
        return lambda args: run(args[first:last])
    return lambda args: run([args[i] for i in places])


def _lowered(request: Request) -> Lowered:
    traced = trace_function(
        request.function, request.leaves, request.in_tree, [_abstract(x) for x in request.leaves], function_name(request.fun)
    )
    traced.donated = request.donated()
    made: Lowered = importlib.import_module("volta_fn.jit.lowered").Lowered(traced, request.in_tree, current_default_device())
    return made


def _abstract(value: Any) -> ShapedArray:
    if isinstance(value, ShapeDtypeStruct):
        return ShapedArray(value.shape, value.dtype, value.weak_type)
    return as_value(value).aval
