"""Numbers of any dtype in a shader, and halves, which are kept as float32."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np

from volta_fn import dtypes
from volta_fn.compiler.target import TargetCapabilities
from volta_fn.targets.wgsl.shader import BITS_F32, Function

# ------------------------------------------------------------------------------
# Numbers of any dtype in a shader, and how they are made from constants.
# ------------------------------------------------------------------------------

BFLOAT16, FLOAT16 = np.dtype(dtypes.bfloat16), np.dtype(np.float16)

_DOUBLES, _LONGS = [frozenset(map(np.dtype, names)) for names in (("float64", "complex128"), ("int64", "uint64"))]


class Number(NamedTuple):
    """A value of a dtype: an expression that is cheap to repeat, a name or a literal.

    bool is held as ``bool``, integers of 8 and 16 bits as i32 or u32 of the same value, float16 and bfloat16 as f32 of the same
    value, and complex numbers as vectors of two floats.
    """

    dtype: np.dtype
    text: str
    #: What a literal is, of `dtype`.
    value: Any = None

    @property
    def type(self) -> str:
        """Its WGSL type."""
        return wgsl_type(self.dtype)


@functools.cache
def wgsl_type(dtype: np.dtype) -> str:
    """Return the type in which numbers of a dtype are computed with."""
    if dtype.kind == "b":
        return "bool"
    if dtype.kind in "iu":
        return f"{dtype.kind}{max(8 * dtype.itemsize, 32)}"
    return {"float64": "f64", "complex64": "vec2<f32>", "complex128": "vec2<f64>"}.get(dtype.name, "f32")


@functools.cache
def kind(dtype: np.dtype) -> str:
    """Return bool, int, uint, float or complex."""
    if dtype in dtypes.FLOATS:
        return "float"
    return {"b": "bool", "i": "int", "u": "uint", "c": "complex"}[dtype.kind]


def is_supported(dtype: np.dtype, device: TargetCapabilities) -> bool:
    """Return True if a device can hold and compute with the dtype."""
    if dtype in _DOUBLES:
        return device.float64
    return device.int64 if dtype in _LONGS else dtype in dtypes.ALL


def literal(type_: str, value: Any) -> str:
    """Return a number's text.

    `value` may be out of an integer type's range, which wraps it.
    """
    if type_ == "bool":
        return "true" if value else "false"
    if type_ in ("f32", "f64"):
        return _float(type_, value)
    width = int(type_[1:])
    bits = int(value) & ((1 << width) - 1)
    suffix = {"i32": "i", "u32": "u", "i64": "li", "u64": "lu"}[type_]
    if type_[0] == "u" or bits < 1 << (width - 1):
        return f"{bits}{suffix}"
    if bits == 1 << (width - 1):
        return f"bitcast<{type_}>({bits}{suffix.replace('i', 'u')})"
    return f"({bits - (1 << width)}{suffix})"


#: The largest float32. Its shortest decimal is a greater number, which WGSL has to refuse: it is written with all digits.
_LARGEST = float(np.finfo(np.float32).max)


def _float(type_: str, value: Any) -> str:
    number = np.float32(value) if type_ == "f32" else np.float64(value)
    if not np.isfinite(number):
        return _not_finite(type_, _bits_of(number))
    digits = str(number) if type_ == "f64" or abs(float(number)) < _LARGEST else str(float(number))
    text = digits + {"f32": "f", "f64": "lf"}[type_]
    return f"({text})" if np.signbit(number) else text


def _not_finite(type_: str, bits: str) -> str:
    """Return a number that is not finite, by its bits.

    WGSL forbids such constant expressions, so a function returns the number. The extension for 64-bit floats has no such rule.
    """
    return f"{BITS_F32}({bits})" if type_ == "f32" else f"bitcast<{type_}>({bits})"


def _bits_of(number: Any) -> str:
    """Return a number that is not finite as an unsigned integer; NaN is unique."""
    width = 32 if number.dtype == np.float32 else 64
    bits = {True: "nan"}.get(bool(np.isnan(number)), "-inf" if number < 0 else "inf")
    value = {"nan": 0x7FC00000, "inf": 0x7F800000, "-inf": 0xFF800000}[bits]
    return f"0x{value:08x}u" if width == 32 else f"0x{_WIDE[bits]:016x}lu"


_WIDE = {"nan": 0x7FF8000000000000, "inf": 0x7FF0000000000000, "-inf": 0xFFF0000000000000}


def constant(dtype: np.dtype, value: Any) -> Number:
    """Return a constant of any dtype that it may have been given as."""
    number = np.asarray(value).astype(dtype)
    type_ = wgsl_type(dtype)
    if dtype.kind == "c":
        component = type_[5:-1]
        text = f"{type_}({literal(component, number.real)}, {literal(component, number.imag)})"
    else:
        text = literal(type_, float(number) if dtype in dtypes.FLOATS else number.item())
    return Number(dtype, text, number)


# ------------------------------------------------------------------------------
# float16 and bfloat16, kept as float32.
#
# Integer arithmetic makes and reads their bits.
#
# Drivers may flush what is subnormal in float16, and may round conversions either way; whole numbers leave them no choice.
# ------------------------------------------------------------------------------

_FLOAT16_ROUNDED = """fn float16_rounded(x: f32) -> f32 {
  let bits = bitcast<u32>(x);
  let size = bits & 0x7fffffffu;
  var rounded = (size + 0xfffu + ((size >> 13u) & 1u)) & 0xffffe000u;
  if (rounded >= 0x47800000u) { rounded = 0x7f800000u; }
  if (size < 0x38800000u) { rounded = bitcast<u32>(round(bitcast<f32>(size) * 0x1p24f) * 0x1p-24f); }
  if (size > 0x7f800000u) { rounded = size | 0x400000u; }
  return bitcast<f32>(rounded | (bits & 0x80000000u));
}"""

_BFLOAT16_ROUNDED = """fn bfloat16_rounded(x: f32) -> f32 {
  let bits = bitcast<u32>(x);
  let up = bits + 0x7fffu + ((bits >> 16u) & 1u);
  let is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
  return bitcast<f32>(select(up, bits | 0x400000u, is_nan) & 0xffff0000u);
}"""

_FLOAT16_BITS = """fn float16_bits(x: f32) -> u32 {
  let bits = bitcast<u32>(x);
  let size = bits & 0x7fffffffu;
  var half = (size - 0x38000000u) >> 13u;
  if (size < 0x38800000u) { half = u32(bitcast<f32>(size) * 0x1p24f); }
  if (size >= 0x7f800000u) { half = select(0x7c00u, 0x7e00u, size > 0x7f800000u); }
  return half | ((bits >> 16u) & 0x8000u);
}"""

_FLOAT16_VALUE = """fn float16_value(half: u32) -> f32 {
  let size = half & 0x7fffu;
  var bits = (size << 13u) + 0x38000000u;
  if (size < 0x400u) { bits = bitcast<u32>(f32(size) * 0x1p-24f); }
  if (size >= 0x7c00u) { bits = (size << 13u) | 0x7f800000u; }
  return bitcast<f32>(bits | ((half & 0x8000u) << 16u));
}"""


def rounded(f: Function, x: str, dtype: np.dtype) -> str:
    """Round a float32 to float16 or bfloat16, to nearest even.

    Of other dtypes it is `x`.
    """
    if dtype == FLOAT16:
        return f.let("f32", f"{f.helper('float16_rounded', _FLOAT16_ROUNDED)}({x})")
    if dtype == BFLOAT16:
        return f.let("f32", f"{f.helper('bfloat16_rounded', _BFLOAT16_ROUNDED)}({x})")
    return x


def bits_of_half(f: Function, x: str, dtype: np.dtype) -> str:
    """Return an expression for the 16 bits, as u32, of a rounded float32."""
    if dtype == BFLOAT16:
        return f"(bitcast<u32>({x}) >> 16u)"
    return f"{f.helper('float16_bits', _FLOAT16_BITS)}({x})"


def half_of_bits(f: Function, bits: str, dtype: np.dtype) -> str:
    """Return an expression for the value of the lower 16 bits of a u32.

    The other bits are 0.
    """
    if dtype == BFLOAT16:
        return f"bitcast<f32>({bits} << 16u)"
    return f"{f.helper('float16_value', _FLOAT16_VALUE)}({bits})"
