"""Numbers in shaders, and WGSL functions for what devices compute inaccurately."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np

from volta_fn import dtypes
from volta_fn.compiler.target import TargetCapabilities
from volta_fn.primitives.formulas.trigonometric import TWO_OVER_PI, TWO_OVER_PI_BITS
from volta_fn.targets.wgsl.shader import BITS_F32, Function

# Numbers of any dtype in a shader, and constants.

BFLOAT16, FLOAT16 = np.dtype(dtypes.bfloat16), np.dtype(np.float16)

_DOUBLES, _LONGS = [frozenset(map(np.dtype, names)) for names in (("float64", "complex128"), ("int64", "uint64"))]


class Number(NamedTuple):
    """A value of a dtype: an expression that is cheap to repeat, a name or a literal.

    bool is held as ``bool``, integers of 8 and 16 bits as i32 or u32 of the same value, float16 and bfloat16 as f32 of the same
    value, and complex numbers as vectors of two floats.
    """

    dtype: np.dtype
    text: str
    #: The value of a literal, of `dtype`; None for other expressions.
    value: Any = None

    @property
    def type(self) -> str:
        """Its WGSL type."""
        return wgsl_type(self.dtype)


@functools.cache
def wgsl_type(dtype: np.dtype) -> str:
    """Return the WGSL type in which numbers of a dtype are computed."""
    if dtype.kind == "b":
        return "bool"
    if dtype.kind in "iu":
        return f"{dtype.kind}{max(8 * dtype.itemsize, 32)}"
    return {"float64": "f64", "complex64": "vec2<f32>", "complex128": "vec2<f64>"}.get(dtype.name, "f32")


def is_supported(dtype: np.dtype, capabilities: TargetCapabilities) -> bool:
    """Return True if a device can hold and compute with the dtype."""
    if dtype in _DOUBLES:
        return capabilities.float64
    return capabilities.int64 if dtype in _LONGS else dtype in dtypes.ALL


def literal(type_: str, value: Any) -> str:
    """Return a number's text.

    `value` may be out of an integer type's range, which wraps it.
    """
    if type_ == "bool":
        return "true" if value else "false"
    if type_ in ("f32", "f64"):
        number = np.float32(value) if type_ == "f32" else np.float64(value)
        if not np.isfinite(number):
            return _not_finite(type_, _bits_of(number))
        digits = str(number) if type_ == "f64" or abs(float(number)) < _LARGEST else str(float(number))
        text = digits + {"f32": "f", "f64": "lf"}[type_]
        return f"({text})" if np.signbit(number) else text
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


def _not_finite(type_: str, bits: str) -> str:
    """Return a number that is not finite, by its bits."""
    # WGSL forbids such constant expressions, so a function returns the number. The extension for 64-bit floats has no such rule.
    return f"{BITS_F32}({bits})" if type_ == "f32" else f"bitcast<{type_}>({bits})"


def _bits_of(number: Any) -> str:
    """Return a number that is not finite as an unsigned integer; NaN is unique."""
    width = 32 if number.dtype == np.float32 else 64
    bits = {True: "nan"}.get(bool(np.isnan(number)), "-inf" if number < 0 else "inf")
    value = {"nan": 0x7FC00000, "inf": 0x7F800000, "-inf": 0xFF800000}[bits]
    return f"0x{value:08x}u" if width == 32 else f"0x{_WIDE[bits]:016x}lu"


_WIDE = {"nan": 0x7FF8000000000000, "inf": 0x7FF0000000000000, "-inf": 0xFFF0000000000000}


def constant(dtype: np.dtype, value: Any) -> Number:
    """Return a constant of a dtype, converted from any other one."""
    number = np.asarray(value).astype(dtype)
    type_ = wgsl_type(dtype)
    if dtype.kind == "c":
        component = type_[5:-1]
        text = f"{type_}({literal(component, number.real)}, {literal(component, number.imag)})"
    else:
        text = literal(type_, float(number) if dtype in dtypes.FLOATS else number.item())
    return Number(dtype, text, number)


# float16 and bfloat16, kept as float32.
#
# Integer arithmetic makes and reads their bits.
#
# Drivers may flush subnormal numbers of float16, and may round conversions either way; integer arithmetic is exact.

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


def round_to_dtype(f: Function, x: str, dtype: np.dtype) -> str:
    """Round a float32 to float16 or bfloat16, to nearest even.

    For other dtypes it is returned as it is.
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


# WGSL functions for operations that devices compute inaccurately, or lack.
#
# Whoever calls one declares it in the module first.

#: The name of a variable that is 1.0. `Shader` sets it at run time, so that no compiler can fold it.
ONE = "one"


def declare_one(f: Function) -> str:
    """Declare the variable `ONE`, and return its name."""
    return f.module.declare(ONE, f"var<private> {ONE}: f32;")


def opaque_count(f: Function, count: int) -> str:
    """Return a number of iterations that compilers cannot fold."""
    # They would unroll a loop of a known number.
    return f"({count}u + (bitcast<u32>({declare_one(f)}) ^ 0x3f800000u))"


# It has no branches, such as early returns and `&&`: a call of one in nested loops takes Chromium's software GPU minutes to compile.
_FMA = """fn fma_{0}(x: {0}, y: {0}, z: {0}) -> {0} {{
  let is_product = (abs(x) <= {most}) & (abs(y) <= {most});
  let size = max(abs(x * y), abs(z));
  let is_tiny = (size < {tiny}) & (max(abs(x), abs(y)) < {large});
  let scale = select(select({0}(1), {up}, is_tiny), {down}, size > {huge});
  let a = x * scale;
  let b = y * scale;
  let c = z * scale * scale;
  let product = a * b;
  let a1 = bitcast<{0}>((bitcast<{bits}>(a) + {half}) & {mask});
  let b1 = bitcast<{0}>((bitcast<{bits}>(b) + {half}) & {mask});
  let a2 = a - a1;
  let b2 = b - b1;
  let lost = (((a1 * b1 - product) + a1 * b2) + a2 * b1) + a2 * b2;
  let total = product + c;
  let part = total * {0}(one) - product;
  let lost_too = (product - (total * {0}(one) - part)) + (c - part);
  let result = total + (lost + lost_too);
  let finite = select(total, result, abs(result) <= {most}) / scale / scale;
  return select(select(x * y + z, z, is_product), finite, is_product & (abs(z) <= {most}));
}}"""

_FMA_32 = {
    "bits": "u32", "half": "0x800u", "mask": "0xfffff000u", "most": "0x1.fffffep127f",
    "tiny": "0x1p-60f", "large": "0x1p90f", "huge": "0x1p100f", "up": "0x1p32f", "down": "0x1p-32f",
}  # fmt: skip
_FMA_64 = {
    "bits": "u64", "half": "0x4000000lu", "mask": "0xfffffffff8000000lu", "most": "1.7976931348623157e308lf",
    "tiny": "1e-150lf", "large": "1e200lf", "huge": "1e270lf", "up": literal("f64", 2.0**250), "down": literal("f64", 2.0**-100),
}  # fmt: skip


def declare_fma(f: Function, type_: str) -> str:
    """Declare the function of x y + z rounded once, or nearly so (Dekker, Knuth).

    Returns its name. The errors of the product and of the sum are exact; only their sum is rounded. Large and small numbers are scaled, so
    that the errors are in range.
    """
    declare_one(f)
    return f.helper(f"fma_{type_}", _FMA.format(type_, **(_FMA_32 if type_ == "f32" else _FMA_64)))


_QUOTIENT = """fn quotient(x: f32, y: f32) -> f32 {
  let x_is_small = abs(x) < 0x1p-60f;
  let scale = select(select(1.0f, 0x1p-64f, abs(y) > 0x1p64f), 0x1p64f, abs(y) < 0x1p-64f);
  let back = bitcast<f32>(bitcast<u32>(scale) | (bitcast<u32>(y) & 0x80000000u));
  let a = x * select(1.0f, 0x1p60f, x_is_small);
  let b = abs(y) * scale;
  let inverse = 1.0f / b;
  let near = bitcast<f32>(bitcast<u32>(a * inverse) ^ (bitcast<u32>(one) ^ 0x3f800000u));
  let better = fma(-fma(near, min(b, 0x1.fffffep127f), -a), inverse, near);
  return select(near, better, abs(near) <= 0x1.fffffep127f) * select(back, back * 0x1p-60f, x_is_small);
}"""


def declare_quotient(f: Function) -> str:
    """Declare the function of x / y, corrected by a fused multiply-add.

    Returns its name. WGSL promises nothing of divisors whose reciprocals are subnormal, and devices may flush subnormal factors to zero: so
    divisors are scaled by powers of two to sizes between 2^-85 and 2^64, and small dividends so that remainders are representable.
    Expressions of the divisor alone are computed once for many dividends; its sign is applied at the end, so that zeros keep theirs. The
    first quotient passes through integers: without that, 1 - 20/20 was -1.5e-8 on an H200, as if the quotient were a product with 1/20 that
    is rounded once with the difference.
    """
    declare_one(f)
    return f.helper("quotient", _QUOTIENT)


_NEAR_QUOTIENT = """fn near_quotient(x: f32, y: f32) -> f32 {
  let inverse = 1.0f / y;
  let near = bitcast<f32>(bitcast<u32>(x * inverse) ^ bitcast<u32>(one) ^ 0x3f800000u);
  return fma(fma(-near, y, x), inverse, near);
}"""


def declare_near_quotient(f: Function) -> str:
    """Declare the function of x / y without scaling; return its name.

    It is for 1 <= y <= 2^60 and moderate quotients.
    """
    declare_one(f)
    return f.helper("near_quotient", _NEAR_QUOTIENT)


_ROOT = """fn root(x: f32) -> f32 {
  let near = bitcast<f32>(bitcast<u32>(sqrt(x)) | (bitcast<u32>(one) ^ 0x3f800000u));
  let better = fma(fma(-near, near, x), 0.5f / near, near);
  return select(near, better, (x > 0x1p-100f) & (x < 0x1p127f));
}"""


def declare_root(f: Function) -> str:
    """Declare the function of square roots, corrected likewise; return its name."""
    # The root passes through integers: NVIDIA's compiler simplifies the square of a root to its argument, even if that is negative.
    declare_one(f)
    return f.helper("root", _ROOT)


_WIDE_PRODUCT = """fn wide_product(x: u32, y: u32) -> vec2<u32> {
  let low = (x & 0xffffu) * (y & 0xffffu);
  let left = (x >> 16u) * (y & 0xffffu) + (low >> 16u);
  let right = (x & 0xffffu) * (y >> 16u) + (left & 0xffffu);
  return vec2<u32>((right << 16u) | (low & 0xffffu), (x >> 16u) * (y >> 16u) + (left >> 16u) + (right >> 16u));
}"""

_QUARTERS = """fn quarters(x: f32) -> vec3<f32> {
  let bits = bitcast<u32>(x);
  let place = max((bits >> 23u) & 0xffu, 122u) - 88u;
  let whole = (bits & 0x7fffffu) | 0x800000u;
  let word = place >> 5u;
  let shift = place & 31u;
  var window: vec3<u32>;
  for (var k = 0u; k < 3u; k++) {
    window[k] = (two_over_pi[word + k] << shift) | ((two_over_pi[word + k + 1u] >> 1u) >> (31u - shift));
  }
  let third = wide_product(whole, window.z);
  let second = wide_product(whole, window.y);
  let middle = second.x + third.y;
  let top = whole * window.x + second.y + select(0u, 1u, middle < second.x);
  var turns = top >> 30u;
  var high = (top << 2u) | (middle >> 30u);
  var low = (middle << 2u) | (third.x >> 30u);
  var is_negative = high >= 0x80000000u;
  if (is_negative) {
    turns += 1u;
    low = ~low + 1u;
    high = ~high + select(0u, 1u, low == 0u);
  }
  var scale = 0x1p-32f;
  if (high == 0u) {
    high = low;
    low = 0u;
    scale = 0x1p-64f;
  }
  let zeros = min(countLeadingZeros(high), 31u);
  high = (high << zeros) | ((low >> 1u) >> (31u - zeros));
  low = low << zeros;
  scale *= bitcast<f32>((127u - zeros) << 23u);
  if (bits >> 31u != 0u) {
    turns = 0u - turns;
    is_negative = !is_negative;
  }
  if (is_negative) { scale = -scale; }
  var first = f32(high & 0xffffff00u) * scale;
  if ((bits & 0x7f800000u) == 0x7f800000u) { first = bits_f32(0x7fc00000u); }
  return vec3<f32>(f32(turns & 3u), first, f32(((high & 0xffu) << 16u) | (low >> 16u)) * (scale * 0x1p-16f));
}"""


def declare_quarters(f: Function) -> str:
    """Declare the function that reduces |x| >= 2^-5 to quarter periods.

    Returns its name. Its result is their number modulo 4, and the rest, at most a half, as a sum of two floats.

    After Payne and Hanek (1983): x = m 2^e with a whole number m of 24 bits, and of 2^e 2/pi only 96 bits matter, the first of which is
    worth 2. They are cut out of a table. Their product with m is, modulo 4, the number of quarter periods.
    """
    digits = TWO_OVER_PI >> (TWO_OVER_PI_BITS - 32 * 8)
    words = ", ".join(f"0x{(digits >> (32 * k)) & 0xFFFFFFFF:08x}u" for k in reversed(range(8)))
    f.module.declare(
        "two_over_pi",
        f"const two_over_pi_digits = array<u32, 10>(0u, 0u, {words});\nvar<private> two_over_pi: array<u32, 10> = two_over_pi_digits;",
    )
    f.helper("wide_product", _WIDE_PRODUCT)
    return f.helper("quarters", _QUARTERS)


_BITS_OF_TABLE = """var<private> {0}: array<u32, {1}> = array<u32, {1}>({2});
fn bits_of_{0}(byte: i64) -> i64 {{
  let place = u32(byte);
  let word = place >> 2u;
  let shift = (place & 3u) * 8u;
  let low = u64({0}[word]) | (u64({0}[word + 1u]) << 32u);
  let high = (u64({0}[word + 2u]) << 32u) << (32u - shift);
  return bitcast<i64>(select((low >> shift) | high, low, shift == 0u));
}}"""


def declare_bits_of_table(f: Function, name: str, table: bytes) -> str:
    """Declare the function of the 64 bits of a table from a byte on; return its name."""
    padded = table + bytes(-len(table) % 4 + 4)
    words = [int.from_bytes(padded[k : k + 4], "little") for k in range(0, len(padded), 4)]
    text = _BITS_OF_TABLE.format(name, len(words), ", ".join(f"0x{w:08x}u" for w in words))
    return f.helper(f"bits_of_{name}", text)
