"""Numbers of one dtype as numbers of another: by value, and by bits."""

from __future__ import annotations

import numpy as np

from volta_fn.primitives.formulas.precision import with_sticky_bits
from volta_fn.targets.wgsl.scalars.halves import bits_of_half, half_of_bits, rounded
from volta_fn.targets.wgsl.scalars.integers import narrowed
from volta_fn.targets.wgsl.scalars.number import BFLOAT16, FLOAT16, Number, kind, wgsl_type
from volta_fn.targets.wgsl.scalars.values import Lanes
from volta_fn.targets.wgsl.text import Function


def convert(f: Function, x: Number, dtype: np.dtype) -> Number:
    """Convert the values as `convert_element_type` defines it."""
    if x.dtype == dtype:
        return x
    if x.dtype.kind != "c":
        real = _real(Lanes(f, x.type, x.text), x.dtype, np.dtype(f"f{dtype.itemsize // 2}") if dtype.kind == "c" else dtype)
        if dtype.kind != "c":
            return Number(dtype, real.text)
        return Number(dtype, f.let(wgsl_type(dtype), f"{wgsl_type(dtype)}({real.text}, {real.zero().text})"))  # 0.0 x would be 0.0
    component = np.dtype(f"f{x.dtype.itemsize // 2}")
    re, im = [Lanes(f, wgsl_type(component), f"{x.text}.{c}") for c in "xy"]
    if dtype.kind == "b":
        return Number(dtype, (re.compare("une", 0.0) | im.compare("une", 0.0)).text)
    if dtype.kind == "c":
        return Number(dtype, f.let(wgsl_type(dtype), f"{wgsl_type(dtype)}({x.text})"))
    return Number(dtype, _real(re, component, dtype).text)


def _real(x: Lanes, old: np.dtype, new: np.dtype) -> Lanes:
    before, after, type_ = kind(old), kind(new), wgsl_type(new)
    if after == "bool":
        return x.compare("une" if before == "float" else "ne", 0)
    if before == "bool":  # a known number times NaN would be taken for 0
        return x.select(*[x.unknown_number(x.f, type_, k) for k in (1, 0)]) if after == "float" else x.converted(type_)
    if before == "float":
        return _saturated(x, new, type_) if after in ("int", "uint") else _refloated(x, new, type_)
    if after == "float":
        if new == BFLOAT16 and old.itemsize >= 4:
            x = with_sticky_bits(x, before == "int")
        return x.new(rounded(x.f, x.converted(type_).hidden().text, new), type_)  # an index's 0 is known: times NaN it would be 0
    wide = x.converted(f"{x.type[0]}{type_[1:]}")  # naga widens as the new type is signed
    return narrowed(wide.as_type(type_), new)


def _saturated(x: Lanes, new: np.dtype, type_: str) -> Lanes:
    """Convert toward zero; NaN to 0, values out of range to the nearest bound.

    The device converts only what is in range.
    """
    info = np.iinfo(new)
    low, high = float(info.min), float(2.0**info.bits if new.kind == "u" else 2.0 ** (info.bits - 1))
    above, below = x.compare("oge", high), x.compare("ole", low)
    inside = above.select(0.0, below.select(0.0, x.is_nan().select(0.0, x)))
    converted_ = inside.converted(type_)
    return above.select(int(info.max), below.select(int(info.min), converted_))


def _refloated(x: Lanes, new: np.dtype, type_: str) -> Lanes:
    if type_ == "f64" or x.type == "f32":
        wide = x.converted(type_)
        return wide.new(rounded(x.f, wide.text, new), type_)
    near = _rounded_to_odd(x) if new in (FLOAT16, BFLOAT16) else x.converted("f32")
    return near.new(rounded(x.f, near.text, new), "f32")


def _rounded_to_odd(x: Lanes) -> Lanes:
    """Round float64 to float32, to odd where it is inexact.

    Rounding that again rounds as if it were the first time.
    """
    near = x.converted("f32")
    back = near.converted("f64")
    bits = near.as_bits()
    moved = x.abs().above(back.abs()).select(bits + 1, bits - 1).as_float()
    inexact = back.compare("one", x) & near.abs().below(float("inf"))
    return ((bits & 1).equals(0) & inexact).select(moved, near)


def bitcast(f: Function, x: Number, dtype: np.dtype) -> Number:
    """Return the bits as a dtype of the same width."""
    width, type_ = 8 * dtype.itemsize, wgsl_type(dtype)
    if width >= 32:
        return Number(dtype, Lanes(f, x.type, x.text).as_type(type_).text)
    bits = x.text
    if kind(x.dtype) == "float":
        bits = f.let("u32", bits_of_half(f, x.text, x.dtype))
    elif kind(x.dtype) == "int":
        bits = f.let("u32", f"bitcast<u32>({x.text}) & {(1 << width) - 1}u")
    if dtype in (FLOAT16, BFLOAT16):
        return Number(dtype, f.let("f32", half_of_bits(f, bits, dtype)))
    return Number(dtype, narrowed(Lanes(f, "u32", bits).as_type(type_), dtype).text)
