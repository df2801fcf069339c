"""The cache of a jitted function: its programs, and how a call finds its own.

A function is traced once for each key: structure, shapes and dtypes of its arguments, values of the static ones, named axes in scope,
default device, and the current mesh if it reads that (the table `programs`, by `ProgramKey`). A call should not have to compute that
key, so further tables lead to the same programs faster:

- `calls`: calls of positional arguments that are arrays, by their specs; static arguments are in the key by type and value.
- `structures`: calls of pytrees whose structure is known. Generated code checks the structure and reads the leaves (`tree.matching`).
- `trees`: all other calls, by static arguments, structure, and specs of the leaves.
- `equations`: calls in a function that is being traced, by the types of the arrays. They become one equation.

`Jitted.__call__` reads `calls`, `ProgramCache.lookup` the next two. A call that no table has becomes a `Request`, which computes the
complete key and may have to trace. `jit` of a function that was jitted before, with the same options, shares the cache
(`shared_cache`). A warning tells why a function is compiled again and again.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import FunctionType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from volta_fn import tree
from volta_fn.core.arrays.array import Array, ConcreteArray, as_value
from volta_fn.core.aval import ShapedArray
from volta_fn.core.caches import CallCache, clear_all
from volta_fn.core.devices.device import Device, current_default_device, limit_memory
from volta_fn.core.functions import argument_labels, function_name
from volta_fn.core.jaxpr import ClosedJaxpr
from volta_fn.core.trace import axis_environment, mesh_reads
from volta_fn.errors import RecompilationWarning
from volta_fn.jit.arguments import ArgumentsKey, JitOptions, Request, key_function, static_values
from volta_fn.jit.compile import TracedProgram, mesh_key, trace_function
from volta_fn.jit.eager import SHARDED, forget_kernels
from volta_fn.lazy_imports import deferred, load
from volta_fn.settings import current as settings
from volta_fn.source import user_location

if TYPE_CHECKING:
    from volta_fn.tree.matching import Match

#: Loaded on first use: it takes long to import.
_LOGGING = deferred("logging")

#: Programs kept per function before all are dropped.
_MOST_PROGRAMS = 4096
#: Structures of arguments for which code is generated: a call tries one after the other.
_MOST_MATCHERS = 4
#: The types of leaves, other than arrays, with which a program is found again.
_CONVERTED = frozenset({bool, int, float, complex, np.ndarray})
_FLAT = _CONVERTED | {ConcreteArray}

#: The number of programs of a jitted function at which it warns.
MANY_PROGRAMS = 32

#: A compiled program: the result's pytree for a sequence of concrete arrays.
Run = Callable[[Sequence[Any]], Any]


class ProgramKey(NamedTuple):
    """All that a trace of a function depends on."""

    arguments: ArgumentsKey
    avals: tuple[ShapedArray, ...]
    named_axes: Any
    default_device: Device
    #: The arguments' shardings; empty if none is split between devices.
    shardings: tuple[Any, ...]
    #: See `mesh_key`; empty while no program of the function has read the mesh.
    mesh: tuple[Any, ...]


class Matcher(NamedTuple):
    """The programs for arguments of one structure, by the types of the leaves."""

    match: Match
    programs: dict[Any, Run]


class ProgramCache(CallCache):
    """The traced and compiled programs of one function, in the tables listed above."""

    __slots__ = ("calls", "equations", "matchers", "options", "programs", "reads_mesh", "structures", "traces", "trees", "users", "warned")

    def __init__(self, options: JitOptions) -> None:
        self.options = options
        super().__init__("jit", ("calls", "structures", "trees", "equations", "programs"), _MOST_PROGRAMS)
        #: Functions of the arguments, by their specs; by a `key_function` where some are static.
        self.calls: dict[tuple[Any, ...], Run] = self.table("calls")
        self.structures: dict[Any, Matcher] = self.table("structures")
        #: The values of `structures`, which calls iterate over while other threads may add some.
        self.matchers: tuple[Matcher, ...] = ()
        #: Functions of the leaves, by `static_values`, structure, and specs of the leaves.
        self.trees: dict[tuple[tuple[Any, ...], Any, tuple[Any, ...]], Run] = self.table("trees")
        #: The parameters of the equation, and the function that makes the call's result of its outputs.
        self.equations: dict[Any, tuple[dict[str, Any], Run]] = self.table("equations")
        self.programs: dict[ProgramKey, TracedProgram] = self.table("programs")
        self.traces = 0
        #: How many jitted functions use these programs.
        self.users = 0
        #: Whether some program is for the mesh under which it was traced.
        self.reads_mesh = False
        self.warned = False

    def lookup(self, args: tuple[Any, ...]) -> tuple[Run, Sequence[Any]] | None:
        """Return the program and the arrays of a positional call; None if it may be new."""
        for match, programs in self.matchers:
            leaves = match(args)
            if leaves is None:
                continue
            try:
                run = programs.get(tuple([x._spec for x in leaves]))
            except AttributeError:  # a leaf of the structure is a number here, or a tree
                continue
            if run is not None:
                return run, leaves
        if not self.options.argnums and _FLAT.issuperset(map(type, args)):
            arrays: list[Any] = [x if type(x) is ConcreteArray else as_value(x) for x in args]
            run = self.calls.get(tuple([x._spec for x in arrays]))
            return None if run is None else (run, arrays)
        return self.lookup_tree(args, {})

    def lookup_tree(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Run, Sequence[Any]] | None:
        """Return what `lookup` does of any call, by the structure of its arguments."""
        if not self.trees:
            return None
        argnums, dynamic = self.options.argnums, args
        if argnums or self.options.argnames:
            if kwargs:
                return None
            dynamic = tuple([a for i, a in enumerate(args) if i not in argnums])
        leaves, structure = tree.flatten((dynamic, kwargs))
        converted = False
        try:
            specs = tuple([x._spec for x in leaves])
        except AttributeError:  # numbers, or NumPy's arrays; no key has the None of tracers and other objects
            converted, leaves = True, [as_value(x) if type(x) in _CONVERTED else x for x in leaves]
            specs = tuple([getattr(x, "_spec", None) for x in leaves])
        try:
            run = self.trees.get((static_values(argnums, args) if argnums else (), structure, specs))
        except (TypeError, ValueError):  # a static argument that has no hash, or is an array
            return None
        if run is None:
            return None
        if not (kwargs or argnums or converted):
            self.store_by_structure(structure, args, specs, run)
        return run, leaves

    def store_by_structure(self, structure: Any, args: tuple[Any, ...], specs: tuple[Any, ...], run: Run) -> None:
        """Let a matcher find `run` for calls like this one, if the structure has one."""
        matcher = self.structures.get(structure)
        if matcher is None and len(self.structures) < _MOST_MATCHERS:
            match = load("volta_fn.tree.matching").matcher(structure.child(0), args) or _no_match
            matcher = self.add("structures", structure, Matcher(match, {}), 0)
        if matcher is not None and matcher.match is not _no_match:
            matcher.programs[specs] = run
            self.matchers = tuple(self.structures.values())

    def store_by_types(self, request: Request, values: Sequence[Any], run: Run) -> None:
        """Let calls like this one find `run` by the types of their arrays."""
        args, argnums = request.args, self.options.argnums
        if not all(type(x) is ConcreteArray for x in values) or (self.options.has_static and request.kwargs):
            return
        specs = tuple([x._spec for x in values])
        if argnums and all(a is None or type(a) is ConcreteArray for a in request.dynamic_args):
            positions = [i for i, a in enumerate(args) if i not in argnums and a is not None]
            self.calls[key_function(argnums, len(args), "_spec")(*args)] = _of_arguments_at(positions, run)
        elif not argnums and not request.kwargs and len(args) == len(values) and _FLAT.issuperset(map(type, args)):
            self.calls[specs] = run
        else:
            self.trees[static_values(argnums, args), request.in_tree, specs] = run

    def traced_program(self, request: Request, values: Sequence[Array]) -> TracedProgram:
        """Return the traced program of a call; trace it if there is none for its key."""
        key = self.key(request, values)
        program = self.programs.get(key)
        if program is not None:
            return program
        # No lock is held while tracing: the function may call other jitted functions, which other threads may be tracing.
        shardings = _shardings(values)
        function = SHARDED.with_argument_shardings(request.function, shardings) if shardings else request.function
        reads = mesh_reads.count
        traced = trace_function(function, request.in_tree, key.avals, function_name(request.fun))
        if mesh_reads.count > reads:
            traced.mesh = mesh_key()
            key = key._replace(mesh=traced.mesh)
            self.reads_mesh = True
        traced.donate(request.donated(), request.in_tree)
        if settings.log_compiles or settings.explain_cache_misses:
            log_trace(request, key, self.reason_of_miss(request, key), traced.jaxpr)
        if traced.captured:
            return traced
        with self.lock:
            self.traces += 1
            program = self.add("programs", key, traced)
            keys = [*self.programs] if len(self.programs) >= MANY_PROGRAMS * self.users and not self.warned else None
            self.warned |= keys is not None
        if keys is not None:
            warn_of_programs(request, keys)
        return program

    def clear(self) -> None:
        """Forget all programs."""
        super().clear()
        self.matchers = ()

    def key(self, request: Request, values: Sequence[Array]) -> ProgramKey:
        """Return the complete key of a call."""
        avals = tuple([v.aval for v in values])
        mesh = mesh_key() if self.reads_mesh else ()
        return ProgramKey(request.key, avals, axis_environment(), current_default_device(), _shardings(values), mesh)

    def reason_of_miss(self, request: Request, key: ProgramKey) -> str | None:
        """Return why no program has a key, in words; None if one has it."""

        def differences(keys: Sequence[Any]) -> Iterator[str]:
            reasons = [*_differences(request, keys)]
            yield from reasons or ["the named axes, the default device or a static argument differ"]

        return self.why_missed("programs", key, _distance, differences)


def _of_arguments_at(positions: Sequence[int], run: Run) -> Run:
    """Return a function of a call's arguments that passes those at the positions."""
    first, last = (positions[0], positions[-1] + 1) if positions else (0, 0)
    if last - first == len(positions):
        return lambda args: run(args[first:last])
    return lambda args: run([args[i] for i in positions])


def _shardings(values: Sequence[Array]) -> tuple[Any, ...]:
    """Return the arrays' shardings; nothing if none is split between devices."""
    shardings = tuple([v.device.sharding if type(v) is ConcreteArray else None for v in values])
    return shardings if any(s is not None for s in shardings) else ()


class _Shared:
    """The caches of a function by jit's options, which the function itself holds.

    They end with it, even if a program refers to the function.
    """

    __slots__ = ("caches", "owner")

    def __init__(self, fun: FunctionType) -> None:
        self.owner = weakref.ref(fun)
        self.caches: dict[JitOptions, ProgramCache] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, ()  # libraries that pickle functions by value leave the programs out


def shared_cache(fun: Callable[..., Any], options: JitOptions) -> ProgramCache:
    """Return the cache that `jit` of `fun` with these options shares.

    Callable objects that are no functions of Python get a new one each time.
    """
    if type(fun) is not FunctionType:
        return ProgramCache(options)
    shared = fun.__dict__.get(_SHARED)
    if not isinstance(shared, _Shared) or shared.owner() is not fun:  # `functools.wraps` copied another function's
        fun.__dict__.pop(_SHARED, None)
        shared = fun.__dict__.setdefault(_SHARED, _Shared(fun))
    return shared.caches.get(options) or shared.caches.setdefault(options, ProgramCache(options))


_SHARED = "__volta_fn_programs__"


def clear_caches() -> None:
    """Forget the programs of all jitted functions; their next calls trace again.

    >>> import volta_fn as vf
    >>> square = vf.jit(lambda x: x * x)
    >>> y = square(2.0)
    >>> vf.clear_caches()
    >>> square.cache_info().programs
    0
    """
    clear_all("jit")


def _no_match(args: Any) -> None:
    """Stand in for a matcher that cannot be generated."""


# Why a function is compiled again: a warning, and what `log_compiles` logs.


_EXAMPLES = 4


def warn_of_programs(request: Request, keys: Sequence[ProgramKey]) -> None:
    """Warn that a user's function has many programs, given their keys."""
    if str(getattr(request.fun, "__module__", "")).startswith("volta_fn."):
        return
    name = function_name(request.fun)
    reasons = "; ".join(_differences(request, keys)) or "the named axes or the default device differ"
    message = (
        f"{name} has been compiled {len(keys)} times, once for each kind of arguments: {reasons}. Each takes far longer than a call. Give "
        "arrays of few shapes (pad or batch them), and numbers that change as arrays, not as static arguments. This warning is given once "
        "per function."
    )
    where = user_location()
    warnings.warn_explicit(message, RecompilationWarning, where.file if where else "", where.lineno if where else 0)


def log_trace(request: Request, key: ProgramKey, reason: str | None, program: ClosedJaxpr) -> None:
    """Log that a function is traced, and the reason."""
    name, where = function_name(request.fun), user_location()
    at = "" if where is None else f" at {where}"
    if settings.log_compiles:
        types = ", ".join(map(str, key.avals)) or "no arrays"
        _LOGGING.getLogger("volta_fn").warning("compiling %s for %s: %d equations, called%s", name, types, len(program.eqns), at)
    if settings.explain_cache_misses:
        _LOGGING.getLogger("volta_fn").warning("cache miss of %s%s: %s", name, at, reason)


def _distance(key: ProgramKey, other: ProgramKey) -> tuple[int, int]:
    """Return how many entries of two keys differ, and how much their types do."""
    pairs = zip(key.avals, other.avals, strict=False)
    types = sum((a.shape != b.shape) + (a.dtype != b.dtype) + (a.weak_type != b.weak_type) for a, b in pairs)
    types += 3 * abs(len(key.avals) - len(other.avals))
    return sum(a != b for a, b in zip(key.arguments, other.arguments, strict=True)), types


def _differences(request: Request, keys: Sequence[ProgramKey]) -> Iterator[str]:
    """Yield what differs among the keys, in words."""
    structures = {key.arguments.in_tree for key in keys}
    if len(structures) > 1:
        yield f"the arguments have {len(structures)} structures, such as {_last_examples(structures)}"
    alike = [key for key in keys if key.arguments.in_tree == request.in_tree]
    labels = argument_labels(request.function, request.in_tree)
    for label, *avals in zip(labels, *[key.avals for key in alike], strict=True):
        types = dict.fromkeys(avals)
        if len(types) > 1:
            yield f"{label} has {len(types)} types, such as {_last_examples([f'weak {a}' if a.weak_type else str(a) for a in types])}"
    yield from _static_differences(alike)


def _static_differences(keys: Sequence[ProgramKey]) -> Iterator[str]:
    """Yield which static arguments differ among the keys, in words."""
    values: dict[Any, dict[str, None]] = {}
    for key in keys:
        for static, _, value in (*key.arguments.static_args, *key.arguments.static_kwargs):
            values.setdefault(static, {})[f"{value!r:.40}"] = None
    for static, texts in values.items():
        if len(texts) > 1:
            yield f"the static argument {static!r} has {len(texts)} values, such as {_last_examples(texts)}"


def _last_examples(values: Iterable[Any]) -> str:
    """Return the last values, in words."""
    return ", ".join(f"{v!s:.80}" for v in list(values)[-_EXAMPLES:])


# Limits of memory, which compiled programs and kernels must notice.


def set_memory_limit(most: int | None, device: str | Device | None = None) -> None:
    """Limit the bytes that arrays and programs hold on a device (None: no limit).

    An operation or program whose results and temporary values would exceed it raises `OutOfMemoryError` before it runs; the error names the
    largest array and the user's line. Initially the limits are VOLTA_MEMORY bytes on the CPU and VOLTA_GPU_MEMORY on GPUs. On the CPU,
    arrays are counted that are made while there is a limit, which costs microseconds for each operation; memory of NumPy arrays outside of
    this package is not.

    Raises `ArgumentError` for a limit that is no number of bytes.

    >>> import volta_fn as vf
    >>> vf.set_memory_limit(1_000_000, "cpu")
    >>> try:
    ...     vf.numpy.ones((1000, 1000)) + 1
    ... except vf.errors.OutOfMemoryError as error:
    ...     print(error.message[:78])
    add of f32[1000,1000], f32[], giving f32[1000,1000]: 4,000,000 bytes more than
    >>> vf.set_memory_limit(None, "cpu")
    """
    limit_memory(most, device)
    forget_kernels()
    clear_caches()
