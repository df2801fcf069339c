"""Sort keys (`codegen.sort_keys`) in machine code."""

from __future__ import annotations

import numpy as np

from volta_fn.codegen.sort_keys import is_float, number_of_key, sort_key
from volta_fn.runtime.llvm.text import Function, Value, lanes_of, vector_of
from volta_fn.targets.cpu.scalars.values import Lanes


def key_bits(dtype: np.dtype) -> int:
    """Return how many bits of the key distinguish numbers of a dtype."""
    return 8 * dtype.itemsize


def key(f: Function, dtype: np.dtype, x: Value, faithful: bool = False) -> Value:
    """Emit the key of the bits of a number (or of a vector of them), in as many bits."""
    return sort_key(Lanes(f, x), dtype, faithful=faithful).value


def number_of(f: Function, dtype: np.dtype, faithful: Value) -> Value:
    """Emit the bits of the number of a faithful key."""
    return number_of_key(Lanes(f, faithful), dtype).value


def level(f: Function, dtype: np.dtype, faithful: Value) -> Value:
    """Emit the key, from a faithful one: that of -0.0 becomes its neighbour."""
    if not is_float(dtype):
        return faithful
    lesser_zero = Lanes(f, faithful).compare("eq", (1 << (key_bits(dtype) - 1)) - 1)
    return f.binary("add", faithful, f.cast("zext", lesser_zero.value, faithful.type))


def widen(f: Function, x: Value, bits: int) -> Value:
    """Emit a key in more bits."""
    return f.cast("zext", x, vector_of(f"i{bits}", lanes_of(x.type)))
