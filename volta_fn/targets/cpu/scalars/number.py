"""Numbers of any dtype in registers, and how they are made from constants."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from volta_fn import dtypes
from volta_fn.runtime.llvm.host import host
from volta_fn.runtime.llvm.text import Function, Value, lanes_of, vector_of
from volta_fn.targets.cpu.scalars.values import Lanes, literal

BFLOAT16, FLOAT16 = np.dtype(dtypes.bfloat16), np.dtype(np.float16)


class Number(NamedTuple):
    """Numbers of a dtype, one per lane.

    bool is held as i1. float16 and bfloat16 are held as float32 of the same value. Complex numbers are two components, real and imaginary.
    """

    dtype: np.dtype
    components: tuple[Value, ...]

    @property
    def lanes(self) -> int:
        """How many there are."""
        return lanes_of(self.components[0].type)

    @property
    def value(self) -> Value:
        """The one part of a real number."""
        return self.components[0]


def kind(dtype: np.dtype) -> str:
    """Return bool, int, uint, float or complex."""
    if dtype in dtypes.FLOATS:
        return "float"
    return {"b": "bool", "i": "int", "u": "uint", "c": "complex"}[dtype.kind]


def element(dtype: np.dtype) -> str:
    """Return the LLVM type of a number, or its component, in a register."""
    if dtype.kind in "iu":
        return f"i{8 * dtype.itemsize}"
    return {"bool": "i1", "float64": "double", "complex128": "double"}.get(dtype.name, "float")


def is_supported(dtype: np.dtype) -> bool:
    """Return True if this machine computes with the dtype.

    float16 needs instructions that convert it.
    """
    if dtype != FLOAT16:
        return dtype in dtypes.ALL
    here = host()
    return "+f16c" in here.features or here.triple.startswith(("aarch64", "arm64"))


def components_of(f: Function, x: Number) -> list[Lanes]:
    """Return the components with operators."""
    return [Lanes(f, p) for p in x.components]


def rounded(x: Lanes, dtype: np.dtype) -> Lanes:
    """Round float32 to float16 or bfloat16; of other dtypes return `x`."""
    if dtype == FLOAT16:
        return x.cast("fptrunc", "half").cast("fpext", "float")
    return (bfloat16_bits(x) << 16).as_float() if dtype == BFLOAT16 else x


def bfloat16_bits(x: Lanes) -> Lanes:
    """Return the bits of float32 rounded to bfloat16, to nearest even.

    They are integers of 32 bits; NaN stays NaN.
    """
    bits = x.as_bits()
    up = bits + (bits.shift_right(16) & 1) + 0x7FFF
    return x.is_nan().select(bits | 0x400000, up).shift_right(16)


def constant(f: Function, value: Any, lanes: int) -> Number:
    """Return a zero-dimensional array in all lanes."""
    array = np.asarray(value)
    components = (array.real, array.imag) if array.dtype.kind == "c" else (array,)
    type_ = element(array.dtype)
    return Number(array.dtype, tuple([f.splat(Value(type_, literal(type_, _python(p))), lanes) for p in components]))


def _python(x: Any) -> Any:
    return float(x) if x.dtype in dtypes.FLOATS else x.item()


def splat(f: Function, x: Number, lanes: int) -> Number:
    """Return one number in all lanes."""
    return Number(x.dtype, tuple([f.splat(p, lanes) for p in x.components]))


def counting(f: Function, type_: str, lanes: int) -> Lanes:
    """Return the integers 0, 1, 2, … by lanes."""
    if lanes == 1:
        return Lanes(f, Value(type_, "0"))
    return Lanes(f, Value(vector_of(type_, lanes), f"<{', '.join(f'{type_} {k}' for k in range(lanes))}>"))
