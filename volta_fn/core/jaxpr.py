"""Jaxprs: typed programs in A-normal form, their check, pruning and inlining.

The check is the executable specification that every transform and pass obeys.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Container, Mapping, Sequence
from itertools import compress
from operator import is_
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar

from volta_fn.core.arrays.array import Array, ConcreteArray
from volta_fn.core.aval import ShapedArray
from volta_fn.core.primitive import Primitive
from volta_fn.core.trace import ProcessAxis
from volta_fn.errors import DeviceError, JaxprError, VoltaError
from volta_fn.lazy_imports import deferred
from volta_fn.source import NameStack, Position, SourceInfo, SourceLocation, portable

# Transforms build and rewrite jaxprs; targets run them.
#
# A jaxpr is a list of *equations*, each applying one primitive to *atoms* (variables or literals) and binding new variables.


P = ParamSpec("P")
T = TypeVar("T")

_HTML = deferred("volta_fn.core.arrays.html")


class Var:
    """A variable, bound once: by an equation or as an input. Printing names it."""

    __slots__ = ("aval",)

    def __init__(self, aval: ShapedArray) -> None:
        self.aval = aval

    def __repr__(self) -> str:
        return f"Var(id={id(self)}):{self.aval!r}"


class Literal:
    """A zero-dimensional constant written in an equation."""

    __slots__ = ("aval", "val")

    def __init__(self, val: ConcreteArray) -> None:
        self.val = val
        self.aval = val.aval

    def __repr__(self) -> str:
        return f"{self.val.item()}"


Atom = Var | Literal

#: Parameters that only JAX's equations have, with the values that mean no option was given.
_DEFAULTS: dict[str, Any] = dict.fromkeys("accuracy dimensions out_dtype out_sharding precision sharding update_jaxpr".split())
_DEFAULTS |= {"indices_are_sorted": False, "unique_indices": False, "update_consts": ()}


class Parameters(dict[str, Any]):
    """The parameters of an equation, with defaults for JAX's others."""

    def __missing__(self, name: str) -> Any:
        return _DEFAULTS[name]


class Equation:
    """``outvars = primitive[params](invars)``, with the user's source line."""

    __slots__ = ("invars", "outvars", "params", "position", "primitive")
    #: As in JAX: equations here have no effects but those of their primitives.
    effects: frozenset[Any] = frozenset()

    def __init__(
        self,
        primitive: Primitive,
        invars: list[Atom],
        outvars: list[Var],
        params: dict[str, Any],
        position: Position | None = None,
    ) -> None:
        self.primitive = primitive
        self.invars = invars
        self.outvars = outvars
        self.params: dict[str, Any] = params if type(params) is Parameters else Parameters(params)
        self.position = position

    def __reduce__(self) -> tuple[Any, ...]:
        return Equation, (self.primitive, self.invars, self.outvars, self.params, portable(self.position))

    @property
    def source(self) -> SourceLocation | None:
        """The user's line that this equation comes from."""
        return None if self.position is None else SourceLocation.of(self.position)

    @property
    def source_info(self) -> SourceInfo:
        """The user's line, and the names of the blocks (`named_scope`) around it."""
        source = self.source
        return SourceInfo(source, NameStack(tuple(source.scope.split("/")) if source and source.scope else ()))

    def replace(
        self,
        invars: list[Atom] | None = None,
        outvars: list[Var] | None = None,
        params: dict[str, Any] | None = None,
        primitive: Primitive | None = None,
        effects: Any = None,
        source_info: Any = None,
        ctx: Any = None,
    ) -> Equation:
        """Return this equation with some fields changed.

        JAX's `effects`, `source_info` and `ctx` are accepted: the primitive and the position tell them.
        """
        return Equation(
            primitive or self.primitive,
            self.invars if invars is None else invars,
            self.outvars if outvars is None else outvars,
            self.params if params is None else params,
            self.position,
        )

    def __repr__(self) -> str:
        return f"{self.outvars} = {self.primitive}{self.params} {self.invars}"


class DebugInfo(NamedTuple):
    """The transform, the name and the argument names of a function, for messages.

    >>> DebugInfo("jit", "f at a.py:3", ("x",)).func_lineno
    3
    """

    traced_for: str
    func_src_info: str
    arg_names: tuple[str, ...] | None = None
    result_paths: Any = None

    @property
    def func_name(self) -> str:
        """The name of the function."""
        return self.func_src_info.partition(" at ")[0]

    @property
    def func_filename(self) -> str | None:
        """The file of the function, None if it is unknown."""
        return self.func_src_info.partition(" at ")[2].rpartition(":")[0] or None

    @property
    def func_lineno(self) -> int | None:
        """The line of the function, None if it is unknown."""
        line = self.func_src_info.rpartition(":")[2]
        return int(line) if line.isdecimal() else None

    def replace_func_name(self, name: str) -> DebugInfo:
        """Return the description with another name of the function."""
        _, at, place = self.func_src_info.partition(" at ")
        return self._replace(func_src_info=f"{name}{at}{place}")

    def with_unknown_names(self) -> DebugInfo:
        """Return the description without names of arguments and results."""
        return self._replace(arg_names=None, result_paths=None)

    def resolve_result_paths(self) -> DebugInfo:
        """Return the description with the names of results, where a function gives them."""
        return self._replace(result_paths=self.result_paths()) if callable(self.result_paths) else self

    def set_result_paths(self, ans: Any) -> DebugInfo:
        """Return the description, which the result of the function does not change."""
        return self

    def safe_arg_names(self, expected_count: int) -> tuple[str, ...]:
        """Return the names of so many arguments, empty ones if they are unknown."""
        return self.arg_names if self.arg_names is not None and len(self.arg_names) == expected_count else ("",) * expected_count

    def safe_result_paths(self, expected_count: int) -> tuple[str, ...]:
        """Return the names of so many results, empty ones if they are unknown."""
        paths = self.resolve_result_paths().result_paths
        return paths if paths is not None and len(paths) == expected_count else ("",) * expected_count

    def filter_arg_names(self, keep: Sequence[bool]) -> tuple[str, ...] | None:
        """Return the names of the arguments where `keep` is True."""
        return tuple(compress(self.safe_arg_names(len(keep)), keep))

    def filter_result_paths(self, keep: Sequence[bool]) -> tuple[str, ...] | None:
        """Return the names of the results where `keep` is True."""
        return tuple(compress(self.safe_result_paths(len(keep)), keep))


class Jaxpr:
    """An open program: constants and inputs, equations, outputs.

    Programs written for JAX give effects and names of arguments, too; here the equations have them.
    """

    __slots__ = ("__weakref__", "constvars", "eqns", "invars", "outvars", "shardings")

    def __init__(
        self,
        constvars: list[Var],
        invars: list[Var],
        outvars: list[Atom],
        eqns: list[Equation],
        effects: Any = None,
        debug_info: Any = None,
        is_high: bool = False,
    ) -> None:
        self.constvars = constvars
        self.invars = invars
        self.outvars = outvars
        self.eqns = eqns
        #: Variables that the traced function splits between devices, with their shardings (`core.devices.placement`).
        self.shardings: Mapping[Var, Any] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return Jaxpr, (self.constvars, self.invars, self.outvars, self.eqns)

    @property
    def in_avals(self) -> list[ShapedArray]:
        """The types of the inputs."""
        return [v.aval for v in self.invars]

    @property
    def out_avals(self) -> list[ShapedArray]:
        """The types of the outputs."""
        return [v.aval for v in self.outvars]

    @property
    def debug_info(self) -> DebugInfo:
        """What JAX tells of the function that was traced, which is unknown here."""
        return DebugInfo("unknown", "unknown")

    @property
    def effects(self) -> frozenset[str]:
        """The primitives that must run even if their results are unused."""
        return frozenset([str(e.primitive) for e in self.eqns if has_effects(e)])

    def replace(
        self,
        *,
        constvars: Sequence[Var] | None = None,
        invars: Sequence[Var] | None = None,
        outvars: Sequence[Atom] | None = None,
        eqns: Sequence[Equation] | None = None,
        effects: Any = None,
        debug_info: Any = None,
        is_high: bool = False,
    ) -> Jaxpr:
        """Return the program with some fields changed.

        `effects`, `debug_info` and `is_high` are accepted: a program's equations tell its effects.
        """
        jaxpr = Jaxpr(
            self.constvars if constvars is None else [*constvars],
            self.invars if invars is None else [*invars],
            self.outvars if outvars is None else [*outvars],
            self.eqns if eqns is None else [*eqns],
        )
        jaxpr.shardings = self.shardings
        return jaxpr

    def pretty_print(self, *, source_info: bool = False, use_color: bool = False, **options: Any) -> str:
        """Return the program as text, with the lines of equations if asked for.

        JAX's other `options` have no effect.
        """
        return format_jaxpr(self, sources=source_info)

    def __repr__(self) -> str:
        return format_jaxpr(self)


class ClosedJaxpr:
    """A jaxpr with the values of its constants.

    It is compared by identity. Results derived from it are kept on it (see `program_cache`).
    """

    __slots__ = ("__weakref__", "consts", "derived", "eager_kernels", "jaxpr")

    def __init__(self, jaxpr: Jaxpr, consts: Sequence[Array] = ()) -> None:
        self.jaxpr = jaxpr
        self.consts = list(consts)
        #: Results of the functions that `program_cache` decorates.
        self.derived: dict[Any, Any] = {}
        #: Kernels of single equations that hold this program, evaluated eagerly; they must not outlive it.
        self.eager_kernels: dict[Any, Callable[..., Any]] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return ClosedJaxpr, (self.jaxpr, self.consts)

    @property
    def debug_info(self) -> DebugInfo:
        """What JAX tells of the function that was traced, which is unknown here."""
        return self.jaxpr.debug_info

    def map_jaxpr(self, f: Callable[[Jaxpr], Jaxpr]) -> ClosedJaxpr:
        """Return the program with the open one that a function makes of it."""
        return self.replace(jaxpr=f(self.jaxpr))

    def replace(self, *, jaxpr: Jaxpr | None = None, consts: Sequence[Array] | None = None, **fields: Any) -> ClosedJaxpr:
        """Return the program with another jaxpr, constants or `fields` of the jaxpr."""
        return ClosedJaxpr((jaxpr or self.jaxpr).replace(**fields), self.consts if consts is None else consts)

    def _repr_html_(self) -> str:
        count = len(self.jaxpr.eqns)
        html: str = _HTML.folded(f"jaxpr of {count:,} equation{'s' * (count != 1)}", _HTML.program_html(repr(self)), opened=True)
        return html

    @property
    def in_avals(self) -> list[ShapedArray]:
        """The types of the inputs."""
        return self.jaxpr.in_avals

    @property
    def out_avals(self) -> list[ShapedArray]:
        """The types of the outputs."""
        return self.jaxpr.out_avals

    @property
    def literals(self) -> list[Array]:
        """The values of the constants, by JAX's older name."""
        return self.consts

    @property
    def effects(self) -> frozenset[str]:
        """The primitives that must run even if their results are unused."""
        return self.jaxpr.effects

    @property
    def eqns(self) -> list[Equation]:
        """The equations, in order."""
        return self.jaxpr.eqns

    @property
    def constvars(self) -> list[Var]:
        """The variables of the constants."""
        return self.jaxpr.constvars

    @property
    def invars(self) -> list[Var]:
        """The variables of the inputs."""
        return self.jaxpr.invars

    @property
    def outvars(self) -> list[Atom]:
        """The outputs."""
        return self.jaxpr.outvars

    def pretty_print(self, *, source_info: bool = False, use_color: bool = False, **options: Any) -> str:
        """Return the program as text, with the user's line of each equation if asked for.

        It has no colors, whatever `use_color` says, and JAX's other `options` have no effect.

        >>> print(vf.make_jaxpr(lambda x: x * 2)(1.0).pretty_print(source_info=True))
        { lambda ; a:f32[]. let
            b:f32[] = mul a 2.0:f32[]  # ...
          in (b,) }
        """
        return self.jaxpr.pretty_print(source_info=source_info)

    def __repr__(self) -> str:
        return format_jaxpr(self.jaxpr)


#: Stands for the program itself in its derived results, so that it does not refer to itself.
_ITSELF = object()


def program_cache(function: Callable[Concatenate[ClosedJaxpr, P], T]) -> Callable[Concatenate[ClosedJaxpr, P], T]:
    """Memoise a function on the program that is its first argument.

    A result is computed once per program and further arguments, which must be hashable (lists count as tuples), and lives as long as
    the program. If several threads compute it at the same time, all of them get the result of the first to finish.
    """

    @functools.wraps(function)
    def cached(program: ClosedJaxpr, *args: P.args, **kwargs: P.kwargs) -> T:
        key = (function, *[tuple(a) if type(a) is list else a for a in args], *kwargs.items())
        entry = program.derived.get(key)
        if entry is None:
            result = function(program, *args, **kwargs)
            entry = program.derived.setdefault(key, (_ITSELF if result is program else result,))
        return entry[0] if entry[0] is not _ITSELF else program  # type: ignore[return-value]

    return cached


@program_cache
def primitives_of(closed: ClosedJaxpr) -> frozenset[Primitive]:
    """Return the primitives of a program's equations, not of programs that these hold."""
    return frozenset([eqn.primitive for eqn in closed.eqns])


def fixed_point_cache(function: Callable[[ClosedJaxpr], ClosedJaxpr]) -> Callable[[ClosedJaxpr], ClosedJaxpr]:
    """Memoise a rewrite of programs that is idempotent."""
    cached = program_cache(function)

    @functools.wraps(function)
    def fixed(program: ClosedJaxpr) -> ClosedJaxpr:
        result = cached(program)
        result.derived.setdefault((function,), (_ITSELF,))
        return result

    return fixed


def called_program(eqn: Equation) -> ClosedJaxpr | None:
    """Return the program of a call or of a user's primitive; None for other equations."""
    primitive = eqn.primitive
    if primitive.expand is not None:
        program: ClosedJaxpr = primitive.expand([v.aval for v in eqn.invars], eqn.params)
        return program
    return None if primitive.call_param is None else eqn.params[primitive.call_param]


def sub_jaxprs(params: dict[str, Any]) -> list[ClosedJaxpr]:
    """Return the programs in an equation's parameters."""
    programs: list[ClosedJaxpr] = []
    for value in params.values():
        if isinstance(value, ClosedJaxpr):
            programs.append(value)
        elif isinstance(value, tuple):
            programs += [v for v in value if isinstance(v, ClosedJaxpr)]
    return programs


@program_cache
def constraints_of(closed: ClosedJaxpr) -> list[Any]:
    """Return the shardings that a program, or one in it, splits values by."""
    return [
        *closed.jaxpr.shardings.values(),
        *[s for eqn in closed.eqns for program in sub_jaxprs(eqn.params) for s in constraints_of(program)],
    ]


def has_effects(eqn: Equation) -> bool:
    """Return True if an equation must run even when its results are unused."""
    return eqn.primitive.effectful or any(has_effects(e) for sub in sub_jaxprs(eqn.params) for e in sub.eqns)


@program_cache
def process_axes(closed: ClosedJaxpr) -> frozenset[ProcessAxis]:
    """Return the axes of processes or devices that a program names."""
    axes = [axis for eqn in closed.eqns for axis in eqn.params.get("axis_names", ()) if isinstance(axis, ProcessAxis)]
    return frozenset(axes).union(*[process_axes(inner) for eqn in closed.eqns for inner in sub_jaxprs(eqn.params)])


@program_cache
def devices_of(closed: ClosedJaxpr) -> tuple[Any, ...]:
    """Return the devices between which a program has collectives.

    They are in the order of their mesh. There are none if it has none, or between processes.

    Raises `DeviceError` if it names meshes of different devices.
    """
    orders = {axis.grid.devices for axis in process_axes(closed)} - {()}
    if len({frozenset(order) for order in orders}) > 1:
        named = " and ".join(sorted([str([str(d) for d in order]) for order in orders]))
        raise DeviceError(f"a program has collectives between the devices {named}: jit the functions of each mesh by themselves")
    return min(orders, key=lambda order: [d.id for d in order], default=())


class _Names:
    """Names variables a, b, …, z, aa, ab, … in the order of their first appearance."""

    def __init__(self) -> None:
        self.names: dict[Var, str] = {}

    def __call__(self, atom: Atom) -> str:
        if isinstance(atom, Literal):
            return f"{_literal(atom)}:{atom.aval!r}"
        if atom not in self.names:
            n, name = len(self.names) + 1, ""
            while n:
                n, digit = divmod(n - 1, 26)
                name = chr(ord("a") + digit) + name
            self.names[atom] = name
        return self.names[atom]


def _literal(literal: Literal) -> str:
    value = literal.val.item()
    return f"{value:.6g}" if isinstance(value, float) and not value.is_integer() else str(value)


def format_jaxpr(jaxpr: Jaxpr, indent: int = 0, *, sources: bool = False) -> str:
    """Return the program in JAX's notation, with the users' lines if `sources`."""
    name = _Names()
    pad = " " * (indent + 4)

    def binders(variables: Sequence[Var]) -> str:
        return " ".join(f"{name(v)}:{v.aval!r}" for v in variables)

    head = " ".join(filter(None, ["{ lambda", binders(jaxpr.constvars), ";", f"{binders(jaxpr.invars)}. let"]))
    equations = []
    for eqn in jaxpr.eqns:
        args = " ".join(map(name, eqn.invars))
        outs = binders(eqn.outvars)
        comment = f"  # {eqn.source}" if sources and eqn.source is not None else ""
        equations.append(f"{pad}{outs} = {eqn.primitive}{_format_params(eqn.params, indent + 4, sources)} {args}".rstrip() + comment)
    outs = ", ".join(map(name, jaxpr.outvars)) + ("," if len(jaxpr.outvars) == 1 else "")
    if not equations:
        return f"{head}  in ({outs}) }}"
    return "\n".join([head, *equations, f"{pad[:-2]}in ({outs}) }}"])


def _format_params(params: dict[str, Any], indent: int, sources: bool) -> str:
    if not params:
        return ""
    pad = " " * (indent + 2)
    texts = [f"{key}={_format_param(value, indent + 2, sources)}" for key, value in sorted(params.items())]
    if len(texts) == 1 and "\n" not in texts[0]:
        return f"[{texts[0]}]"
    return "[\n" + "\n".join(pad + text for text in texts) + "\n" + pad[:-2] + "]"


def _format_param(value: Any, indent: int, sources: bool) -> str:
    if isinstance(value, ClosedJaxpr):
        return format_jaxpr(value.jaxpr, indent, sources=sources)
    if isinstance(value, tuple) and any(isinstance(v, ClosedJaxpr) for v in value):
        return "(" + ", ".join(_format_param(v, indent, sources) for v in value) + ")"
    return getattr(value, "__name__", None) or str(value)


def interpret_jaxpr(
    closed: ClosedJaxpr,
    inputs: Sequence[T],
    step: Callable[[Equation, list[T]], Sequence[T]],
    constant: Callable[[Any], T] = lambda array: array,
) -> list[T]:
    """Interpret a program over values of any kind; return those of its outputs.

    Args:
        inputs: the values of the program's inputs.
        step: returns the values of an equation's results from the equation and the values of its operands.
        constant: returns the value of an array in the program, a constant or a literal.
    """
    jaxpr = closed.jaxpr
    values: dict[Var, T] = dict(zip(jaxpr.constvars, map(constant, closed.consts), strict=True))
    values.update(zip(jaxpr.invars, inputs, strict=True))

    def read(atoms: Sequence[Atom]) -> list[T]:
        return [constant(atom.val) if isinstance(atom, Literal) else values[atom] for atom in atoms]

    for eqn in jaxpr.eqns:
        values.update(zip(eqn.outvars, step(eqn, read(eqn.invars)), strict=True))
    return read(jaxpr.outvars)


# The executable specification of jaxprs, which every transform and pass obeys.


def check_jaxpr(jaxpr: ClosedJaxpr | Jaxpr) -> None:
    """Raise `JaxprError` unless the program is well formed.

    Every variable is bound once, before its uses; every equation's results have the types that the primitive's abstract rule derives from
    its operands; the outputs are bound; nested programs are well formed too. The message names the equation and the user's line.

    >>> check_jaxpr(vf.make_jaxpr(vf.lax.sin)(1.0))
    """
    pending: list[ClosedJaxpr | Jaxpr] = [jaxpr]
    while pending:
        current = pending.pop()
        if isinstance(current, ClosedJaxpr):
            if len(current.consts) != len(current.jaxpr.constvars):
                raise JaxprError(f"the program has {len(current.jaxpr.constvars)} constant variables, but {len(current.consts)} constants")
            for var, value in zip(current.jaxpr.constvars, current.consts, strict=True):
                if (value.aval.shape, value.aval.dtype) != (var.aval.shape, var.aval.dtype):
                    raise JaxprError(f"a constant of type {value.aval} stands for a variable of type {var.aval}")
            current = current.jaxpr
        _check_one(current)
        for eqn in current.eqns:
            pending.extend(sub_jaxprs(eqn.params))


def _check_one(jaxpr: Jaxpr) -> None:
    bound: set[Var] = set()
    for var in (*jaxpr.constvars, *jaxpr.invars):
        _bind(bound, var, "an input")
    for number, eqn in enumerate(jaxpr.eqns):
        where = f"equation {number} ({eqn.primitive}, from {eqn.source})"
        for atom in eqn.invars:
            _check_read(bound, atom, where)
        arity = eqn.primitive.arity
        if arity and len(eqn.invars) != arity:
            raise JaxprError(f"{where} has {len(eqn.invars)} operands, but its primitive takes {arity}")
        try:
            derived = eqn.primitive.abstract(*[v.aval for v in eqn.invars], **eqn.params)
        except VoltaError as error:
            raise JaxprError(f"{where} has operands that its primitive does not take: {error.args[0]}") from error
        avals = derived if eqn.primitive.multiple_results else (derived,)
        declared = [(v.aval.shape, v.aval.dtype) for v in eqn.outvars]
        if declared != [(a.shape, a.dtype) for a in avals]:
            raise JaxprError(f"{where} binds {[v.aval for v in eqn.outvars]}, but its primitive gives {list(avals)}")
        for var in eqn.outvars:
            _bind(bound, var, where)
    for atom in jaxpr.outvars:
        _check_read(bound, atom, "the outputs")


def _bind(bound: set[Var], var: Var, where: str) -> None:
    if var in bound:
        raise JaxprError(f"{where} binds a variable of type {var.aval} that is bound already")
    bound.add(var)


def _check_read(bound: set[Var], atom: Atom, where: str) -> None:
    if not isinstance(atom, Literal) and atom not in bound:
        raise JaxprError(f"{where} reads a variable of type {atom.aval} that is not bound yet")


# Dead-code elimination: drop equations whose results are unused.


def dce_jaxpr(
    closed: ClosedJaxpr,
    used_outputs: Sequence[bool] | None = None,
    narrowed: Callable[[Equation, list[bool]], Equation] = lambda eqn, used: eqn,
) -> ClosedJaxpr:
    """Drop dead equations, constants, and outputs unmarked in `used_outputs`.

    `narrowed` returns a live equation without the results that are not used. The program is the same object if nothing is dropped.
    """
    jaxpr = closed.jaxpr
    outvars = jaxpr.outvars if used_outputs is None else [v for v, u in zip(jaxpr.outvars, used_outputs, strict=True) if u]
    live: set[Atom] = set(outvars)
    eqns: list[Equation] = []
    for eqn in reversed(jaxpr.eqns):
        used = [v in live for v in eqn.outvars]
        if any(used) or has_effects(eqn):
            eqns.append(narrowed(eqn, used))
            live.update(eqns[-1].invars)
    eqns.reverse()
    pairs = [(v, c) for v, c in zip(jaxpr.constvars, closed.consts, strict=True) if v in live]
    is_complete = (len(outvars), len(eqns), len(pairs)) == (len(jaxpr.outvars), len(jaxpr.eqns), len(closed.consts))
    if is_complete and all(map(is_, eqns, jaxpr.eqns)):
        return closed
    program = Jaxpr([v for v, _ in pairs], jaxpr.invars, outvars, eqns)
    program.shardings = {v: s for v, s in jaxpr.shardings.items() if v in live}
    return ClosedJaxpr(program, [c for _, c in pairs])


def reads_of(closed: ClosedJaxpr) -> tuple[bool, ...]:
    """Mark the inputs that a program's equations or outputs read."""
    read = {v for e in closed.eqns for v in e.invars}.union(closed.outvars)
    return tuple([v in read for v in closed.invars])


def prune_inputs(closed: ClosedJaxpr, candidates: Sequence[bool]) -> tuple[ClosedJaxpr, list[bool]]:
    """Drop the inputs that are `candidates` and unused; mark those that remain."""
    remains = [not c or is_read for c, is_read in zip(candidates, reads_of(closed), strict=True)]
    return closed.replace(invars=[v for v, r in zip(closed.invars, remains, strict=True) if r]), remains


def inline_calls(closed: ClosedJaxpr, of: Primitive | None = None, retained: Container[Primitive] = ()) -> ClosedJaxpr:
    """Replace calls (all, or those `of` a primitive) except `retained` ones by bodies.

    A body has the call's values, but not the derivative that a call may have of its own.
    """

    def is_inlined(eqn: Equation) -> bool:
        primitive = eqn.primitive
        is_call = primitive.call_param is not None or primitive.expand is not None
        return is_call and of in (None, primitive) and primitive not in retained

    if not any(map(is_inlined, closed.eqns)):
        return closed
    consts: dict[Var, Array] = dict(zip(closed.jaxpr.constvars, closed.consts, strict=True))
    rename: dict[Var, Atom] = {}
    eqns: list[Equation] = []
    shardings: dict[Var, Any] = {}

    def read(atom: Atom) -> Atom:
        return rename.get(atom, atom) if type(atom) is Var else atom

    def fresh(var: Var) -> Var:
        new = Var(var.aval)
        rename[var] = new
        return new

    def renamed_shardings(jaxpr: Jaxpr) -> dict[Var, Any]:
        return {v: s for var, s in jaxpr.shardings.items() if isinstance(v := read(var), Var)}

    # A stack of bodies being copied: (equations left, what to do after).
    stack: list[tuple[list[Equation], Equation | None, ClosedJaxpr | None]] = [(closed.eqns[::-1], None, None)]
    while stack:
        remaining, call, body = stack[-1]
        if not remaining:
            stack.pop()
            if call is not None and body is not None:
                rename.update(zip(call.outvars, [read(v) for v in body.jaxpr.outvars], strict=True))
                shardings.update(renamed_shardings(body.jaxpr))
            continue
        eqn = remaining.pop()
        if len(stack) == 1 and rename.keys().isdisjoint(eqn.invars) and not is_inlined(eqn):
            eqns.append(eqn)
            continue
        invars = [read(v) for v in eqn.invars]
        if not is_inlined(eqn):
            # The outermost program's variables keep their identity; those of inlined bodies are made afresh, as a body may be called twice.
            outvars = eqn.outvars if len(stack) == 1 else [fresh(v) for v in eqn.outvars]
            eqns.append(eqn.replace(invars=invars, outvars=outvars))
            continue
        inner: ClosedJaxpr = called_program(eqn)  # type: ignore[assignment]  # it is_inlined, so it has one
        rename.update(zip(inner.jaxpr.invars, invars, strict=True))
        for var, value in zip(inner.jaxpr.constvars, inner.consts, strict=True):
            consts[fresh(var)] = value
        stack.append((inner.eqns[::-1], eqn, inner))
    jaxpr = Jaxpr(list(consts), closed.invars, [read(v) for v in closed.outvars], eqns)
    jaxpr.shardings = shardings | renamed_shardings(closed.jaxpr)
    return ClosedJaxpr(jaxpr, list(consts.values()))
