"""Keys of eager calls.

An eager call looks up what to run by the specs of its arrays, or by its *signature*: the specs of the arrays among its arguments, also
of those in lists, and the values of all others.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from types import NoneType
from typing import Any

from volta_fn.core.array import Array, ArraySpec, ConcreteArray


class NoSignatureError(Exception):
    """An argument is neither an array, nor a list of them, nor a hashable constant."""


def signature(args: Iterable[Any], kwargs: Mapping[str, Any], arrays: list[ConcreteArray]) -> tuple[Any, ...]:
    """Return the key of a call, and add its arrays to `arrays`.

    Raises:
        NoSignatureError: An argument is no constant that can be part of a key.
    """
    entries = [described(value, arrays) for value in args]
    if kwargs:
        entries += [tuple(kwargs), *[described(value, arrays) for value in kwargs.values()]]
    return tuple(entries)


#: Python's numbers as arrays, by the spec of the other operand and the number.
_numbers: dict[tuple[ArraySpec, type, Any], ConcreteArray] = {}
_MOST_NUMBERS = 1024


def remember_number(operand: ConcreteArray, value: float, array: ConcreteArray) -> None:
    """Store the array that a number, an array's other operand, was converted to."""
    if array.device is operand.device:
        if len(_numbers) >= _MOST_NUMBERS:
            _numbers.clear()
        _numbers[operand._spec, type(value), value or repr(value)] = array


def array_of_number(operand: ConcreteArray, value: Any) -> ConcreteArray | None:
    """Return the array that `remember_number` kept for a number, else None."""
    kind = type(value)
    if kind is not float and kind is not int:
        return None
    return _numbers.get((operand._spec, kind, value or repr(value)))  # 0.0 and -0.0 are equal


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
