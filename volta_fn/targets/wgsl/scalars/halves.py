"""float16 and bfloat16, kept as float32.

Integer arithmetic makes and reads their bits.

Drivers may flush what is subnormal in float16, and may round conversions either way; whole numbers leave them no choice.
"""

from __future__ import annotations

import numpy as np

from volta_fn.targets.wgsl.scalars.number import BFLOAT16, FLOAT16
from volta_fn.targets.wgsl.text import Function

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
