"""`lint`: patterns that cost time, memory or randomness, with remedies."""

from __future__ import annotations

import functools
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any, NamedTuple

import numpy as np

from volta_fn import tree
from volta_fn.core.arrays.array import Array, as_value
from volta_fn.core.devices.device import Device
from volta_fn.core.jaxpr import ClosedJaxpr, Equation, Literal, Var, sub_jaxprs
from volta_fn.core.staging import check_callable, function_name, make_jaxpr
from volta_fn.core.trace import Tracer
from volta_fn.inspection.report import size
from volta_fn.jit.function import PjitFunction
from volta_fn.source import SourceLocation, frame_observer, is_internal

# Random keys that a program uses twice.

#: Primitives that only show a key in another shape.
_VIEWS = frozenset(
    {"reshape", "broadcast_in_dim", "convert_element_type", "squeeze", "expand_dims", "random_wrap", "random_unwrap", "copy"}
)
#: The words of a key.
_WORDS = 2


def reused_keys(program: ClosedJaxpr) -> Iterator[tuple[Equation, Equation]]:
    """Yield each equation that uses a key once more, with the one that used it before.

    Drawing numbers uses a key, and so does splitting it; `fold_in` does not, as long as it gets other numbers.
    """
    yield from _KeyTracker().program(program, {})


class _KeyTracker:
    """Follows keys by their `roots`, the values that others are views of."""

    def __init__(self) -> None:
        self.used: dict[object, Equation] = {}
        #: Results of iota, which are the counters of a split.
        self.counters: set[Var] = set()

    def program(self, program: ClosedJaxpr, roots: dict[Var, object]) -> Iterator[tuple[Equation, Equation]]:
        """Walk through a program whose inputs have these roots."""
        for eqn in program.eqns:
            operands = [v for v in eqn.invars if isinstance(v, Var)]
            name = eqn.primitive.name
            if name == "iota":
                self.counters.update(eqn.outvars)
            elif operands and (name in _VIEWS or name == "slice"):
                roots.update(dict.fromkeys(eqn.outvars, _root_of_view(eqn, roots.get(operands[0], operands[0]))))
            elif operands and self._uses_key(eqn):
                yield from self._used_again(roots.get(operands[0], operands[0]), eqn)
            yield from self._inner(eqn, roots)

    def _uses_key(self, eqn: Equation) -> bool:
        if eqn.primitive.name == "random_bits":
            return True
        return eqn.primitive.name == "threefry2x32" and any(v in self.counters for v in eqn.invars if isinstance(v, Var))

    def _used_again(self, key: object, eqn: Equation) -> Iterator[tuple[Equation, Equation]]:
        before = self.used.setdefault(key, eqn)
        if before is not eqn:
            yield eqn, before

    def _inner(self, eqn: Equation, roots: dict[Var, object]) -> Iterator[tuple[Equation, Equation]]:
        inner = sub_jaxprs(eqn.params)
        if eqn.primitive.call_param is not None and len(inner) == 1 and len(inner[0].invars) == len(eqn.invars):
            called = {v: roots.get(a, a) for v, a in zip(inner[0].invars, eqn.invars, strict=True) if isinstance(a, Var)}
            yield from self.program(inner[0], called)
            outer = zip(eqn.outvars, inner[0].outvars, strict=True)
            roots.update({v: called.get(o, o) for v, o in outer if isinstance(o, Var)})
            return
        for program in inner:
            yield from _KeyTracker().program(program, {})


def _root_of_view(eqn: Equation, base: object) -> object:
    """Return the root of a view.

    A word of a key counts as the key, and so do the words of keys that `vmap` maps; a row of several keys is another root.
    """
    if eqn.primitive.name != "slice" or _is_a_word(eqn):
        return base
    return base, str(sorted(eqn.params.items()))


def _is_a_word(eqn: Equation) -> bool:
    """Return True for a slice of keys along their words alone."""
    keys, words = eqn.invars[0].aval.shape, eqn.outvars[0].aval.shape
    return keys[-1:] == (_WORDS,) and words == (*keys[:-1], 1)


# `lint`: patterns that cost time, memory or randomness, with remedies.

#: Bytes from which on a constant of a program is worth passing, equations of one line that are an unrolled loop, and operations of a
#: function that is worth jitting.
_LARGE, _UNROLLED, _WORTH_JIT = 1 << 16, 64, 8
_FLOAT64 = (np.dtype(np.float64), np.dtype(np.complex128))


class Finding(NamedTuple):
    """A pattern that costs time, memory or randomness.

    `rule` is "key reuse", "captured constant", "float64", "unrolled loop", "devices", "jit" or "jit in a loop".
    """

    rule: str
    message: str
    location: SourceLocation | None
    remedy: str

    def __str__(self) -> str:
        where = "" if self.location is None else f"{self.location}: "
        return f"{where}{self.rule}: {self.message}\n  {self.remedy}"


@dataclass(frozen=True)
class Lint:
    """The findings of `lint`; it is true if there are none."""

    name: str
    findings: tuple[Finding, ...]

    def __bool__(self) -> bool:
        """Return True if nothing was found."""
        return not self.findings

    def __str__(self) -> str:
        return "\n".join([f"{self.name}: {len(self.findings)} finding{'s' * (len(self.findings) != 1)}", *map(str, self.findings)])

    __repr__ = __str__


def lint(f: Callable[..., Any]) -> Callable[..., Lint]:
    """Return a function that looks for costly patterns in `f`, for arguments.

    The function is traced twice, and never run. It finds random keys that are used twice, arrays that closures bake into programs, 32-bit
    numbers that become float64, Python loops that unroll, arrays on several devices, functions that are not jitted, and functions that are
    jitted anew in each call.

    Args:
        f: a function of pytrees of arrays, jitted or not.

    Returns:
        a function ``(*args) -> Lint``, which is true if nothing was found, and prints line, finding and remedy.

    Raises `ArgumentTypeError` if `f` cannot be called.

    >>> @vf.jit
    ... def f(key):
    ...     return vf.random.normal(key) + vf.random.uniform(key)
    >>> [finding.rule for finding in vf.lint(f)(vf.random.key(0)).findings]
    ['key reuse']
    """
    check_callable(f, "lint")
    plain = f._fun if isinstance(f, PjitFunction) and not f._options.has_static else f

    @functools.wraps(f)
    def linted(*args: Any, **kwargs: Any) -> Lint:
        calls = _Calls()
        token = frame_observer.set(calls)
        try:
            first = make_jaxpr(plain)(*args, **kwargs)
        finally:
            frame_observer.reset(token)
        second = make_jaxpr(plain)(*args, **kwargs)
        values = [as_value(x) for x in tree.leaves((args, kwargs)) if hasattr(x, "dtype")]
        findings = [
            *_keys(first),
            *_constants(first),
            *_float64(first),
            *_unrolled(first, calls),
            *_devices(values, first),
            *([] if isinstance(f, PjitFunction) else _not_jitted(f, first)),
            *_jitted_anew(first, second),
        ]
        return Lint(function_name(f), tuple(dict.fromkeys(findings)))

    return linted


def all_equations(program: ClosedJaxpr) -> Iterator[Equation]:
    """Yield the equations of a program and of the programs in it."""
    for eqn in program.eqns:
        yield eqn
        for inner in sub_jaxprs(eqn.params):
            yield from all_equations(inner)


def _keys(program: ClosedJaxpr) -> Iterator[Finding]:
    for eqn, before in reused_keys(program):
        where = "" if before.source is None or before.source == eqn.source else f", which {before.source} used already"
        yield Finding(
            "key reuse",
            f"a random key is used again{where}; the numbers are the same, or depend on each other",
            eqn.source,
            "Split the key first, k1, k2 = random.split(key), and use each of them once.",
        )


def _constants(program: ClosedJaxpr) -> Iterator[Finding]:
    for inner in [program, *[p for eqn in all_equations(program) for p in sub_jaxprs(eqn.params)]]:
        for var, value in zip(inner.constvars, inner.consts, strict=True):
            if var.aval.nbytes >= _LARGE and not isinstance(value, Tracer):
                user = next((eqn.source for eqn in inner.eqns if var in eqn.invars), None)
                yield Finding(
                    "captured constant",
                    f"an array of type {var.aval} ({size(var.aval.nbytes)}) from outside of the function is baked into its program",
                    user,
                    "Pass it as an argument: then a new value needs no new program, and memory holds it once.",
                )


def _float64(program: ClosedJaxpr) -> Iterator[Finding]:
    if any(v.aval.dtype in _FLOAT64 and not v.aval.weak_type for v in program.invars):
        return
    for eqn in all_equations(program):
        operand_dtypes = [v.aval.dtype for v in eqn.invars if not (isinstance(v, Literal) and v.aval.weak_type)]
        wide_results = [v for v in eqn.outvars if v.aval.dtype in _FLOAT64 and v.aval.size > 1 and not v.aval.weak_type]
        if wide_results and not any(dtype in _FLOAT64 for dtype in operand_dtypes):
            yield Finding(
                "float64",
                f"{eqn.primitive} makes {wide_results[0].aval} of 32-bit numbers, and so does what follows from it",
                eqn.source,
                "Give constants of NumPy a dtype, np.float32(c), or use Python numbers; numpy_dtype_promotion('strict') makes it an error.",
            )
            return


class _Calls:
    """Counts the calls of this package by each line of a function that is traced.

    A line that calls a loop of the package once, as `tree.map` over parameters, makes one call, and so does the line of a function that
    such a loop calls: calls are counted by the user's outermost frame that was called by the package. Frames are kept, so that their
    identities stay distinct.
    """

    def __init__(self) -> None:
        self._calls: dict[tuple[str, int, int], dict[int, FrameType]] = {}
        self._outermost: dict[int, FrameType] = {}

    def __call__(self, frame: FrameType) -> None:
        """Count the call that is being traced, of the user's frame."""
        inner = sys._getframe(1)
        while inner.f_back is not None and inner.f_back is not frame:
            inner = inner.f_back
        outermost = frame
        while outermost.f_back is not None and not is_internal(outermost.f_back.f_globals.get("__name__", "")):
            outermost = outermost.f_back
        self._outermost[id(outermost)] = outermost
        self._calls.setdefault((frame.f_code.co_filename, frame.f_lineno, id(outermost)), {})[id(inner)] = inner

    def most(self) -> dict[tuple[str, int], int]:
        """Return the most calls of each line in a single run of the user's function."""
        counts: dict[tuple[str, int], int] = {}
        for (file, lineno, _), frames in self._calls.items():
            counts[file, lineno] = max(counts.get((file, lineno), 0), len(frames))
        return counts


def _unrolled(program: ClosedJaxpr, calls: _Calls) -> Iterator[Finding]:
    most = calls.most()
    for inner in [program, *[p for eqn in all_equations(program) for p in sub_jaxprs(eqn.params)]]:
        counts = Counter([(eqn.source, eqn.primitive.name) for eqn in inner.eqns if eqn.source is not None])
        by_location: dict[SourceLocation, tuple[int, str]] = {}
        for (location, name), count in counts.items():
            if min(count, most.get((location.file, location.lineno), 0)) >= _UNROLLED and count > by_location.get(location, (0, ""))[0]:
                by_location[location] = count, name
        if by_location:
            location, (count, name) = max(by_location.items(), key=lambda entry: entry[1])
            yield Finding(
                "unrolled loop",
                f"the line is traced {count:,} times ({name}), as a Python loop unrolls; tracing and compilation take as much longer",
                location,
                "Use lax.scan or lax.fori_loop, whose body is traced once.",
            )


def _devices(values: Sequence[Array], program: ClosedJaxpr) -> Iterator[Finding]:
    consts = [value for value in program.consts if not isinstance(value, Tracer)]
    settled: dict[Device, None] = dict.fromkeys([a.device for a in (*values, *consts) if a.shape])
    if len(settled) > 1:
        first = next((eqn.source for eqn in program.eqns), None)
        yield Finding(
            "devices",
            f"arrays are on {len(settled)} devices ({', '.join(map(str, settled))}), so that some move in each call, or it fails",
            first,
            "Move them once, before the loop, with device_put.",
        )


def _not_jitted(f: Callable[..., Any], program: ClosedJaxpr) -> Iterator[Finding]:
    count = sum(eqn.primitive.name != "jit" for eqn in program.eqns)
    if count < _WORTH_JIT:
        return
    code = getattr(f, "__code__", None)
    location = None if code is None else SourceLocation(code.co_filename, code.co_firstlineno, code.co_qualname)
    repeated = _repeated(program)
    again = f"; {repeated} of them compute again what another did" if repeated else ""
    yield Finding(
        "jit",
        f"{function_name(f)} runs {count:,} operations one by one{again}",
        location,
        "Put it under jit, which makes them one program, fuses them, and computes equal ones once.",
    )


def _repeated(program: ClosedJaxpr) -> int:
    """Count the equations that compute what an earlier one did."""
    same: dict[Var, Var] = {}
    seen: dict[Any, list[Var]] = {}
    count = 0
    for eqn in program.eqns:
        if eqn.primitive.effectful or sub_jaxprs(eqn.params):
            continue
        operands = tuple([(str(v), v.aval) if isinstance(v, Literal) else same.get(v, v) for v in eqn.invars])
        key = (eqn.primitive, operands, str(sorted(eqn.params.items())))
        if key in seen:
            count += 1
            same.update(zip(eqn.outvars, seen[key], strict=True))
        seen.setdefault(key, eqn.outvars)
    return count


def _jitted_anew(first: ClosedJaxpr, second: ClosedJaxpr) -> Iterator[Finding]:
    """Yield a finding for each `jit` that is new in a second trace of the function."""
    again = [eqn for eqn in second.eqns if eqn.primitive.name == "jit"]
    for eqn, other in zip([eqn for eqn in first.eqns if eqn.primitive.name == "jit"], again, strict=False):
        if eqn.params["jaxpr"] is not other.params["jaxpr"]:
            yield Finding(
                "jit in a loop",
                f"{eqn.params.get('name') or 'a function'} is jitted anew in each call, so it is traced and compiled each time",
                eqn.source,
                "Call jit once, outside of the function, and call what it returns.",
            )
