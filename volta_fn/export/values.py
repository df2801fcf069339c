"""Values of equations' parameters as JSON, and back.

Integers, texts, booleans, None and finite floats are themselves, tuples are lists. An object has one key, which says what it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import Enum
from typing import Any

import numpy as np

from volta_fn.core.aval import ShapedArray
from volta_fn.core.jaxpr import ClosedJaxpr
from volta_fn.dtypes import as_dtype, float0
from volta_fn.errors import CorruptFileError
from volta_fn.primitives.attention import Axes, Form
from volta_fn.primitives.contraction import Precision
from volta_fn.primitives.convolution import ConvDimensionNumbers
from volta_fn.primitives.data_movement.indexing import GatherDimensionNumbers, GatherScatterMode, ScatterDimensionNumbers
from volta_fn.primitives.elementwise.arithmetic import RoundingMethod
from volta_fn.primitives.fourier import FftType
from volta_fn.primitives.ragged import RaggedDotDimensionNumbers
from volta_fn.primitives.random import RandomAlgorithm

_RECORDS: dict[str, Any] = {
    kind.__name__: kind
    for kind in (Axes, Form, ConvDimensionNumbers, GatherDimensionNumbers, ScatterDimensionNumbers, RaggedDotDimensionNumbers)
}
_ENUMS: dict[str, type[Enum]] = {kind.__name__: kind for kind in (FftType, GatherScatterMode, Precision, RandomAlgorithm, RoundingMethod)}
_PLAIN = (bool, int, str, type(None))


class UnstorableError(Exception):
    """A value has no form in a file; callers say where it is."""


def encode(value: Any, program: Callable[[ClosedJaxpr], int]) -> Any:
    """Return the JSON of a value; `program` writes a program and returns its number."""
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is float:
        return value if math.isfinite(value) else {"float": str(value)}
    if kind is complex:
        return {"complex": [encode(value.real, program), encode(value.imag, program)]}
    if kind is tuple:
        return [encode(item, program) for item in value]
    if kind is list:
        return {"list": [encode(item, program) for item in value]}
    if isinstance(value, ClosedJaxpr):
        return {"program": program(value)}
    if isinstance(value, ShapedArray):
        return {"aval": encode_aval(value)}
    if isinstance(value, np.dtype):
        return {"dtype": dtype_name(value)}
    if isinstance(value, np.generic):
        return {"scalar": [value.dtype.name, value.tobytes().hex()]}
    if kind.__name__ in _RECORDS and _RECORDS[kind.__name__] is kind:
        return {"record": [kind.__name__, *[encode(item, program) for item in value]]}
    if isinstance(value, Enum) and _ENUMS.get(kind.__name__) is kind:
        return {"enum": [kind.__name__, value.name]}
    raise UnstorableError(f"a value of type {kind.__name__}")


def encode_aval(aval: ShapedArray) -> list[Any]:
    """Return the JSON of a type: dtype and shape, and true if the dtype is weak."""
    return [dtype_name(aval.dtype), list(aval.shape), *[True] * aval.weak_type]


def dtype_name(dtype: np.dtype) -> str:
    """Return a dtype's name in a file."""
    return "float0" if dtype == float0 else dtype.name


def decode(value: Any, program: Callable[[Any], ClosedJaxpr]) -> Any:
    """Return the value of its JSON; `program` finds a program by its number."""
    if isinstance(value, list):
        return tuple([decode(item, program) for item in value])
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    return _DECODERS[kind](content, program)


def decode_aval(value: Any) -> ShapedArray:
    """Return the type that a file describes."""
    dtype, shape, *weak = value
    if not all(type(size) is int and size >= 0 for size in shape) or weak not in ([], [True]):
        raise CorruptFileError(f"{value!r:.80} is no type of an array")
    return ShapedArray(tuple(shape), dtype_named(dtype), bool(weak))


def dtype_named(name: Any) -> np.dtype:
    """Return the dtype of a name in a file."""
    if not isinstance(name, str):
        raise CorruptFileError(f"{name!r:.80} is no name of a dtype")
    return float0 if name == "float0" else as_dtype(name)


def _scalar(content: Any, _: Any) -> np.generic:
    name, digits = content
    found: np.generic = np.frombuffer(bytes.fromhex(digits), dtype_named(name))[0]
    return found


_DECODERS: dict[str, Callable[[Any, Any], Any]] = {
    "float": lambda content, _: {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}[content],
    "complex": lambda content, program: complex(*decode(content, program)),
    "list": lambda content, program: list(decode(content, program)),
    "program": lambda content, program: program(content),
    "aval": lambda content, _: decode_aval(content),
    "dtype": lambda content, _: dtype_named(content),
    "scalar": _scalar,
    "record": lambda content, program: _RECORDS[content[0]](*decode(content[1:], program)),
    "enum": lambda content, _: _ENUMS[content[0]][content[1]],
}
