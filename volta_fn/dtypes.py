"""Dtypes: the supported ones, those of Python scalars, and type promotion.

Every dtype is an `np.dtype`. A *weak* type belongs to Python scalars, whose dtype yields to that of any array they meet:
`x_f16 * 2.0` stays float16. Promotion is the join (least upper bound) in JAX's lattice (JEP 9407), in which the weak types are
nodes between the kinds. A 64-bit dtype is kept wherever one is asked for; Python scalars on their own are 32 bits wide.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Literal

import ml_dtypes
import numpy as np

from volta_fn.errors import ArgumentError, ArgumentTypeError, DTypeError, IntegerOverflowError
from volta_fn.settings import current as settings

#: The public names; the package also uses the others.
__all__ = [
    "ExtendedDType", "bfloat16", "bool_", "can_cast", "complex64", "complex128", "finfo", "float0", "float16", "float32", "float64",
    "iinfo",
    "int8", "int16", "int32", "int64", "isdtype", "issubdtype", "promote_types", "result_type", "uint8", "uint16", "uint32", "uint64",
]  # fmt: skip

bool_ = np.bool_
int8, int16, int32, int64 = np.int8, np.int16, np.int32, np.int64
uint8, uint16, uint32, uint64 = np.uint8, np.uint16, np.uint32, np.uint64
float16, float32, float64 = np.float16, np.float32, np.float64
bfloat16 = ml_dtypes.bfloat16
complex64, complex128 = np.complex64, np.complex128

#: The dtype of tangents of integers and booleans, which carry no information.
float0: np.dtype = np.dtype([("float0", np.void, 0)])


class ExtendedDType:
    """The base of dtypes whose elements are no numbers: that of random keys."""

    name: str

    @property
    def itemsize(self) -> int:
        """The bytes of an element."""
        raise NotImplementedError

    def describe(self, shape: tuple[int, ...]) -> Any:
        """Return a pytree of descriptions of the arrays that hold an array of this dtype."""
        raise NotImplementedError


def _dtypes(*types: type) -> frozenset[np.dtype]:
    return frozenset(np.dtype(t) for t in types)


BOOL = _dtypes(bool_)
SIGNED = _dtypes(int8, int16, int32, int64)
UNSIGNED = _dtypes(uint8, uint16, uint32, uint64)
FLOATS = _dtypes(float16, bfloat16, float32, float64)
COMPLEX = _dtypes(complex64, complex128)
INTEGERS = SIGNED | UNSIGNED
INEXACT = FLOATS | COMPLEX
REALS = INTEGERS | FLOATS
NUMBERS = REALS | COMPLEX
ALL = BOOL | NUMBERS

#: Dtypes of at most 8 bits that store numbers: arrays of them are moved and converted, and not computed with.
#: Those of one bit are newer than the ml_dtypes of Pyodide.
ONE_BIT = _dtypes(*[getattr(ml_dtypes, name) for name in ("int1", "uint1") if hasattr(ml_dtypes, name)])
STORAGE_SIGNED = _dtypes(ml_dtypes.int2, ml_dtypes.int4) | {d for d in ONE_BIT if d.name == "int1"}
STORAGE_UNSIGNED = _dtypes(ml_dtypes.uint2, ml_dtypes.uint4) | {d for d in ONE_BIT if d.name == "uint1"}
STORAGE_INTEGERS = STORAGE_SIGNED | STORAGE_UNSIGNED
STORAGE_FLOATS = _dtypes(
    ml_dtypes.float4_e2m1fn, ml_dtypes.float6_e2m3fn, ml_dtypes.float6_e3m2fn, ml_dtypes.float8_e3m4, ml_dtypes.float8_e4m3,
    ml_dtypes.float8_e4m3b11fnuz, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e4m3fnuz, ml_dtypes.float8_e5m2, ml_dtypes.float8_e5m2fnuz,
    ml_dtypes.float8_e8m0fnu,
)  # fmt: skip
STORAGE = STORAGE_INTEGERS | STORAGE_FLOATS
#: The dtypes that arrays may have.
STORED = ALL | STORAGE

_BOOL, _INT, _FLOAT, _COMPLEX = np.dtype(bool_), np.dtype(int32), np.dtype(float32), np.dtype(complex64)
_INT64, _UINT64, _FLOAT64, _BF16 = np.dtype(int64), np.dtype(uint64), np.dtype(float64), np.dtype(bfloat16)
_HALVES = _dtypes(float16, bfloat16)

_PYTHON_TYPES: dict[Any, np.dtype] = {bool: _BOOL, int: _INT, float: _FLOAT, complex: _COMPLEX}
_SPECS: dict[Any, np.dtype] = {
    **{d: d for d in STORED},
    **{d.type: d for d in STORED},
    **{d.name: d for d in STORED},
    **_PYTHON_TYPES,
    **{t.__name__: d for t, d in _PYTHON_TYPES.items()},
}

#: From the default dtypes of Python's float and complex to those that hold such numbers in 64 bits.
WIDE_NUMBERS = {_FLOAT: _FLOAT64, _COMPLEX: np.dtype(complex128)}

#: From dtypes of 64 bits to those of 32, and back.
_NARROW: dict[np.dtype, np.dtype] = {_INT64: _INT, _UINT64: np.dtype(uint32), **{WIDE_NUMBERS[narrow]: narrow for narrow in WIDE_NUMBERS}}
_WIDE = {narrow: wide for wide, narrow in _NARROW.items()}
#: Replacements of dtypes, as set by `set_width`.
_CANONICAL: dict[np.dtype, np.dtype] = {}
#: The default dtypes that `set_width` has widened.
_WIDENED: dict[np.dtype, np.dtype] = {}


def set_width(bits: Literal[32, 64] | None) -> None:
    """Choose JAX's default dtypes, of 32 or 64 bits; None: those of this package.

    With 32 every dtype of 64 bits means that of 32. With 64, Python's numbers and the defaults of functions have 64 bits. Without a
    width, defaults have 32 bits and a dtype of 64 is kept where one is asked for. All threads share the choice.
    """
    global STORED
    _CANONICAL.clear()
    _WIDENED.clear()
    if bits is not None:
        (_CANONICAL if bits == 32 else _WIDENED).update(_NARROW if bits == 32 else _WIDE)
    for wide, narrow in _NARROW.items():
        meant = narrow if bits == 32 else wide
        _SPECS.update({wide: meant, wide.type: meant, wide.name: meant})
    for kind, dtype in ((int, _INT), (float, _FLOAT), (complex, _COMPLEX)):
        _PYTHON_TYPES[kind] = _SPECS[kind] = _SPECS[kind.__name__] = default(dtype)
    _WEAK_DEFAULTS.update({"i*": default(_INT), "f*": default(_FLOAT), "c*": default(_COMPLEX)})
    STORED = (ALL | STORAGE) - _CANONICAL.keys()
    promote.cache_clear()


def canonical(dtype: np.dtype) -> np.dtype:
    """Return the dtype that stands for `dtype`: itself, unless `set_width` says other."""
    return _CANONICAL.get(dtype, dtype)


def default(dtype: np.dtype) -> np.dtype:
    """Return a default dtype of 32 bits, or that of 64 where `set_width` says so.

    >>> default(np.dtype("float32"))
    dtype('float32')
    """
    return _WIDENED.get(dtype, dtype)


def index_dtype(size: int, least: np.dtype = _INT) -> np.dtype:
    """Return the dtype of positions in, and counts of, so many elements.

    It is `least` if that holds the number `size`, else int64. Raises `IntegerOverflowError` where `set_width` allows 32 bits alone.

    >>> index_dtype(1000), index_dtype(3_000_000_000)
    (dtype('int32'), dtype('int64'))
    """
    if not isinstance(size, (int, np.integer)) or size <= np.iinfo(least).max:  # a symbolic size is taken to fit
        return least
    if _CANONICAL:
        raise IntegerOverflowError(
            f"positions in {size} elements do not fit {least.name}; set jax_enable_x64 for indices of 64 bits, or split the array"
        )
    return _INT64


def narrows_number(dtype: np.dtype, to: np.dtype) -> bool:
    """Return True if weak `dtype` marks a wide number, and `to` is narrower."""
    return dtype in (_INT64, _UINT64) and dtype != _PYTHON_TYPES[int] and to in INTEGERS and to.itemsize < 8


_SHORT_KINDS = {"i": "i", "u": "u", "f": "f", "c": "c"}
_SHORT_NAMES = {d: f"{_SHORT_KINDS[d.kind]}{d.itemsize * 8}" for d in NUMBERS - {_BF16}} | {
    _BOOL: "bool",
    _BF16: "bf16",
    float0: "float0",
    **{d: d.name.replace("uint", "u").replace("int", "i").replace("float", "f") for d in STORAGE},
}


def as_dtype(spec: Any) -> np.dtype:
    """Return the supported dtype that `spec` names.

    It may be an np.dtype, a scalar type, a string, or Python's bool, int, float, complex.

    >>> as_dtype(float), as_dtype("bfloat16"), as_dtype(np.int64)
    (dtype('float32'), dtype(bfloat16), dtype('int64'))

    Raises `DTypeError` for anything else, such as objects, strings, dates, records and long doubles.
    """
    try:
        return _SPECS[spec]
    except (KeyError, TypeError):
        return _as_uncommon_dtype(spec)


#: What drivers and other packages call dtypes.
_ABBREVIATIONS = {
    "fp16": "float16", "bf16": "bfloat16", "fp32": "float32", "fp64": "float64", "fp8": "float8_e4m3fn",
}  # fmt: skip


def _as_uncommon_dtype(spec: Any) -> np.dtype:
    if spec is None:
        raise DTypeError("dtype: None is not a dtype; leave the argument out for the default")
    if isinstance(spec, (int, float)):
        raise DTypeError(
            f"dtype: {spec} is a number; the sizes of a shape are one tuple, as in zeros((2, 3)), and other arguments have names"
        )
    if isinstance(spec, np.ndarray) or (hasattr(spec, "dtype") and hasattr(spec, "shape") and not isinstance(spec, type)):
        raise DTypeError("dtype: it is an array; pass the dtype x.dtype, or the arrays as one sequence, as in vstack([x, y])")
    if type(spec).__module__ == "torch" and (name := str(spec).removeprefix("torch.")) in _SPECS:
        raise DTypeError(f"dtype: {spec} is PyTorch's; its name here is {name!r}")
    try:
        dtype = np.dtype(spec)
    except (TypeError, ValueError):
        full = _ABBREVIATIONS.get(spec) if isinstance(spec, str) else None
        remedy = "give one such as 'float32', numpy.int64 or float" if full is None else f"it is {full!r} here"
        raise DTypeError(f"dtype: {spec!r} does not name a dtype; {remedy}") from None
    if dtype in _SPECS:
        return _SPECS[dtype]
    if dtype == float0:
        return float0
    if dtype.newbyteorder("=") in _SPECS:
        raise DTypeError(f"dtype: {dtype!r} has foreign byte order; convert the data with x.astype(x.dtype.newbyteorder('='))")
    raise DTypeError(f"dtype: {dtype!r} is not supported; the supported ones are {', '.join(sorted(d.name for d in ALL))}")


def short_name(dtype: np.dtype) -> str:
    """Return a dtype's name in a printed jaxpr.

    >>> [short_name(np.dtype(t)) for t in (np.float32, np.uint8, bfloat16, np.bool_)]
    ['f32', 'u8', 'bf16', 'bool']
    """
    return _SHORT_NAMES.get(dtype) or str(dtype)


def scalar_dtype(value: Any) -> tuple[np.dtype, bool]:
    """Return the dtype of a Python or NumPy scalar and whether it is weak.

    Python's int, float and complex are weak: int32 (int64 or uint64 if it takes that to hold the value), float32, complex64.
    Python's bool and NumPy's scalars are strong. Raises `IntegerOverflowError` for an int of more than 64 bits, in JAX's mode for one
    beyond the default width, and `ArgumentTypeError` for what is not a scalar.

    >>> scalar_dtype(3), scalar_dtype(2**40), scalar_dtype(np.float64(1))
    ((dtype('int32'), True), (dtype('int64'), True), (dtype('float64'), False))
    """
    if isinstance(value, np.generic):
        return as_dtype(value.dtype), False
    if isinstance(value, bool):
        return _BOOL, False
    if type(value) not in _PYTHON_TYPES and isinstance(dtype := getattr(value, "dtype", None), np.dtype):  # a subclass with a dtype
        return as_dtype(dtype), True
    if isinstance(value, int):
        return _int_dtype(value), True
    if isinstance(value, float):
        return _PYTHON_TYPES[float], True
    if isinstance(value, complex):
        return _PYTHON_TYPES[complex], True
    if hasattr(value, "dimension_as_value"):  # a symbolic size
        return _PYTHON_TYPES[int], True
    raise ArgumentTypeError(f"expected a number, got {value!r} of type {type(value).__name__}")


def _int_dtype(value: int) -> np.dtype:
    if -(2**31) <= value < 2**31:
        return _PYTHON_TYPES[int]
    if _CANONICAL:
        raise IntegerOverflowError(f"the integer {value} does not fit int32; set jax_enable_x64 for integers of 64 bits")
    if -(2**63) <= value < 2**63:
        return _INT64
    if 0 <= value < 2**64 and not settings.permissive:
        return _UINT64
    raise IntegerOverflowError(f"the integer {value} does not fit 64 bits; pass a float if its magnitude is what matters")


# Promotion. A node of the lattice is a strong dtype or the name of a weak kind.
_Node = Any
_WEAK_NODES = {"i": "i*", "u": "i*", "f": "f*", "V": "f*", "c": "c*", "b": _BOOL}  # bfloat16's kind is "V"
_WEAK_DEFAULTS: dict[_Node, np.dtype] = {"i*": _INT, "f*": _FLOAT, "c*": _COMPLEX}


def _lattice() -> dict[_Node, frozenset[_Node]]:
    """Return, for every node, the nodes at or above it."""
    arrows = """bool>i* i*>uint8 i*>int8 uint8>uint16 uint8>int16 uint16>uint32 uint16>int32 uint32>uint64 uint32>int64
        uint64>f* int8>int16 int16>int32 int32>int64 int64>f* f*>c* f*>bfloat16 f*>float16 bfloat16>float32 float16>float32
        float32>float64 float32>complex64 float64>complex128 c*>complex64 complex64>complex128"""
    above: dict[_Node, set[_Node]] = {node: {node} for node in (*ALL, *_WEAK_DEFAULTS)}
    pairs = [tuple(_SPECS.get(name, name) for name in arrow.split(">")) for arrow in arrows.split()]
    for low, high in reversed(pairs):  # the arrows are listed from the bottom up, so that what is above `high` is complete
        above[low] |= above[high]
    return {node: frozenset(nodes) for node, nodes in above.items()}


_ABOVE = _lattice()


@lru_cache(maxsize=4096)
def promote(*pairs: tuple[np.dtype, bool]) -> tuple[np.dtype, bool]:
    """Return the dtype and weak type in which (dtype, weak) operands combine.

    >>> promote((np.dtype("float16"), False), (np.dtype("float32"), True))
    (dtype('float16'), False)
    >>> promote((np.dtype("int32"), False), (np.dtype("float32"), True))
    (dtype('float32'), True)

    A strong 64-bit integer that meets a weak float gives a weak float64, for float32 could not hold it. Where `set_width` allows 32 bits
    alone, operands of 64 bits count as such of 32, unless all have the same dtype.
    Raises `DTypeError` for dtypes outside the lattice and `ArgumentError` for no operands.
    """
    if not pairs:
        raise ArgumentError("promotion needs at least one operand, got none")
    if _CANONICAL and any(pair[0] is not pairs[0][0] for pair in pairs):  # arrays that were made while 64 bits were allowed
        pairs = tuple([(canonical(dtype), weak) for dtype, weak in pairs])
    for dtype, _ in pairs:
        if dtype not in STORED and dtype not in _CANONICAL:
            raise DTypeError(f"{dtype!r} does not promote with other dtypes")
    operands = {dtype for dtype, _ in pairs}
    if stored := operands & STORAGE:
        others = sorted({dtype.name for dtype, weak in pairs if not weak and dtype not in stored} | {dtype.name for dtype in stored})
        weak_kinds = {dtype.kind for dtype, weak in pairs if weak}
        if len(others) > 1 or "c" in weak_kinds or ("f" in weak_kinds and stored & STORAGE_INTEGERS):
            others += [f"a {name} number" for kind, name in (("c", "complex"), ("f", "floating")) if kind in weak_kinds]
            raise DTypeError(
                f"{' and '.join(others)} do not promote: dtypes of 8 bits and less only store numbers; convert with x.astype first"
            )
        return stored.pop(), False
    if len(operands) == 1:
        dtype = pairs[0][0]
        return dtype, dtype != _BOOL and all(weak for _, weak in pairs)
    common = frozenset.intersection(*(_ABOVE[node] for node in {_WEAK_NODES[dtype.kind] if weak else dtype for dtype, weak in pairs}))
    node = next(node for node in common if common <= _ABOVE[node])
    return (_weak_dtype(node, operands), True) if isinstance(node, str) else (node, False)


def _weak_dtype(node: _Node, operands: set[np.dtype]) -> np.dtype:
    """Return a weak result's dtype: its kind's default, or 64 bits if an operand has."""
    wide = {_INT64, _UINT64, _FLOAT64, np.dtype(complex128)} & operands
    if not wide:
        return _WEAK_DEFAULTS[node]
    if node == "i*":
        return promote(*((dtype, False) for dtype in wide))[0]
    return _FLOAT64 if node == "f*" else np.dtype(complex128)


def promote_types(a: Any, b: Any) -> np.dtype:
    """Return the dtype in which two dtypes combine.

    Python's int, float and complex count as weak, as in JAX.

    >>> promote_types("int64", "float16")
    dtype('float16')
    """
    return result_type(a, b)


def dtype_and_weak_type(value: Any) -> tuple[np.dtype, bool]:
    """Return (dtype, weak) of an array, a scalar or a dtype's specification."""
    if value is int or value is float or value is complex:
        return _PYTHON_TYPES[value], True
    if isinstance(value, (str, type, np.dtype)):
        return as_dtype(value), False
    if hasattr(value, "dtype"):
        return as_dtype(value.dtype), getattr(value, "weak_type", False)
    return scalar_dtype(value)


def result_type(*args: Any) -> np.dtype:
    """Return the dtype in which arrays, scalars and dtypes combine.

    None counts as the default floating dtype.

    >>> result_type(np.float16(1), 2.0, 3)
    dtype('float16')
    """
    default_float = (_PYTHON_TYPES[float], False)
    return canonical(promote(*[default_float if arg is None else dtype_and_weak_type(arg) for arg in args])[0])


def issubdtype(arg1: Any, arg2: Any) -> bool:
    """Return True if `arg1` is at or below `arg2` in NumPy's type hierarchy.

    bfloat16 and the dtypes of fewer bits are of the kinds that their names say.

    >>> issubdtype(bfloat16, np.floating), issubdtype("int8", np.integer)
    (True, True)
    """
    if arg2 is object or arg2 is np.object_:
        return False
    arg1 = np.float64 if arg1 is None else arg1  # as in NumPy
    if isinstance(arg1, type) and issubclass(arg1, np.generic) and arg1 not in _SPECS:
        return isinstance(arg2, type) and issubclass(arg1, arg2)
    stand_in = _stand_in(as_dtype(arg1))
    if stand_in is not None and isinstance(arg2, type) and arg2.__module__ == "numpy":
        return issubclass(stand_in, arg2)
    if isinstance(arg2, type) and issubclass(arg2, np.generic) and arg2 not in _SPECS:
        return issubclass(as_dtype(arg1).type, arg2)
    return as_dtype(arg1) == as_dtype(arg2)


def _stand_in(dtype: np.dtype) -> type[np.generic] | None:
    """Return the kind of a dtype that NumPy itself has not."""
    if dtype == _BF16 or dtype in STORAGE_FLOATS:
        return np.floating
    return np.signedinteger if dtype in STORAGE_SIGNED else np.unsignedinteger if dtype in STORAGE_UNSIGNED else None


#: The kinds of the Array API standard.
KINDS = {
    "bool": BOOL,
    "signed integer": SIGNED,
    "unsigned integer": UNSIGNED,
    "integral": INTEGERS,
    "real floating": FLOATS,
    "complex floating": COMPLEX,
    "numeric": NUMBERS,
}


def isdtype(dtype: Any, kind: Any) -> bool:
    """Return True if a dtype is of a kind of the Array API standard.

    `kind` may also be a dtype, or a tuple of kinds and dtypes.

    >>> isdtype("uint8", "integral"), isdtype("uint8", ("real floating", np.uint8))
    (True, True)
    """
    if isinstance(kind, tuple):
        return any(isdtype(dtype, k) for k in kind)
    if isinstance(kind, str) and kind in KINDS:
        return as_dtype(dtype) in KINDS[kind]
    return as_dtype(dtype) == as_dtype(kind)


def _named(spec: Any) -> np.dtype:
    """Return the dtype that `spec` names, whatever `set_width` says."""
    dtype = as_dtype(spec)
    if not _CANONICAL:
        return dtype
    named = np.dtype(spec)
    return named if named in _CANONICAL else dtype


def finfo(dtype: Any) -> Any:
    """Return the limits of a float or complex dtype: `eps`, `max`, `tiny`, `bits`, ….

    They are those of the dtype itself, as in JAX, where `set_width` lets a dtype of 64 bits mean that of 32.

    >>> float(finfo("float32").eps)
    1.1920928955078125e-07
    """
    dtype = _named(dtype)
    if dtype not in INEXACT | STORAGE_FLOATS:
        raise DTypeError(f"finfo: {dtype.name} is not a floating-point dtype; use iinfo")
    return ml_dtypes.finfo(dtype) if _stand_in(dtype) else np.finfo(dtype)


def iinfo(int_type: Any) -> Any:
    """Return the limits of an integer dtype: `min`, `max`, `bits`.

    >>> iinfo("uint8").max
    255
    """
    dtype = _named(int_type)
    if dtype not in INTEGERS | STORAGE_INTEGERS:
        raise DTypeError(f"iinfo: {dtype.name} is not an integer dtype; use finfo")
    return ml_dtypes.iinfo(dtype) if dtype in STORAGE else np.iinfo(dtype)


def bits(dtype: np.dtype) -> int:
    """Return the bits of an element as it is packed, though in memory it takes a byte.

    >>> bits(np.dtype("float32")), bits(as_dtype("int4"))
    (32, 4)
    """
    return int(iinfo(dtype).bits) if dtype in STORAGE_INTEGERS else dtype.itemsize * 8


def can_cast(from_: Any, to: Any, casting: Literal["no", "equiv", "safe", "same_kind", "unsafe"] = "safe") -> bool:
    """Return True if NumPy's casting rule allows a conversion.

    bfloat16 counts as a float of 8 significant bits.

    >>> can_cast("int8", bfloat16), can_cast("int16", bfloat16), can_cast(bfloat16, "float32")
    (True, False, True)
    """
    source, target = dtype_and_weak_type(from_)[0], as_dtype(to)
    if _BF16 not in (source, target) or source == target or casting == "unsafe":
        return np.can_cast(source, target, casting)
    if casting in ("no", "equiv"):
        return False
    stand_in = np.dtype(float16)  # which stands for bfloat16 in the order of kinds
    if casting == "same_kind":
        return np.can_cast(stand_in if source == _BF16 else source, stand_in if target == _BF16 else target, casting)
    if source == _BF16:
        return target in INEXACT - {stand_in}
    return source in _dtypes(bool_, int8, uint8)


def dtype_error(name: str, dtype: np.dtype, allowed: Iterable[np.dtype], hint: str = "") -> DTypeError:
    """Return the error of a function that is not defined for a dtype."""
    return DTypeError(f"{name} is not defined for {dtype.name}; it takes {', '.join(sorted(d.name for d in allowed))}{hint}")


def to_inexact(dtype: np.dtype) -> np.dtype:
    """Return the dtype of a real function's result (sqrt, mean, …).

    64-bit integers give float64, other integers and booleans float32; inexact dtypes stay.
    """
    if dtype in INEXACT:
        return dtype
    if dtype in STORAGE:
        if not settings.permissive:
            raise DTypeError(f"{dtype.name} only stores numbers; convert with x.astype before computing")
        return dtype if dtype in STORAGE_FLOATS else _FLOAT
    return _FLOAT64 if dtype in (_INT64, _UINT64) else _FLOAT


def real_dtype(dtype: np.dtype) -> np.dtype:
    """Return the dtype of the real part: half of a complex dtype, else itself."""
    if dtype not in COMPLEX:
        return dtype
    return _FLOAT if dtype == _COMPLEX else _FLOAT64


def complex_dtype(dtype: np.dtype) -> np.dtype:
    """Return complex128 for float64 and 64-bit integers, complex64 for other dtypes."""
    if dtype in COMPLEX:
        return dtype
    return np.dtype(complex128) if to_inexact(dtype) == _FLOAT64 else _COMPLEX


def accumulator(dtype: np.dtype) -> np.dtype:
    """Return the dtype of sums: float32 for floats of 16 bits and less, else itself."""
    return _FLOAT if dtype in _HALVES or dtype in STORAGE_FLOATS else dtype
