"""Sort keys: unsigned integers in the order of numbers of any dtype.

Negative floats have all bits flipped, the others their sign; every NaN is the greatest key. Zeros of either sign are equal, but a key that
is to be turned back into its number must distinguish them: such *faithful* keys of -0.0 and 0.0 are neighbours, and `level` maps one to
the other.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np

from volta_fn.runtime.llvm.text import Function, Value, lanes_of, vector_of

_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
#: The bits of infinity.
_INFINITY = {"float16": 0x7C00, "bfloat16": 0x7F80, "float32": 0x7F800000, "float64": 0x7FF0 << 48}


def key_bits(dtype: np.dtype) -> int:
    """Return how many bits of the key distinguish numbers of a dtype."""
    return 8 * dtype.itemsize


def is_float(dtype: np.dtype) -> bool:
    """Return True if numbers of the dtype have signed zeros and NaN."""
    return dtype.name in _INFINITY


def _number(f: Function, x: Value, number: int) -> Value:
    lanes = lanes_of(x.type)
    return f.splat(Value(f"i{_width(x)}", str(number)), lanes)


def _width(x: Value) -> int:
    return int(x.type.rpartition("i")[2].rstrip(">"))


def key(f: Function, dtype: np.dtype, x: Value, faithful: bool = False) -> Value:
    """Emit the key of the bits of a number (or of a vector of them), in as many bits."""
    bits = _width(x)
    sign = 1 << (bits - 1)
    if dtype.name not in _INFINITY:
        return f.binary("xor", x, _number(f, x, sign)) if dtype.kind == "i" else x
    size = f.binary("and", x, _number(f, x, sign - 1))
    nan = f.compare("icmp ugt", size, _number(f, x, _INFINITY[dtype.name]))
    turned = f.binary("xor", x, f.binary("or", f.binary("ashr", x, _number(f, x, bits - 1)), _number(f, x, sign)))
    if not faithful:
        turned = f.select(f.compare("icmp eq", size, _number(f, x, 0)), _number(f, x, sign), turned)
    return f.select(nan, _number(f, x, (1 << bits) - 1), turned)


def number_of(f: Function, dtype: np.dtype, faithful: Value) -> Value:
    """Emit the bits of the number of a faithful key (of a NaN, of some NaN)."""
    bits = _width(faithful)
    sign = 1 << (bits - 1)
    if dtype.name not in _INFINITY:
        return f.binary("xor", faithful, _number(f, faithful, sign)) if dtype.kind == "i" else faithful
    negative = f.compare("icmp ult", faithful, _number(f, faithful, sign))
    back = f.select(negative, _number(f, faithful, (1 << bits) - 1), _number(f, faithful, sign))
    return f.binary("xor", faithful, back)


def level(f: Function, dtype: np.dtype, faithful: Value) -> Value:
    """Emit the key, from a faithful one."""
    if not is_float(dtype):
        return faithful
    below = _number(f, faithful, (1 << (_width(faithful) - 1)) - 1)
    one = f.cast("zext", f.compare("icmp eq", faithful, below), faithful.type)
    return f.binary("add", faithful, one)


def widen(f: Function, x: Value, bits: int) -> Value:
    """Emit a key in more bits."""
    return f.cast("zext", x, vector_of(f"i{bits}", lanes_of(x.type)))
