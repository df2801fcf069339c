"""Entries of the cache on disk that hold a row of JSON, arrays and other bytes.

An entry is a file of `runtime.caches`, named by a hash of its key and of the *circumstances*: the state of this package and the versions of
what it uses. The row begins with what the entry is for, such as a CPU, although the hash of its name has it, too: a file that came by its
name in another way must not be used elsewhere.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import math
import struct
import sys
from collections.abc import Callable, Sequence
from enum import Enum
from pathlib import Path
from types import FunctionType, NoneType
from typing import Any, NamedTuple, TypeVar

import ml_dtypes
import numpy as np

from volta_fn.core.arrays.array import ConcreteArray, host_buffer
from volta_fn.core.arrays.memory import pairs_of
from volta_fn.core.aval import ShapedArray
from volta_fn.core.jaxpr import Atom, ClosedJaxpr, Equation, Var, called_program
from volta_fn.core.jaxpr import Literal as JaxprLiteral
from volta_fn.core.primitive import Primitive, evaluation_of
from volta_fn.dtypes import ALL, short_name
from volta_fn.lazy_imports import version_text
from volta_fn.runtime import caches
from volta_fn.runtime.caches import cache_dir, sources_digest

T = TypeVar("T")


@functools.cache
def circumstances() -> tuple[Any, ...]:
    """Return the state of this package, and the versions of what its compiler uses."""
    # Objects call SciPy's LAPACK with the integers, and with workspaces of the sizes, that it wanted when they were compiled.
    versions = sys.version, np.__version__, ml_dtypes.__version__, version_text("scipy")
    return sources_digest(Path(__file__).parents[1], cache_dir()), *versions


def name_of(kind: Sequence[Any], key: str) -> str:
    """Return the name of the entry for a key, of a kind: for what it is."""
    return hashlib.sha256(f"{(*circumstances(), *kind)!r}\0{key}".encode()).hexdigest()


def read(folder: Path | None, name: str, purpose: str, parse: Callable[[Any, bytes], T]) -> T | None:
    """Return an entry, parsed from its header and bytes; None if it is missing.

    It is deleted if it has another purpose or format.
    """
    data = None if folder is None else caches.read(folder, name)
    if folder is None or data is None:
        return None
    line, _, content = data.partition(b"\n")
    with contextlib.suppress(LookupError, TypeError, ValueError):  # an intact entry in another format
        actual, header = json.loads(line)
        if actual == purpose:
            return parse(header, content)
    caches.delete(caches.path_of(folder, name))
    return None


def write(folder: Path | None, name: str, purpose: str, header: Any, contents: Sequence[bytes]) -> None:
    """Write an entry, if there are room and permission for it."""
    if folder is not None:
        caches.write(folder, name, b"".join([json.dumps([purpose, header]).encode(), b"\n", *contents]))


# Arrays in entries.
#
# Large constants that the traced program has too are not in the entry but are named by their numbers.

#: Larger constants are not written if the traced program has them; programs with more bytes of others are not written.
SMALL, LARGEST = 4096, 1 << 26
DTYPES = {dtype.name: dtype for dtype in ALL}


class NotCacheable(Exception):
    """A program has too many constants, or uncommon ones."""


def dtype_name(dtype: np.dtype) -> str:
    """Return the name of a dtype; raise `NotCacheable` for an uncommon one."""
    if dtype.name not in DTYPES:
        raise NotCacheable
    return dtype.name


class Contents:
    """The bytes of an entry, in the order in which they are written."""

    def __init__(self, constants: Sequence[Any]) -> None:
        """Take the traced program's constants: arrays, or buffers known by identity."""
        self.constants = {_identity(buffer): number for number, buffer in enumerate(constants) if _is_contiguous(buffer)}
        self.parts: list[bytes] = []
        self.size = 0

    def array(self, array: Any) -> Any:
        """Write an array, or the number of a constant; return its description."""
        is_array = isinstance(array, np.ndarray)
        if not is_array or (array.nbytes > SMALL and _is_contiguous(array)):
            number = self.constants.get(_identity(array))
            if number is not None:
                return number
        if not is_array:
            raise NotCacheable
        self.size += array.nbytes
        if self.size > LARGEST:
            raise NotCacheable
        self.parts.append(array.tobytes())
        return [dtype_name(array.dtype), array.shape]


def _is_contiguous(buffer: Any) -> bool:
    return not isinstance(buffer, np.ndarray) or buffer.flags.c_contiguous


def _identity(buffer: Any) -> Any:
    return (buffer.ctypes.data, buffer.dtype, buffer.shape) if isinstance(buffer, np.ndarray) else id(buffer)


class Reader:
    """An entry's bytes, read from the front."""

    def __init__(self, content: bytes, constants: Sequence[Any]) -> None:
        """Take the bytes, and the buffers of the traced program's constants."""
        self.content = content
        self.constants = constants
        self.position = 0

    def take(self, size: int) -> bytes:
        """Return the next bytes."""
        self.position += size
        return self.content[self.position - size : self.position]

    def array(self, description: Any) -> Any:
        """Return an array, or a constant's buffer, by its description in the header."""
        if isinstance(description, int):
            return self.constants[description]
        dtype, shape = DTYPES[description[0]], tuple(description[1])
        return np.ndarray(shape, dtype, bytearray(self.take(math.prod(shape) * dtype.itemsize)))


# Fingerprints of programs: texts that are equal only for equal programs, by which entries are named.
#
# Variables are numbers in the order in which they are bound, constants are hashes of their bytes, or numbers where a compiler does not read
# them either. A call is written as the program that it calls, as only this is compiled. A program that holds something without such a
# text, like a user's function, has no fingerprint.

_PLAIN = frozenset({int, bool, str, bytes, NoneType})


class Fingerprint(NamedTuple):
    """A program's text, and the constants in it, in order."""

    text: str
    constants: tuple[ConcreteArray, ...]
    #: The numbers of constants whose elements make no difference: those of equal buffers are known by the first of them.
    unread: frozenset[int]


class _NotSerializable(Exception):
    """The program holds something that has no text."""


def fingerprint_of(
    closed: ClosedJaxpr, donated: Sequence[bool], elements: Callable[[ConcreteArray], np.ndarray | None] = host_buffer
) -> Fingerprint | None:
    """Return the fingerprint of a program with donated arguments; None if it has none.

    `elements` gives those of a constant; None if the compiler does not read them.
    """
    writer = _Serializer(elements)
    try:
        writer.program(closed)
    except _NotSerializable:
        return None
    flags = "".join(["01"[bool(d)] for d in donated]) + "".join([f" {result}:{argument}" for result, argument in pairs_of(donated)])
    return Fingerprint("\n\n".join([flags, *writer.meanings.values(), *writer.programs]), tuple(writer.constants), frozenset(writer.unread))


class _Serializer:
    """The texts of a program and of those in it, each written once."""

    def __init__(self, elements: Callable[[ConcreteArray], np.ndarray | None]) -> None:
        self.programs: list[str] = []
        self.meanings: dict[Primitive, str] = {}
        self.constants: list[ConcreteArray] = []
        self.unread: set[int] = set()
        self._elements = elements
        #: The first constant of each buffer that is not read.
        self._first: dict[int, int] = {}
        self._numbers: dict[int, int] = {}
        self._avals: dict[ShapedArray, str] = {}
        self._constants: dict[int, str] = {}

    def program(self, closed: ClosedJaxpr) -> str:
        """Write a program, unless it has been, and return its number."""
        if id(closed) not in self._numbers:
            text = self._program(closed)
            self._numbers[id(closed)] = len(self.programs)
            self.programs.append(text)
        return f"j{self._numbers[id(closed)]}"

    def _program(self, closed: ClosedJaxpr) -> str:
        jaxpr = closed.jaxpr
        names: dict[Atom, str] = {}

        def bound(variables: Sequence[Var]) -> str:
            for v in variables:
                names[v] = str(len(names))
            return " ".join([self.aval(v.aval) for v in variables])

        def read(atoms: Sequence[Atom]) -> str:
            try:
                return " ".join([self.literal(a) if type(a) is JaxprLiteral else names[a] for a in atoms])
            except KeyError:  # it is a part of a program
                raise _NotSerializable from None

        text_lines = [bound(jaxpr.constvars), " ".join([self.constant(c) for c in closed.consts]), bound(jaxpr.invars)]
        for eqn in jaxpr.eqns:
            operands = read(eqn.invars)
            text_lines.append(f"{self.primitive(eqn.primitive)}{self.params(eqn)} {operands}:{bound(eqn.outvars)}")
        return "\n".join([*text_lines, read(jaxpr.outvars)])

    def primitive(self, primitive: Primitive) -> str:
        """Return a primitive's name, and note its meaning."""
        if primitive not in self.meanings:
            self.meanings[primitive] = _meaning(primitive)
        return primitive.name

    def params(self, eqn: Equation) -> str:
        """Write an equation's parameters."""
        called = called_program(eqn)
        if called is not None:
            return self.value(called)
        return f"[{','.join([f'{name}={self.value(v)}' for name, v in sorted(eqn.params.items())])}]"

    def aval(self, aval: ShapedArray) -> str:
        """Write a type."""
        text = self._avals.get(aval)
        if text is None:
            text = f"{short_name(aval.dtype)}{list(aval.shape)}{'w' * aval.weak_type}".replace(" ", "")
            self._avals[aval] = text
        return text

    def literal(self, literal: JaxprLiteral) -> str:
        return f"{self.aval(literal.aval)}={host_buffer(literal.val).tobytes().hex()}"

    def constant(self, value: Any) -> str:
        """Write a constant, by a hash of its bytes, or by its number."""
        text = self._constants.get(id(value))
        if text is None:
            if type(value) is not ConcreteArray:
                raise _NotSerializable
            elements, number = self._elements(value), len(self.constants)
            if elements is None:
                self.unread.add(number)
                content = f"c{self._first.setdefault(id(value.buffer()), number)}"
            else:
                content = hashlib.blake2b(np.ascontiguousarray(elements).reshape(-1).view(np.uint8).data, digest_size=32).hexdigest()
            text = self._constants[id(value)] = f"c{number}{self.aval(value.aval)}={content}"
            self.constants.append(value)
        return text

    def value(self, value: Any) -> str:
        """Write a parameter's value."""
        kind = type(value)
        if kind in _PLAIN:
            return repr(value)
        if kind is float:
            return f"f{struct.pack('<d', value).hex()}"
        if kind is complex:
            return f"z{struct.pack('<dd', value.real, value.imag).hex()}"
        if isinstance(value, ClosedJaxpr):
            return self.program(value)
        if isinstance(value, Enum):
            return f"{_path(kind)}.{value.name}"
        if kind in (tuple, list) or hasattr(kind, "_fields"):
            return f"{'' if kind is tuple else _path(kind)}({''.join([self.value(v) + ',' for v in value])})"
        if isinstance(value, np.dtype):
            return f"d{short_name(value)}{value.str}"
        if isinstance(value, np.generic):
            return f"n{short_name(value.dtype)}{value.tobytes().hex()}"
        if isinstance(value, ShapedArray):
            return self.aval(value)
        raise _NotSerializable


def _path(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


@functools.cache
def _meaning(primitive: Primitive) -> str:
    """Return a primitive's name and the names of its rules."""
    rules = [primitive.abstract, evaluation_of(primitive), primitive.ufunc_for, primitive.formula]
    reductions = [reduction for reduction in (primitive.reduction, primitive.combines) if reduction is not None]
    return f"{primitive.name} {' '.join([*map(_rule, rules), *map(_values, reductions)])}"


def _rule(rule: Any) -> str:
    """Return the name of a rule of this package or NumPy's."""
    # Others may change unnoticed.
    if isinstance(rule, functools.partial):
        return f"{_rule(rule.func)}({_values([*rule.args, *rule.keywords.values()])})"
    name = getattr(rule, "__name__", "")
    if rule is None or getattr(np, name, None) is rule:
        return f"numpy.{name}"
    if (getattr(rule, "__module__", None) or "").startswith("volta_fn.") and isinstance(rule, FunctionType | type):
        cells = getattr(rule, "__closure__", None) or ()
        return f"{rule.__module__}.{rule.__qualname__}({_values([cell.cell_contents for cell in cells])})"
    raise _NotSerializable


def _values(values: Sequence[Any]) -> str:
    """Return the functions among the values of a rule by name, and plain values."""
    return ",".join([_rule(value) if callable(value) else repr(value) for value in values if callable(value) or type(value) in _PLAIN])
