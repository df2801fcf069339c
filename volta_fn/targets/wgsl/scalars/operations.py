"""Elementwise primitives by name, in WGSL, and conversions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any

import numpy as np

from volta_fn.codegen import scalars
from volta_fn.codegen.scalars import BOOL, Integers, Operation, kind
from volta_fn.compiler.target import TargetCapabilities
from volta_fn.core.primitive import PRIMITIVES, Reduction
from volta_fn.primitives.formulas import exponential
from volta_fn.primitives.formulas.complex_numbers import COMPLEX, Complex, ComplexFormula
from volta_fn.primitives.formulas.exponential import EXACT
from volta_fn.primitives.formulas.values import PAIRED, exact_sum, rounded_to_odd, with_sticky_bits
from volta_fn.targets.wgsl.scalars.number import (
    BFLOAT16,
    FLOAT16,
    Number,
    bits_of_half,
    half_of_bits,
    is_supported,
    round_to_dtype,
    wgsl_type,
)
from volta_fn.targets.wgsl.scalars.values import ShaderValue, outlined
from volta_fn.targets.wgsl.shader import Function

# Floats: the operations that are exact, or rounded once.
#
# Further operations prevent compilers from simplifying as if there were neither NaN nor infinity nor -0.0 (see `scalars.values`).


def _is_zero(x: ShaderValue) -> bool:
    return x.text.strip("(-)").rstrip("lf") == "0.0"


def _opaque(x: ShaderValue) -> ShaderValue:
    """Return a literal zero as a value that compilers do not know."""
    # A division by a literal zero gives any number.
    if not _is_zero(x):
        return x
    return x.zero() if x.text[0] != "(" else -x.zero()


def _is_known(x: ShaderValue) -> bool:
    return not x.text[0].isalpha() or x.text.startswith("bitcast")


def _addend(x: ShaderValue) -> ShaderValue:
    """Return a finite literal as a value that compilers do not know."""
    # Of two in a chain of sums and products they would make one, which rounds otherwise.
    return x.opaque() if _is_known(x) and not _is_zero(x) and "bitcast" not in x.text else _opaque(x)


def _incomparable(x: ShaderValue) -> ShaderValue:
    """Return a float64 number that compilers cannot compare with another."""
    # NVIDIA's takes x - x for 0 and x / x for 1 in float64, though x may be NaN or infinite.
    return x.hidden() if x.type == "f64" and not _is_known(x) else x


def _sum(x: ShaderValue, y: ShaderValue, add: Callable[[ShaderValue, ShaderValue], ShaderValue]) -> ShaderValue:
    return x.combined(y, x.f.terms, lambda x, y: add(_addend(x), _incomparable(_addend(y))))


def _neg(x: ShaderValue) -> ShaderValue:
    result = -x
    for leaves in (x.f.terms, x.f.factors):
        leaves[result.text] = leaves.get(x.text, frozenset((x.text,)))
    return result


def _sub(x: ShaderValue, y: ShaderValue) -> ShaderValue:
    if x.text == y.text:
        return _is_finite(x).select(0.0, x.like(float("nan")))
    return _sum(x, y, ShaderValue.__sub__)


def guarded_comparison(op: str) -> Callable[[ShaderValue, ShaderValue], ShaderValue]:
    """Return ==, <= or >=.

    Compilers assume that these hold between a value and itself, although it may be NaN.
    """

    def holds(x: ShaderValue, y: ShaderValue) -> ShaderValue:
        result = x.let(f"{x.text} {op} {y.text}", "bool")
        return result if _is_known(x) or _is_known(y) else result & ~x.is_nan()

    return holds


def _is_finite(x: ShaderValue) -> ShaderValue:
    return x.abs().below(math.inf)


def _nextafter_half(dtype: np.dtype) -> Operation:
    """Return nextafter of 16-bit floats, whose bits count away from zero."""

    def nextafter(x: ShaderValue, y: ShaderValue) -> ShaderValue:
        bits, other = [v.let(bits_of_half(v.f, v.text, dtype), "u32") for v in (x, y)]
        away = x.abs().below(y.abs()) & ((bits ^ other) & 0x8000).equals(0)
        step = x.equals(0.0).select((other & 0x8000) | 1, away.select(bits + 1, bits - 1))
        moved = x.let(half_of_bits(x.f, step.text, dtype))
        return x.equals(y).select(y, x.compare("uno", y).select(x + y, moved))

    return nextafter


def _fma_float16(x: ShaderValue, y: ShaderValue, z: ShaderValue) -> ShaderValue:
    """Return x y + z of float16, whose product is exact in float32."""
    # The sum gets an odd last bit where it is inexact, so that rounding it again does no harm.
    total, lost = exact_sum(x * y, z)
    bits = total.as_bits()
    outward = lost.above(0.0) ^ total.below(0.0)
    moved = outward.select(bits + 1, bits - 1).as_float()
    return ((bits & 1).equals(0) & lost.compare("one", 0.0) & _is_finite(total)).select(moved, total)


def _fma_bfloat16(x: ShaderValue, y: ShaderValue, z: ShaderValue) -> ShaderValue:
    """Return x y + z of bfloat16, whose products may exceed float32's range."""
    # Operands that are not finite are computed separately.
    product = _is_finite(x) & _is_finite(y)
    ordinary = product & _is_finite(z)
    scaled = _fma_scaled(*[ordinary.select(v, 1.0) for v in (x, y, z)])
    return ordinary.select(scaled, product.select(z, x * y + z))


def _fma_scaled(x: ShaderValue, y: ShaderValue, z: ShaderValue) -> ShaderValue:
    """Scale large numbers down, and small ones up where they would be flushed."""
    size, swapped = (x * y).abs().at_least(z.abs()), x.abs().above(y.abs())
    greater, lesser = swapped.select(x, y), swapped.select(y, x)
    large, small = size.above(2.0**100), size.below(2.0**-60)
    down, back = large.select(2.0**-8, x.like(1.0)), large.select(2.0**8, x.like(1.0))
    if x.f.module.capabilities.subnormals:
        return _fma_float16(greater * down, lesser, z * down) * back
    up, again = small.select(2.0**60, x.like(1.0)), small.select(2.0**-60, x.like(1.0))  # compilers would merge both factors
    return _fma_float16(greater * down, lesser * up * up, z * down * up * up) * back * again * again


def _extremum(predicate: str) -> Operation:
    """Return the maximum or minimum of two operands; NaN if either is NaN.

    Compilers would turn the comparison alone into a maximum that ignores NaN.
    """

    def chosen(x: ShaderValue, y: ShaderValue) -> ShaderValue:
        wins = x.compare(predicate, y)
        return ((wins if _is_known(y) else wins & ~y.is_nan()) | x.is_nan()).select(x, y)

    return chosen


def _extrema(greater: str, less: str) -> dict[str, Operation]:
    upper, lower = _extremum(greater), _extremum(less)
    return {"max": upper, "min": lower, "clamp": lambda low, x, high: lower(upper(x, low), high)}


#: Operations of floats that differ from the formulas that targets share, as compilers would simplify those.
_FLOAT_OVERRIDES: dict[str, Operation] = {
    "eq": guarded_comparison("=="),
    "ne": lambda x, y: ~guarded_comparison("==")(x, y),
    "le": guarded_comparison("<="),
    "ge": guarded_comparison(">="),
    "is_finite": _is_finite,
    **_extrema("ogt", "olt"),
    "neg": _neg,
    "add": lambda x, y: _sum(x, y, ShaderValue.__add__),
    "sub": _sub,
    "div": lambda x, y: _opaque(x) / _incomparable(_opaque(y)),
}

#: Operations of float32 and float64; of bfloat16; and of float16, of whose equal zeros NumPy takes the first.
_FLOAT_OPERATIONS: dict[str, Operation] = {**exponential.FLOAT, **exponential.NATIVE_ONLY, **_FLOAT_OVERRIDES}
_BFLOAT16_OPERATIONS: dict[str, Operation] = {
    **exponential.FLOAT,
    **_FLOAT_OVERRIDES,
    "nextafter": _nextafter_half(BFLOAT16),
    "fma": _fma_bfloat16,
}
_FLOAT16_OPERATIONS: dict[str, Operation] = {
    **exponential.HALF,
    **_FLOAT_OVERRIDES,
    **_extrema("oge", "ole"),
    "nextafter": _nextafter_half(FLOAT16),
    "fma": _fma_float16,
}


# Integers, by the operations of `codegen.scalars`.
#
# Those of 8 and 16 bits are computed with in 32 bits, and `narrowed` afterwards. WGSL's `min` and `max` are not used: NVIDIA's compiler,
# for Hopper, takes the least of three negated numbers for another one. What % means for negative numbers is left to devices, so remainders
# are computed from quotients.

_POWER = """fn power_{0}(x: {0}, y: {0}) -> {0} {{
  var result = {0}(1);
  var square = x;
  var left = y;
  for (var i = 0u; i < {1}u; i++) {{
    if ((left & {0}(1)) != {0}(0)) {{ result *= square; }}
    square *= square;
    left = left >> 1u;
  }}
  return result;
}}"""


class ShaderIntegers(Integers):
    """Operations of integers of a dtype, in 32 bits or 64."""

    def quotient(self, x: ShaderValue, y: ShaderValue) -> ShaderValue:
        """Return x / y rounded toward zero, for y other than 0."""
        return x / y

    def power(self, x: ShaderValue, y: ShaderValue) -> ShaderValue:
        """Return x to the power of y, by a function of the module."""
        return x.call(x.f.helper(f"power_{x.type}", _POWER.format(x.type, x.bits)), y)

    def population_count(self, x: ShaderValue) -> ShaderValue:
        """Return how many of the dtype's bits are 1."""
        return self.unsigned_bits(x).call("countOneBits")

    def leading_zeros(self, x: ShaderValue) -> ShaderValue:
        """Return how many of the dtype's bits precede the highest 1."""
        # naga has no function for 64 bits.
        bits = self.unsigned_bits(x).as_type(f"u{x.bits}")
        if x.bits == 32:
            return bits.call("countLeadingZeros").as_type(x.type) - (32 - self.width)
        high, low = bits.shift_right(32).converted("u32"), bits.converted("u32")
        zeros = high.equals(0).select(low.call("countLeadingZeros") + 32, high.call("countLeadingZeros"))
        return zeros.converted(x.type)


@cache
def _integers(dtype: np.dtype) -> ShaderIntegers:
    return ShaderIntegers(dtype)


@cache
def _integer_operations(dtype: np.dtype) -> dict[str, Operation]:
    def outlined_cipher(formula: Operation, name: str) -> Operation:
        return lambda *words, word: outlined(f"{name}_{word}", partial(formula, word=word), *words)

    table = _integers(dtype).operations()
    ciphers = {name: outlined_cipher(table[name], name.removesuffix("_word")) for name in table if name.endswith("_word")}
    return {**table, **ciphers}


# Numbers of one dtype as numbers of another: by value, and by bits.


def convert(f: Function, x: Number, dtype: np.dtype) -> Number:
    """Convert the values as `convert_element_type` defines it."""
    if x.dtype == dtype:
        return x
    if x.dtype.kind != "c":
        real = _convert_real(ShaderValue(f, x.type, x.text), x.dtype, np.dtype(f"f{dtype.itemsize // 2}") if dtype.kind == "c" else dtype)
        if dtype.kind != "c":
            return Number(dtype, real.text)
        return Number(dtype, f.let(wgsl_type(dtype), f"{wgsl_type(dtype)}({real.text}, {real.zero().text})"))  # 0.0 x would be 0.0
    component = np.dtype(f"f{x.dtype.itemsize // 2}")
    re, im = [ShaderValue(f, wgsl_type(component), f"{x.text}.{c}") for c in "xy"]
    if dtype.kind == "b":
        return Number(dtype, (re.compare("une", 0.0) | im.compare("une", 0.0)).text)
    if dtype.kind == "c":
        return Number(dtype, f.let(wgsl_type(dtype), f"{wgsl_type(dtype)}({x.text})"))
    return Number(dtype, _convert_real(re, component, dtype).text)


def _convert_real(x: ShaderValue, old: np.dtype, new: np.dtype) -> ShaderValue:
    before, after, type_ = kind(old), kind(new), wgsl_type(new)
    if after == "bool":
        return x.compare("une" if before == "float" else "ne", 0)
    if before == "bool":  # compilers would take a literal zero times NaN for 0
        return x.select(*[x.opaque_number(x.f, type_, k) for k in (1, 0)]) if after == "float" else x.converted(type_)
    if before == "float":
        return _float_to_integer(x, new, type_) if after in ("int", "uint") else _float_to_float(x, new, type_)
    if after == "float":
        if new == BFLOAT16 and old.itemsize >= 4:
            x = with_sticky_bits(x, before == "int")
        return x.new(round_to_dtype(x.f, x.converted(type_).hidden().text, new), type_)  # compilers would take an index's 0 times NaN for 0
    wide = x.converted(f"{x.type[0]}{type_[1:]}")  # naga widens as the new type is signed
    return _integers(new).narrowed(wide.as_type(type_))


def _float_to_integer(x: ShaderValue, new: np.dtype, type_: str) -> ShaderValue:
    """Convert toward zero; NaN to 0, values out of range to the nearest bound."""
    # Values out of range are replaced before the conversion.
    info = np.iinfo(new)
    low, high = float(info.min), float(2.0**info.bits if new.kind == "u" else 2.0 ** (info.bits - 1))
    above, below = x.compare("oge", high), x.compare("ole", low)
    inside = above.select(0.0, below.select(0.0, x.is_nan().select(0.0, x)))
    integer = inside.converted(type_)
    return above.select(int(info.max), below.select(int(info.min), integer))


def _float_to_float(x: ShaderValue, new: np.dtype, type_: str) -> ShaderValue:
    if type_ == "f64" or x.type == "f32":
        wide = x.converted(type_)
        return wide.new(round_to_dtype(x.f, wide.text, new), type_)
    near = x.converted("f32")
    if new in (FLOAT16, BFLOAT16):
        near = rounded_to_odd(x, near, near.converted("f64"))
    return near.new(round_to_dtype(x.f, near.text, new), "f32")


def bitcast(f: Function, x: Number, dtype: np.dtype) -> Number:
    """Return the bits as a dtype of the same width."""
    width, type_ = 8 * dtype.itemsize, wgsl_type(dtype)
    if width >= 32:
        return Number(dtype, ShaderValue(f, x.type, x.text).as_type(type_).text)
    bits = x.text
    if kind(x.dtype) == "float":
        bits = f.let("u32", bits_of_half(f, x.text, x.dtype))
    elif kind(x.dtype) == "int":
        bits = f.let("u32", f"bitcast<u32>({x.text}) & {(1 << width) - 1}u")
    if dtype in (FLOAT16, BFLOAT16):
        return Number(dtype, f.let("f32", half_of_bits(f, bits, dtype)))
    return Number(dtype, _integers(dtype).narrowed(ShaderValue(f, "u32", bits).as_type(type_)).text)


# Elementwise primitives by name, in WGSL.

#: As formulas have them, but for comparisons, which compilers take to hold between a number and itself.
_COMPLEX: dict[str, ComplexFormula] = {
    **COMPLEX,
    "eq": lambda x, y: guarded_comparison("==")(x.re, y.re) & guarded_comparison("==")(x.im, y.im),
    "minus_itself": lambda x: Complex(*[_FLOAT_OPERATIONS["sub"](component, component) for component in x]),
    "ne": lambda x, y: ~(guarded_comparison("==")(x.re, y.re) & guarded_comparison("==")(x.im, y.im)),
}

#: Operations that compilers simplify, if one operand is a literal, as if the other one were finite.
_COMPLEX_UNSAFE = ("mul", "div", "pow")

#: Operations that Mesa's compiler computes wrongly even if only one operand is a literal: the remainder of inf by 0.0, that of 0.0 by NaN.
_UNSAFE = ("rem",)


def supports(op: str, in_dtypes: Sequence[np.dtype], params: Mapping[str, Any], capabilities: TargetCapabilities) -> bool:
    """Return True if `apply` can write the primitive for these dtypes on a device."""
    return scalars.supports(op, in_dtypes, params, lambda dtype: is_supported(dtype, capabilities), _COMPLEX, _operation)


@cache
def _operation(op: str, dtype: np.dtype) -> Operation | None:
    category = kind(dtype)
    if category != "float":
        return (BOOL if category == "bool" else _integer_operations(dtype)).get(op)
    formula = PRIMITIVES[op].formula
    if formula is not None:
        return partial(outlined, op, formula)
    return {FLOAT16: _FLOAT16_OPERATIONS, BFLOAT16: _BFLOAT16_OPERATIONS}.get(dtype, _FLOAT_OPERATIONS).get(op)


def apply(f: Function, op: str, operands: Sequence[Number], dtype: np.dtype, params: Mapping[str, Any]) -> Number:
    """Apply an elementwise primitive that `supports` accepts; return `dtype`."""
    if op in _UNSAFE or all(x.value is not None for x in operands):
        operands = [x if x.value is None else opaque_literal(f, x) for x in operands]
    special = _NUMBER_OPERATIONS.get(op)
    if special is not None:
        return special(f, operands, dtype)
    before = operands[0].dtype
    if before.kind == "c":
        if op in _COMPLEX_UNSAFE:
            operands = [x if x.value is None else opaque_literal(f, x) for x in operands]
        elif op == "sub" and operands[0].text == operands[1].text:
            op, operands = "minus_itself", operands[:1]
        return _apply_complex(f, op, operands, dtype, params)
    lanes = [ShaderValue(f, x.type, x.text).opaque_non_finite() for x in operands]
    if op == "rem" and before.kind == "f" and lanes[0].text == lanes[1].text:
        lanes[1] = lanes[1].opaque()  # NVIDIA's compiler folds the remainder of a number by itself to 0
    operation = _operation(op, before)
    assert operation is not None, f"{op} is not supported for {before}"
    result = operation(*lanes, **params)
    exact = op in EXACT or dtype not in (FLOAT16, BFLOAT16)
    return Number(dtype, result.text if exact else round_to_dtype(f, result.text, dtype))


def is_long(op: str, dtype: np.dtype) -> bool:
    """Return True if a primitive's code is written once for several lanes."""
    # Compilers take seconds for copies of such long code.
    return PRIMITIVES[op].formula in PAIRED and kind(dtype) == "float"


def _apply_complex(f: Function, op: str, operands: Sequence[Number], dtype: np.dtype, params: Mapping[str, Any]) -> Number:
    """Apply a complex operation, which is a function of the module."""
    before, after = operands[0].type, wgsl_type(dtype)

    def body(inner: Function) -> tuple[str, str]:
        components = [[ShaderValue(inner, before[5:-1], f"a{k}.{c}") for c in "xy"] for k in range(len(operands))]
        result = _COMPLEX[op](*[Complex(*p) for p in components], **params)
        return after, f"{after}({result.re.text}, {result.im.text})" if isinstance(result, Complex) else result.text

    suffix = "".join(f"_{v}".replace("-", "minus_") for v in params.values())
    name = f.function(f"complex_{op}{suffix}_{before[5:-1]}", [before] * len(operands), body)
    return Number(dtype, f.let(after, f"{name}({', '.join(x.text for x in operands)})"))


def opaque_literal(f: Function, x: Number) -> Number:
    """Return a literal as a number that compilers cannot fold."""
    # naga evaluates constant expressions, and refuses those that it cannot (the root of -1, the absolute value of a float64). Mesa's
    # compiler adds constants first, which loses the rounding errors that a formula computes by a sum with one of them.
    if x.type == "bool":
        return x
    if x.type[0] in "iu":
        return Number(x.dtype, f.let(x.type, x.text))
    if x.dtype.kind != "c":
        return Number(x.dtype, ShaderValue.opaque_number(f, x.type, x.value).text)
    components = [ShaderValue.opaque_number(f, x.type[5:-1], component).text for component in (x.value.real, x.value.imag)]
    return Number(x.dtype, f.let(x.type, f"{x.type}({components[0]}, {components[1]})"))


def opaque_float(f: Function, x: Number) -> Number:
    """Return a literal float, one of several choices, as an opaque number."""
    # Where compilers know that a zero is chosen, they take its product with NaN for 0.
    return opaque_literal(f, x) if x.value is not None and kind(x.dtype) in ("float", "complex") else x


def _select_n(f: Function, operands: Sequence[Number], dtype: np.dtype) -> Number:
    which, *cases = operands
    cases = [opaque_float(f, case) for case in cases]
    if which.dtype == np.bool_:
        return _chosen(f, which.text, cases[-1], cases[0])
    result = cases[0]
    for k, case in enumerate(cases[1:], 1):
        result = _chosen(f, f"{which.text} >= {k}i", case, result)
    return result


def _chosen(f: Function, condition: str, yes: Number, no: Number) -> Number:
    return Number(yes.dtype, f.let(yes.type, f"select({no.text}, {yes.text}, {condition})"))


#: Operations on numbers as they are, without operators.
_NUMBER_OPERATIONS: dict[str, Callable[[Function, Sequence[Number], np.dtype], Number]] = {
    "select_n": _select_n,
    "convert_element_type": lambda f, x, dtype: convert(f, x[0], dtype),
    "complex": lambda f, x, dtype: Number(dtype, f.let(wgsl_type(dtype), f"{wgsl_type(dtype)}({x[0].text}, {x[1].text})")),
    "bitcast_convert_type": lambda f, x, dtype: bitcast(f, x[0], dtype),
}


#: A number and its index: the state of argmax and argmin.
Indexed = tuple[Number, Number]


def combine(f: Function, reduction: Reduction, x: Number, y: Number) -> Number:
    """Combine two numbers, as a step of a reduction. Maxima and minima propagate NaN."""
    return apply(f, reduction.step, (x, y), x.dtype, {})


def combine_indexed(f: Function, reduction: Reduction, x: Indexed, y: Indexed) -> Indexed:
    """Return the result of a step of ``argmax`` or ``argmin``: a number and its index.

    Of equal numbers, and of NaNs, the first is chosen.
    """
    a, b = [ShaderValue(f, number.type, number.text) for number, _ in (x, y)]
    first = ShaderValue(f, y[1].type, y[1].text).below(ShaderValue(f, x[1].type, x[1].text))
    if kind(x[0].dtype) == "bool":
        better = ~a & b if reduction.step == "max" else a & ~b
        tie = ~(a ^ b)
    else:
        better, tie = b.above(a) if reduction.step == "max" else b.below(a), a.equals(b)
    if kind(x[0].dtype) == "float":
        a_nan, b_nan = a.is_nan(), b.is_nan()
        better, tie = better | (b_nan & ~a_nan), tie | (a_nan & b_nan)
    wins = (better | (tie & first)).text
    chosen = [Number(p.dtype, f.let(p.type, f"select({p.text}, {q.text}, {wins})")) for p, q in zip(x, y, strict=True)]
    return chosen[0], chosen[1]
