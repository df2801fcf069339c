"""Memoised dispatch of eager calls by the types of their arguments.

An eager call looks up its kernel by the specs of its arrays, or by its *signature*: the specs of all arrays among its arguments, lists
included, and the values of the other arguments. In Python this lookup, and the frames around a NumPy function, take longer than adding a
thousand numbers. The CPU target provides both as built-ins once its first program is compiled; without them dispatch runs in Python.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Iterable, Mapping
from types import NoneType
from typing import Any, NamedTuple

import numpy as np

from volta_fn.core.array import Array, ArraySpec, ConcreteArray

#: A finder looks the argument types up in a dict and calls the entry; on a miss, or under a trace, it calls the fallback.
#: `MakeFinder` makes one of a dict and a fallback.
Finder = Callable[..., Any]
MakeFinder = Callable[[dict[Any, Callable[..., Any]], Callable[..., Any]], Finder]


#: Python numbers as arrays, by the spec of the other operand and the number's `described` key: finders by specs substitute them.
NUMBERS: dict[tuple[ArraySpec, Any], ConcreteArray] = {}
_MOST_NUMBERS = 1024


class BuiltIns(NamedTuple):
    """The dispatch functions that the CPU target provides in machine code.

    Attributes:
        finder: makes a finder whose keys are tuples of specs of the arguments, all arrays; one of two may be a number in `NUMBERS`.
        signature_finder: makes a finder whose keys are signatures, also of calls with keywords; entries are called with the arrays alone.
        of_kernel: wraps a function from NumPy arrays to one, which becomes a function from arrays to one of a spec. It runs with NumPy's
            warnings off; anything unsupported is passed to its last argument, the fallback.
        of_view: makes a function from an array to a view of a spec, by shape, dtype, strides and offset. Non-contiguous arrays are passed
            to the fallback.
    """

    finder: MakeFinder
    signature_finder: MakeFinder
    of_kernel: Callable[[Callable[..., Any], int, ArraySpec, Callable[..., Any]], Callable[..., Any]]
    of_view: Callable[[np.ndarray, int, ArraySpec, Callable[..., Any]], Callable[..., Any]]


_lock = threading.Lock()
_built_ins: BuiltIns | None = None
_waiting: list[Callable[[BuiltIns], None]] = []


def when_available(install: Callable[[BuiltIns], None]) -> None:
    """Call `install` with the built-ins, now or as soon as they are available."""
    with _lock:
        if _built_ins is None:
            _waiting.append(install)
            return
    install(_built_ins)


def available() -> BuiltIns | None:
    """Return the built-ins, or None before they are available."""
    return _built_ins


def provide(built_ins: BuiltIns) -> None:
    """Make the built-ins available, and call the waiting `install` functions."""
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
    """Return the dispatch key of a call, and append its arrays to `arrays`.

    The finder in machine code (`runtime/internals/finders.py`) computes the same key for most calls. Raises `NoSignatureError`.
    """
    entries = [described(value, arrays) for value in args]
    if kwargs:
        entries += [tuple(kwargs), *[described(value, arrays) for value in kwargs.values()]]
    return tuple(entries)


def remember_number(operand: ConcreteArray, value: float, array: ConcreteArray) -> None:
    """Store the array that a number, an array's other operand, was converted to."""
    if array.device is operand.device:
        if len(NUMBERS) >= _MOST_NUMBERS:
            NUMBERS.clear()
        NUMBERS[operand._spec, described(value, [])] = array


_FLOAT, _BITS = struct.Struct("=d"), struct.Struct("=q")


def described(value: Any, arrays: list[ConcreteArray]) -> Any:
    """Return a value's entry in a signature, and append its arrays to `arrays`."""
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
