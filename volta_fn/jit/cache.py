"""The cache of a jitted function: its programs, and how a call finds its own.

A function is traced once for each key: structure, shapes and dtypes of its arguments, values of the static ones, named axes in scope,
default device, and the current mesh if it reads that (the table `programs`, by `ProgramKey`). A call should not have to compute that
key, so further tables lead to the same programs faster:

- `calls`: calls of positional arguments that are arrays, by their specs; static arguments are in the key by type and value.
- `structures`: calls of pytrees whose structure is known. Generated code checks the structure and reads the leaves.
- `trees`: all other calls, by static arguments, structure, and specs of the leaves.
- `equations`: calls in a function that is being traced, by the types of the arrays. They become one equation.

`PjitFunction.__call__` reads `calls`, `ProgramCache.lookup` the next two. A call that no table has becomes a `Request`, which computes the
complete key and may have to trace. `jit` of a function that was jitted before, with the same options, shares the cache
(`shared_cache`). A warning tells why a function is compiled again and again.
"""

from __future__ import annotations

import functools
import re
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from keyword import iskeyword
from types import FunctionType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from volta_fn import tree
from volta_fn.core.arrays.array import Array, ConcreteArray, as_value, brief, conversion, library_name
from volta_fn.core.aval import ShapedArray, ShapeDtypeStruct
from volta_fn.core.caches import CallCache, clear_all, exact
from volta_fn.core.devices.device import Device, current_default_device, limit_memory
from volta_fn.core.jaxpr import ClosedJaxpr
from volta_fn.core.staging import argument_labels, eval_shape_trace, function_name, wraps
from volta_fn.core.trace import axis_environment, current_trace, mesh_reads
from volta_fn.errors import ArgumentError, ArgumentTypeError, RecompilationWarning, UnhashableStaticError
from volta_fn.jit.compile import TracedProgram, mesh_key, trace_function
from volta_fn.jit.eager import SHARDED, forget_kernels
from volta_fn.lazy_imports import deferred
from volta_fn.primitives.data_movement.movement import broadcast
from volta_fn.settings import current as settings
from volta_fn.source import parameter_names, signature_of, user_location

if TYPE_CHECKING:
    from volta_fn.tree.structures import TreeDef

# Arguments: static, donated and dynamic ones.
#
# Static arguments are constants of the program, and the memory of donated ones may be reused. A `Request` is one call with its arguments.


class JitOptions(NamedTuple):
    """Options of `jit`: static and donated arguments, and a device."""

    argnums: frozenset[int]
    argnames: frozenset[str]
    donate_argnums: frozenset[int]
    donate_argnames: frozenset[str]
    device: Device | None = None

    @property
    def has_static(self) -> bool:
        """Whether any argument is static."""
        return bool(self.argnums or self.argnames)


_NO_OPTIONS = JitOptions(frozenset(), frozenset(), frozenset(), frozenset())


class ArgumentsKey(NamedTuple):
    """What a call's key has of its arguments besides the types of arrays."""

    #: The structure of the dynamic arguments.
    in_tree: Any
    #: The name or position, the `exact` value and the value of each static argument.
    static_args: tuple[Any, ...]
    static_kwargs: tuple[Any, ...]


class Request:
    """One call: `leaves` and `in_tree` of dynamic arguments; `key` of everything else."""

    def __init__(self, fun: Callable[..., Any], options: JitOptions, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.options = options
        self.args = args
        self.kwargs = kwargs
        static_args = {i: args[i] for i in sorted(options.argnums) if i < len(args)}
        static_kwargs = {n: kwargs[n] for n in sorted(options.argnames) if n in kwargs}
        self.dynamic_args = tuple([a for i, a in enumerate(args) if i not in static_args])
        self.dynamic_kwargs = {n: v for n, v in kwargs.items() if n not in static_kwargs}
        self.leaves, self.in_tree = tree.flatten((self.dynamic_args, self.dynamic_kwargs))
        self.static_args, self.static_kwargs = static_args, static_kwargs
        self.fun = fun
        self.key = ArgumentsKey(self.in_tree, _static_key(fun, static_args), _static_key(fun, static_kwargs))

    @property
    def function(self) -> Callable[..., Any]:
        """The function of the dynamic arguments."""
        return _with_statics(self.fun, self.static_args, self.static_kwargs) if self.static_args or self.static_kwargs else self.fun

    def values(self) -> list[Array]:
        """Return the leaves as arrays; raise `ArgumentTypeError` naming other arguments."""
        values: list[Array] = []
        for leaf in self.leaves:
            try:
                values.append(as_value(leaf))
            except ArgumentTypeError as error:
                if isinstance(leaf, ShapeDtypeStruct) and eval_shape_trace.get() is current_trace():
                    values.append(broadcast(np.zeros((), leaf.dtype), leaf.shape))  # its elements are not computed
                    continue
                raise (error if isinstance(leaf, np.ndarray) else ArgumentTypeError(self._not_an_array(len(values)))) from None
        return values

    def _not_an_array(self, position: int) -> str:
        """Say which argument is not an array, and how to make it static."""
        label, value = argument_labels(self.function, self.in_tree)[position], self.leaves[position]
        name, where = re.split(r"[\[.]", label, maxsplit=1)[0], function_name(self.fun)
        if expression := conversion(value, label):
            return f"{where}: the argument {label} is a {library_name(value)}, not an array. Convert it first: {expression}."
        remedy = f'If it is an option, make it static: jit({where}, static_argnames="{name}")'
        if isinstance(value, (set, frozenset)):
            remedy = "A set has no order: pass a sorted list or tuple"
        elif label != name:
            remedy = f"Leaves of arguments must be arrays: take it out of the pytree {name}, and pass it as a static argument"
        elif label == self._name_of_self():
            remedy = (
                f"If {where} is a method, make {type(value).__name__} a volta_fn.nn.Module, whose arrays are arguments of the program. A "
                f'static self, jit({where}, static_argnames="{name}"), is compared by identity: later changes of attributes are not seen'
            )
        return f"{where}: the argument {label} is {brief(value)} of type {type(value).__name__}, which is no array. {remedy}."

    def _name_of_self(self) -> str | None:
        """Return the name of the first parameter if the function was defined in a class."""
        outer, _, _ = getattr(self.fun, "__qualname__", "").rpartition(".")
        if not outer or outer.endswith("<locals>"):
            return None
        return next(iter(parameter_names(self.fun)), None)

    def donated(self) -> tuple[bool, ...]:
        """Return for each leaf whether its argument is donated."""
        if not (self.options.donate_argnums or self.options.donate_argnames):
            return (False,) * len(self.leaves)
        positions = [i for i in range(len(self.args)) if i not in self.options.argnums]
        flags: list[bool] = []
        for position, arg in zip(positions, self.dynamic_args, strict=True):
            flags += [position in self.options.donate_argnums] * len(tree.leaves(arg))
        for name in sorted(self.dynamic_kwargs):
            flags += [name in self.options.donate_argnames] * len(tree.leaves(self.dynamic_kwargs[name]))
        return tuple(flags)


#: Types of values that are entries of keys with their type; others are made `exact`.
_PLAIN = frozenset({bool, int, str, type(None)})


@functools.cache
def key_function(static: frozenset[int], count: int, attribute: str) -> Callable[..., tuple[Any, ...]]:
    """Generate the function that makes the key of a call with `count` arguments.

    The key has the types and values of the static arguments, and an attribute of the others (None stays None). The code has no
    loop, since every call of a jitted function with static arguments makes such a key.
    """
    names = [f"a{i}" for i in range(count)]
    entries = [
        f"(type({a}), {a}) if type({a}) in plain else exact({a})" if i in static else f"None if {a} is None else {a}.{attribute}"
        for i, a in enumerate(names)
    ]
    names_in_code = {"plain": _PLAIN, "exact": exact}
    key_of: Callable[..., tuple[Any, ...]] = eval(f"lambda {', '.join(names)}: ({''.join(e + ', ' for e in entries)})", names_in_code)
    return key_of


def static_values(static: frozenset[int], args: Sequence[Any]) -> tuple[Any, ...]:
    """Return the types and values of a call's static arguments, as a key."""
    return tuple([exact(a) for i, a in enumerate(args) if i in static])


def _with_statics(fun: Callable[..., Any], static_args: dict[int, Any], static_kwargs: dict[str, Any]) -> Callable[..., Any]:

    @wraps(fun)
    def with_statics(*args: Any, **kwargs: Any) -> Any:
        rest = iter(args)
        count = len(args) + len(static_args)
        merged = [static_args[i] if i in static_args else next(rest) for i in range(count)]
        return fun(*merged, **kwargs, **static_kwargs)

    signature = signature_of(fun)
    if signature is None:
        return with_statics
    # Labels of arguments are read from it, by the positions among those that are not static.
    dynamic = [p for i, p in enumerate(signature.parameters.values()) if i not in static_args and p.name not in static_kwargs]
    with_statics.__signature__ = signature.replace(parameters=dynamic)  # type: ignore[attr-defined]  # which functions may have
    return with_statics


def _static_key(fun: Callable[..., Any], values: dict[Any, Any]) -> tuple[Any, ...]:
    for name, value in values.items():
        try:
            if isinstance(value, Array):
                raise TypeError
            hash(value)
        except TypeError:
            raise UnhashableStaticError(f"static argument {name!r} of {function_name(fun)} is {_unhashable(name, value)}") from None
    return tuple([(name, exact(v), v) for name, v in values.items()])


def _unhashable(name: Any, value: Any) -> str:
    if isinstance(value, (Array, np.ndarray)):
        return (
            f"an array of shape {value.shape}, but programs are kept by the values of static arguments, and arrays cannot be static. "
            f"Leave it out of static_arg{'names' if isinstance(name, str) else 'nums'}: arrays are ordinary arguments."
        )
    return (
        f"{value!r:.80} of type {type(value).__name__}, which is not hashable. "
        "Pass a tuple instead of a list, a frozen dataclass instead of a dict; arrays cannot be static, nor what holds them."
    )


def _as_tuple(value: Any) -> tuple[Any, ...]:
    if value is None:
        return ()
    return (value,) if isinstance(value, (int, str)) else tuple(value)


def resolve_options(fun: Callable[..., Any], argnums: Any, argnames: Any, donate_argnums: Any, donate_argnames: Any) -> JitOptions:
    """Resolve names to positions and positions to names.

    An argument is static or donated however it is passed, unless both its names and its positions are given: then each holds for arguments
    that are passed so. Raises `ArgumentError` for names and positions that `fun` does not have.
    """
    if argnums is argnames is donate_argnums is donate_argnames is None:
        return _NO_OPTIONS
    nums, names = _as_tuple(argnums), _as_tuple(argnames)
    donate_nums, donate_names = _as_tuple(donate_argnums), _as_tuple(donate_argnames)
    signature = signature_of(fun)
    if signature is None and donate_names:
        raise ArgumentError(f"{function_name(fun)} has no signature: use donate_argnums instead of donate_argnames")
    parameters = [] if signature is None else list(signature.parameters.values())
    named = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    keywords = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
    variadic = any(p.kind is p.VAR_POSITIONAL for p in parameters) or not parameters
    any_keyword = any(p.kind is p.VAR_KEYWORD for p in parameters) or not parameters

    nameless = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.VAR_POSITIONAL)]

    def positions(numbers: tuple[int, ...], labels: tuple[str, ...], option: str, infer: bool) -> tuple[frozenset[int], frozenset[str]]:
        if positional := [n for n in labels if n in nameless]:
            raise ArgumentError(f"{option}_argnames: {function_name(fun)} takes {positional} by position only: use {option}_argnums")
        unknown = [n for n in labels if n not in named and n not in keywords]
        if unknown and not any_keyword:
            raise ArgumentError(f"{option}_argnames: {function_name(fun)} has no arguments {unknown}: name some of {[*named, *keywords]}")
        resolved = set()
        for number in numbers:
            if not variadic and not -len(named) <= number < len(named):
                raise ArgumentError(
                    f"{option}_argnums={number} is out of range: {function_name(fun)} takes {len(named)} positional arguments"
                )
            resolved.add(number % len(named) if number < 0 and named else number)
        if not infer:
            return frozenset(resolved), frozenset(labels)
        resolved |= {named.index(n) for n in labels if n in named}
        return frozenset(resolved), frozenset(labels) | {named[i] for i in resolved if i < len(named)}

    static_numbers, static_labels = positions(nums, names, "static", argnums is None or argnames is None)
    donated_numbers, donated_labels = positions(donate_nums, donate_names, "donate", donate_argnums is None or donate_argnames is None)
    if static_numbers & donated_numbers:
        raise ArgumentError("an argument cannot be both static and donated")
    return JitOptions(static_numbers, static_labels, donated_numbers, donated_labels)


# Code that checks the structure of a tree and reads its leaves.
#
# Flattening a tree takes longer than a small training step needs to start. Where the structure is known from earlier calls, generated code
# only checks that a tree has it, and reads the leaves. Its text has counters and the fields of classes, never the keys of dicts or other
# values, which it names.


#: What has the fields of classes, and loads optree.
_registry = deferred("volta_fn.tree.registry")

#: Leaves of the largest tree for which code is generated.
_MOST_LEAVES = 1000

#: Returns the leaves of a tree of the known structure, in the order of `flatten`; None for other trees. Leaves are not examined, so one
#: of them may be a tree.
Match = Callable[[Any], list[Any] | None]


def generate_match(treedef: TreeDef, example: Any) -> Match | None:
    """Generate code for trees of the structure of `example`.

    None if some nodes can only be flattened by their own functions.

    >>> from volta_fn import tree
    >>> example = {"b": (1, None), "a": 2}
    >>> match = generate_match(tree.structure(example), example)
    >>> match({"a": 3, "b": (4, None)})
    [3, 4]
    >>> match({"a": 3, "b": (4, 5)}) is None
    True
    """
    return None if treedef.num_leaves > _MOST_LEAVES else _generated(treedef, example)


def _generated(treedef: TreeDef, example: Any) -> Match | None:
    source = _Source()
    if not source.visit(treedef, example, "tree", is_root=True):
        return None
    body = "\n".join(f"        {statement}" for statement in [*source.statements, f"return [{', '.join(source.leaves)}]"])
    exec(f"def match(tree):\n    try:\n{body}\n    except KeyError:\n        return None\n", source.values)
    match: Match = source.values["match"]
    return match


#: The fewest leaves of immutable nodes that are read once: of fewer, reading takes no longer than finding what was read.
_FEWEST_REMEMBERED = 16


def _remembers(treedef: TreeDef) -> bool:
    """Return True for the structure of nodes whose leaves are always the same.

    Such as modules: they are instances of frozen dataclasses, which weak references can refer to, with such nodes and tuples inside.
    """
    kind = treedef.type
    is_referable = kind is not None and kind in _registry.FIELDS and kind.__weakrefoffset__ != 0
    return is_referable and treedef.num_leaves >= _FEWEST_REMEMBERED and _is_immutable(treedef)


def _is_immutable(treedef: TreeDef) -> bool:
    kind = treedef.type
    if kind in _registry.FIELDS:
        parameters = getattr(kind, "__dataclass_params__", None)
        if parameters is None or not parameters.frozen:
            return False
    elif not (kind is None or kind is type(None) or issubclass(kind, tuple)):
        return False
    return all(map(_is_immutable, treedef.children()))


def _remembering(match: Match) -> Match:
    """Return a function that matches each immutable node once.

    Reading the leaves of a language model takes 0.1 to 0.2 ms after a step, which leaves none of its objects in the caches.
    """
    leaves_by_id: dict[int, tuple[weakref.ref[Any], list[Any]]] = {}

    def find(node: Any) -> list[Any] | None:
        identity = id(node)
        entry = leaves_by_id.get(identity)
        if entry is not None and entry[0]() is node:
            return entry[1]
        leaves = match(node)
        if leaves is not None:
            leaves_by_id[identity] = weakref.ref(node, lambda _: leaves_by_id.pop(identity, None)), leaves
        return leaves

    return find


class _Source:
    """The generated statements, the leaves' expressions, and the objects they name."""

    def __init__(self) -> None:
        self.statements: list[str] = []
        self.leaves: list[str] = []
        self.values: dict[str, Any] = {}
        self.count = 0

    def visit(self, treedef: TreeDef, node: Any, expression: str, *, is_root: bool = False) -> bool:
        """Generate code for a node, the value of `expression`; return False if impossible."""
        kind, count = treedef.type, treedef.num_children
        if kind is None:
            self.leaves.append(expression)
            return True
        name = self.variable()
        if not is_root and _remembers(treedef):
            match = _generated(treedef, node)
            if match is None:
                return False
            self.statements += [f"{name} = {self.value(_remembering(match))}({expression})", f"if {name} is None: return None"]
            self.leaves.append(f"*{name}")
            return True
        self.statements.append(f"{name} = {expression}")
        same = f"type({name}) is {self.value(kind)}"
        fields = _registry.FIELDS.get(kind)
        if fields is not None:
            data, meta = fields
            if not all(field.isidentifier() and not iskeyword(field) for field in (*data, *meta)):
                return False
            for field in meta:
                static = self.value(getattr(node, field))
                same += f" and ({name}.{field} is {static} or {name}.{field} == {static})"
            children, expressions = [getattr(node, field) for field in data], [f"{name}.{field}" for field in data]
        elif kind is dict:
            same += f" and len({name}) == {count}"
            keys = treedef.entries()
            children = [node[key] for key in keys]
            expressions = [f"{name}[{self.value(key)}]" for key in keys]
        elif kind in (tuple, list) or (issubclass(kind, tuple) and hasattr(kind, "_fields")):
            same += f" and len({name}) == {count}"
            children, expressions = [*node], [f"{name}[{i}]" for i in range(count)]
        elif node is None:
            children, expressions = [], []
        else:
            return False
        self.statements.append(f"if not ({same}): return None")
        return all(self.visit(*child) for child in zip(treedef.children(), children, expressions, strict=True))

    def variable(self) -> str:
        self.count += 1
        return f"v{self.count}"

    def value(self, value: Any) -> str:
        name = f"c{len(self.values)}"
        self.values[name] = value
        return name


# Programs, by all that a trace depends on, and the tables that lead to them faster.

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
            match = generate_match(structure.child(0), args) or _no_match
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
