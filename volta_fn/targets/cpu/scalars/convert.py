"""Numbers of one dtype as numbers of another: by value, and by bits."""

from __future__ import annotations

import numpy as np

from volta_fn.primitives.formulas.precision import with_sticky_bits
from volta_fn.runtime.llvm.text import Function
from volta_fn.targets.cpu.scalars.number import BFLOAT16, FLOAT16, Number, components_of, element, kind, rounded
from volta_fn.targets.cpu.scalars.values import Lanes


def convert(f: Function, x: Number, dtype: np.dtype) -> Number:
    """Convert the values as `convert_element_type` defines it."""
    if x.dtype == dtype:
        return x
    components = components_of(f, x)
    if x.dtype.kind == "c" and dtype.kind == "b":
        return Number(dtype, ((components[0].compare("une", 0.0) | components[1].compare("une", 0.0)).value,))
    real = _real(components[0], np.dtype(f"f{x.dtype.itemsize // 2}") if x.dtype.kind == "c" else x.dtype, dtype)
    if dtype.kind != "c":
        return Number(dtype, (real.value,))
    other = _real(components[1], np.dtype(f"f{x.dtype.itemsize // 2}"), dtype) if len(components) == 2 else real.like(0.0)
    return Number(dtype, (real.value, other.value))


def _real(x: Lanes, old: np.dtype, new: np.dtype) -> Lanes:
    """Convert a component to `new`, or to a component of a complex number."""
    before, after, type_ = kind(old), kind(new), element(new)
    if after == "bool":
        return x.compare("une" if before == "float" else "ne", 0)
    if after in ("int", "uint"):
        return _saturated(x, after, type_) if before == "float" else _resized(x, before, type_)
    if before == "float":
        return _refloated(x, new, type_)
    if new == BFLOAT16 and old.itemsize >= 4:
        x = with_sticky_bits(x, before == "int")
    return rounded(x.cast("sitofp" if before == "int" else "uitofp", type_), new)


def _saturated(x: Lanes, after: str, type_: str) -> Lanes:
    """Toward zero; NaN to 0, values out of range to the nearest bound.

    LLVM's own saturating conversion of a vector goes number by number.
    """
    bits, is_signed = int(type_[1:]), after == "int"
    low, high = (-(1 << bits - 1), 1 << bits - 1) if is_signed else (0, 1 << bits)
    inside = x.compare("oge", float(low)) & x.compare("olt", float(high))
    result = inside.select(x, 0.0).cast("fptosi" if is_signed else "fptoui", type_)
    if is_signed:
        result = x.compare("olt", float(low)).select(low, result)
    return x.compare("oge", float(high)).select(high - 1, result)


def _resized(x: Lanes, before: str, type_: str) -> Lanes:
    width = int(type_[1:])
    if width == x.bits:
        return x
    return x.cast("trunc" if width < x.bits else "sext" if before == "int" else "zext", type_)


def _refloated(x: Lanes, new: np.dtype, type_: str) -> Lanes:
    if type_ == "double":
        return x.cast("fpext", "double") if x.bits == 32 else x
    if x.bits == 32:
        return rounded(x, new)
    return rounded(_rounded_to_odd(x) if new in (FLOAT16, BFLOAT16) else x.cast("fptrunc", "float"), new)


def _rounded_to_odd(x: Lanes) -> Lanes:
    """Round float64 to float32, to odd where it is inexact.

    Rounding that again rounds as if it were the first time.
    """
    near = x.cast("fptrunc", "float")
    error = x - near.cast("fpext", "double")
    bits = near.as_bits()
    outward = x.abs().above(near.abs().cast("fpext", "double"))
    moved = outward.select(bits + 1, bits - 1).as_float()
    even = (bits & 1).equals(0)
    return (even & error.compare("one", 0.0) & near.abs().below(float("inf"))).select(moved, near)


def bitcast(f: Function, x: Number, dtype: np.dtype) -> Number:
    """Return the bits as a dtype of the same width."""
    return Number(dtype, (_from_bits(_bits(Lanes(f, x.value), x.dtype), dtype).value,))


def _bits(x: Lanes, dtype: np.dtype) -> Lanes:
    if dtype == BFLOAT16:
        return x.as_bits().shift_right(16).cast("trunc", "i16")
    if dtype == FLOAT16:
        return x.cast("fptrunc", "half").as_bits()
    return x.as_bits() if kind(dtype) == "float" else x


def _from_bits(bits: Lanes, dtype: np.dtype) -> Lanes:
    if dtype == BFLOAT16:
        return (bits.cast("zext", "i32") << 16).as_float()
    if dtype == FLOAT16:
        return bits.as_float().cast("fpext", "float")
    return bits.as_float() if kind(dtype) == "float" else bits
