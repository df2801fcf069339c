"""Lookup of functions by the types of arrays, in machine code where available.

An eager call looks up what to run by the specs of its arrays, or by its *signature*: the specs of the arrays among its arguments, also
of those in lists, and the values of all others. In Python that takes longer than adding a thousand numbers, as do the frames around a
function of NumPy's. The CPU's machine code brings built-ins for both, when the first program is compiled; until then, and without it,
Python's own lookups and frames serve.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Iterable, Mapping
from types import NoneType
from typing import Any, NamedTuple

import numpy as np

from volta_fn.core.array import Array, ArraySpec, ConcreteArray

#: Runs what a dict has for the types of the arguments; for others, or while tracing, the second function that it was made of.
Finder = Callable[..., Any]
MakeFinder = Callable[[dict[Any, Callable[..., Any]], Callable[..., Any]], Finder]


#: Python's numbers as arrays, by the spec of the other operand and what `described` makes of the number: finders by specs put them in.
NUMBERS: dict[tuple[ArraySpec, Any], ConcreteArray] = {}
_MOST_NUMBERS = 1024


class BuiltIns(NamedTuple):
    """What machine code brings.

    Attributes:
        finder: makes a finder by the specs of the arguments, all arrays, as a tuple; of two, one may be a number that `NUMBERS` has.
        signature_finder: makes a finder by `signature`, for calls with keywords, too; what it finds is called with the arrays alone.
        of_kernel: makes, of a function of NumPy arrays that returns one, the function of arrays that returns one of a spec. It runs with
            NumPy's warnings off, and leaves what it does not know (the last argument's calls) to another function of the same arrays.
        of_view: makes the function of an array that returns a view of it, by shape, dtype, strides and offset, of a spec. It leaves
            non-contiguous arrays to another function.
    """

    finder: MakeFinder
    signature_finder: MakeFinder
    of_kernel: Callable[[Callable[..., Any], int, ArraySpec, Callable[..., Any]], Callable[..., Any]]
    of_view: Callable[[np.ndarray, int, ArraySpec, Callable[..., Any]], Callable[..., Any]]


_lock = threading.Lock()
_built_ins: BuiltIns | None = None
_waiting: list[Callable[[BuiltIns], None]] = []


def when_available(install: Callable[[BuiltIns], None]) -> None:
    """Call `install` with the built-ins, as soon as there are any."""
    with _lock:
        if _built_ins is None:
            _waiting.append(install)
            return
    install(_built_ins)


def available() -> BuiltIns | None:
    """Return the built-ins, if there are any yet."""
    return _built_ins


def provide(built_ins: BuiltIns) -> None:
    """Give the built-ins to all who wait for them."""
    global _built_ins
    with _lock:
        _built_ins = built_ins
        waiting = _waiting[:]
        _waiting.clear()
    for install in waiting:
        install(built_ins)


class NoSignatureError(Exception):
    """An argument is neither an array, nor a list of them, nor a hashable constant."""


def signature(args: Iterable[Any], kwargs: Mapping[str, Any], arrays: list[ConcreteArray]) -> tuple[Any, ...]:
    """Return what a call is found by, and add its arrays to `arrays`.

    The finder in machine code (`runtime/internals/finders.py`) makes the same of most calls. Raises `NoSignatureError`.
    """
    entries = [described(value, arrays) for value in args]
    if kwargs:
        entries += [tuple(kwargs), *[described(value, arrays) for value in kwargs.values()]]
    return tuple(entries)


def remember_number(operand: ConcreteArray, value: float, array: ConcreteArray) -> None:
    """Keep a number that an array was combined with, as the array that it became."""
    if array.device is operand.device:
        if len(NUMBERS) >= _MOST_NUMBERS:
            NUMBERS.clear()
        NUMBERS[operand._spec, described(value, [])] = array


_FLOAT, _BITS = struct.Struct("=d"), struct.Struct("=q")


def described(value: Any, arrays: list[ConcreteArray]) -> Any:
    """Return what stands for a value in a signature, and add its arrays to `arrays`."""
    kind = type(value)
    if kind is ConcreteArray:
        arrays.append(value)
        return value._spec
    if kind is int or kind is str or kind is NoneType:
        return value
    if kind is float:  # by its bits, in which 0.0 and -0.0 differ, and NaN is itself
        return kind, _BITS.unpack(_FLOAT.pack(value))[0]
    if kind is complex:
        return kind, repr(value)
    if kind is list or kind is tuple:
        return kind, *[described(entry, arrays) for entry in value]
    if not isinstance(value, type) and (isinstance(value, Array) or hasattr(value, "__array__")):
        raise NoSignatureError
    return kind, value
