"""Pairs of floats: twice the digits of float32, in the same range."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from volta_fn.primitives.formulas.values import Scalar
from volta_fn.targets.wgsl.scalars.number import declare_fma, declare_one, declare_quotient, literal, opaque_count
from volta_fn.targets.wgsl.scalars.values import PAIR, ShaderValue, is_infinity, outlined
from volta_fn.targets.wgsl.shader import Function

# WGSL functions of pairs: sums and products with their rounding errors (Dekker 1971, Knuth).

#: Functions of pairs by name.
PAIRS = {
    "pair_opaque": """fn pair_opaque(x: f32) -> f32 {
  return bitcast<f32>(bitcast<u32>(x) + (bitcast<u32>(one) ^ 0x3f800000u));
}""",
    "pair_normal": """fn pair_normal(x: vec2<f32>) -> vec2<f32> {
  let total = pair_opaque(x.x + x.y);
  let is_finite = (bitcast<u32>(total) & 0x7f800000u) != 0x7f800000u;
  return select(vec2<f32>(x.x, 0.0f), vec2<f32>(total, x.y - (total - x.x)), is_finite);
}""",
    "pair_sum": """fn pair_sum(x: vec2<f32>, y: vec2<f32>) -> vec2<f32> {
  let total = pair_opaque(x.x + y.x);
  let added = pair_opaque(total - x.x);
  let error = (x.x - (total - added)) + (y.x - added);
  return pair_normal(vec2<f32>(total, error + (x.y + y.y)));
}""",
    "pair_product": """fn pair_product(x: vec2<f32>, y: vec2<f32>) -> vec2<f32> {
  let product = pair_opaque(x.x * y.x);
  return pair_normal(vec2<f32>(product, {fma}(x.x, y.x, -product) + (x.x * y.y + x.y * y.x)));
}""",
    "pair_fma": """fn pair_fma(x: vec2<f32>, y: vec2<f32>, z: vec2<f32>) -> vec2<f32> {
  let product = pair_opaque(x.x * y.x);
  let total = pair_opaque(product + z.x);
  let added = pair_opaque(total - product);
  let error = (product - (total - added)) + (z.x - added);
  return pair_normal(vec2<f32>(total, error + ({fma}(x.x, y.x, -product) + (x.x * y.y + x.y * y.x) + z.y)));
}""",
    "pair_quotient": """fn pair_quotient(x: vec2<f32>, y: vec2<f32>) -> vec2<f32> {
  let near = pair_opaque({quotient});
  let rest = {fma}(-near, y.x, x.x) + (x.y - near * y.y);
  return pair_normal(vec2<f32>(near, rest / y.x));
}""",
    "pair_root": """fn pair_root(x: vec2<f32>) -> vec2<f32> {
  let near = pair_opaque(sqrt(x.x));
  let rest = {fma}(-near, near, x.x) + x.y;
  return pair_normal(vec2<f32>(near, select(0.5f * rest / near, 0.0f, x.x == 0.0f)));
}""",
}


def declare_pair_function(f: Function, name: str) -> str:
    """Declare a function of `PAIRS`, and return its name.

    Sums pass through integers, as in `ShaderValue.opaque`. Where the second float of a result is not finite, it is 0.
    """
    declare_one(f)
    capabilities = f.module.capabilities
    names = {
        "fma": "fma" if capabilities.fma else declare_fma(f, "f32"),
        "quotient": f"{declare_quotient(f)}(x.x, y.x)" if capabilities.fma else "x.x / y.x",
    }
    for helper in ("pair_opaque", "pair_normal", name):
        text = PAIRS[helper]
        for key, value in names.items():
            text = text.replace(f"{{{key}}}", value)
        f.helper(helper, text)
    return name


_PAIR_POLYNOMIAL = """fn {0}(x: vec2<f32>, first: vec2<f32>) -> vec2<f32> {{
  var total = first;
  for (var k = 0u; k < {1}; k++) {{
    total = pair_fma(total, x, {2}[k]);
  }}
  return total;
}}"""


def declare_pair_table(f: Function, entries: Sequence[str]) -> str:
    """Declare an array of pairs in the memory of an invocation, and return its name."""
    text = ", ".join(entries)
    name, type_ = f"pair_table_{zlib.crc32(text.encode()):08x}", f"array<vec2<f32>, {len(entries)}>"
    return f.module.declare(name, f"var<private> {name}: {type_} = {type_}({text});")


def declare_pair_polynomial(f: Function, terms: Sequence[str]) -> str:
    """Declare the function that adds a polynomial's other terms by Horner's rule.

    Returns its name. Its arguments are x and the value of the first terms. A loop is compiled in a fraction of the time of its iterations
    one by one, into which compilers unroll what they can.
    """
    declare_pair_function(f, "pair_fma")
    table = declare_pair_table(f, terms)
    name = table.replace("table", "polynomial")
    return f.helper(name, _PAIR_POLYNOMIAL.format(name, opaque_count(f, len(terms)), table))


#: Fewer terms of a polynomial are written one by one.
_FEW_TERMS = 4


class ShaderPair(ShaderValue):
    """A number as the sum of two floats.

    The second one is at most half a unit in the last place of the first. Formulas see a float64, of which 46 bits are right, with the range
    of float32.
    """

    __slots__ = ()

    is_pair = True

    @property
    def is_float(self) -> bool:
        """Whether it is a floating-point number."""
        return True

    @property
    def bits(self) -> int:
        """The width of a float of as many digits."""
        return 64

    @property
    def flushes(self) -> bool:
        """Whether subnormal numbers are zeros; formulas that ask build numbers of bits."""
        return False

    def _component(self, name: str) -> ShaderValue:
        return ShaderValue(self.f, "f32", f"{self.text}.{name}")

    def _pair(self, high: ShaderValue, low: ShaderValue) -> ShaderPair:
        return ShaderPair(self.f, PAIR, self.f.let(PAIR, f"{PAIR}({high.text}, {low.text})"))

    def _call(self, name: str, *others: Any) -> ShaderPair:
        function = declare_pair_function(self.f, name) if name in PAIRS else name
        return ShaderPair(self.f, PAIR, self.f.let(PAIR, f"{function}({', '.join([self.text, *[self.like(o).text for o in others]])})"))

    def like(self, value: Any) -> Any:
        """Return a Python number, or a float32, as a pair; pairs are returned as they are."""
        if isinstance(value, ShaderValue):
            return value.converted(PAIR)
        high = np.float32(value)
        low = np.float32(value - float(high)) if np.isfinite(high) else np.float32(0)
        return ShaderPair(self.f, PAIR, f"{PAIR}({literal('f32', high)}, {literal('f32', low)})")

    def as_type(self, type_: str) -> Any:
        """Return the bits of the first float as an integer."""
        return self if type_ == PAIR else self.narrowed().as_type(type_)

    def named(self) -> ShaderValue:
        """Return the value itself."""
        return self

    def __add__(self, other: Any) -> Any:
        return self._call("pair_sum", other)

    def __sub__(self, other: Any) -> Any:
        return self._call("pair_sum", -other if isinstance(other, (ShaderValue, float, int)) else other)

    def __mul__(self, other: Any) -> Any:
        if isinstance(other, (float, int)) and math.frexp(other)[0] in (0.5, -0.5):
            return self.let(f"{self.text} * {literal('f32', other)}")
        return self._call("pair_product", other)

    def __truediv__(self, other: Any) -> Any:
        return self._call("pair_quotient", other)

    def fma(self, factor: Any, addend: Any) -> Any:
        """Return self * factor + addend."""
        return self._call("pair_fma", factor, addend)

    mad = fma

    def divide_bounded(self, other: Any) -> Any:
        """Return the quotient."""
        return self / other

    def product_error(self, factor: Any, product: Any) -> Any:
        """Return 0, as whose the error of a product counts."""
        return self.like(0.0)

    def opaque(self) -> Any:
        """Return it as it is: its functions hide what they must."""
        return self

    hidden = opaque

    def compare(self, predicate: str, other: Any) -> Any:
        """Compare by the first floats, and by the second ones where those are equal."""
        y = self.like(other)
        x_high, x_low, y_high, y_low = (v._component(c) for v in (self, y) for c in "xy")
        same = x_high.equals(y_high)
        if predicate in ("oeq", "une"):
            equal = same & x_low.equals(y_low)
            return equal if predicate == "oeq" else ~equal
        if predicate in ("one", "ueq"):
            differs = self.compare("olt", y) | self.compare("ogt", y)
            return differs if predicate == "one" else ~differs
        if predicate == "uno":
            return self.is_nan() | y.is_nan()
        strict = predicate[:2] + "t"
        return x_high.compare(strict, y_high) | (same & x_low.compare(predicate, y_low))

    def below(self, other: Any) -> Any:
        """Return self < other (false with NaN)."""
        return self.narrowed().below(other) if is_infinity(other) else self.compare("olt", other)

    def above(self, other: Any) -> Any:
        """Return self > other."""
        return self.compare("ogt", other)

    def equals(self, other: Any) -> Any:
        """Return self == other."""
        return self.narrowed().equals(other) if is_infinity(other) else self.compare("oeq", other)

    def is_nan(self) -> Any:
        """Return whether it is NaN."""
        return self._component("x").is_nan()

    def abs(self) -> Any:
        """Return |self|."""
        return self.copysign(1.0)

    def copysign(self, model: Any) -> Any:
        """Return |self| with another's sign."""
        high = self._component("x")
        new = high.copysign(self.like(model)._component("x"))
        flipped = (high.as_bits() ^ new.as_bits()).below(0)
        low = self._component("y")
        return self._pair(new, flipped.select(-low, low))

    def sqrt(self) -> Any:
        """Return the square root."""
        return self._call("pair_root")

    def _integral(self, rounded: Callable[[ShaderValue], ShaderValue]) -> Any:
        """Round the first float, and what is left."""
        high = self._component("x")
        whole = rounded(high)
        return self._pair(whole, rounded((high - whole) + self._component("y")))._call("pair_normal")

    def nearest(self) -> Any:
        """Return the nearest integer."""
        return self._integral(lambda x: x.nearest())

    def floor(self) -> Any:
        """Return the largest integer not above."""
        return self._integral(lambda x: x.floor())

    def ceil(self) -> Any:
        """Return the smallest integer not below."""
        return -(-self).floor()

    def trunc(self) -> Any:
        """Return the integer toward zero."""
        return self.abs().floor().copysign(self)

    def as_bits(self) -> Any:
        """Return the first float's bits as an integer."""
        return self.narrowed().as_bits()

    def widened(self) -> Any:
        """Return it as it is."""
        return self

    def narrowed(self) -> Any:
        """Return the nearest float32."""
        return self._component("x").let(f"{self.text}.x")

    def converted(self, type_: str) -> Any:
        """Return the value as another type."""
        return self if type_ == PAIR else self.narrowed().converted(type_)

    def as_integer(self) -> Any:
        """Return an integral float as a signed integer."""
        return self.narrowed().as_integer()

    def small_integer(self) -> Any:
        """Round a small number to an integer."""
        return self.narrowed().small_integer().widened()

    def round_scaled(self, factor: float, addend: float = 0.0, offset: int = 0) -> Any:
        """Return n = round(self * factor + addend) as a pair, n + offset as an integer."""
        n, integer = self.narrowed().round_scaled(factor, addend, offset)
        return n.widened(), integer

    def ldexp(self, n: Any) -> Any:
        """Return self 2^n of an integer n."""
        exponent = n.narrowed()
        return self._pair(self._component("x").ldexp(exponent), self._component("y").ldexp(exponent))

    def repeated(self, tables: Sequence[Sequence[float]], step: Callable[..., Sequence[Any]], *start: Any) -> Sequence[Any]:
        """Return the values after a step for each entry, by a loop."""
        # It is compiled in a fraction of the time.
        names = [declare_pair_table(self.f, [self.like(entry).text for entry in table]) for table in tables]

        def at(k: ShaderValue, *values: Any) -> Sequence[Any]:
            return step(*[self.let(f"{name}[u32({k.narrowed().text})]") for name in names], *values)

        return self.iterated(self.new(opaque_count(self.f, len(tables[0])), "u32"), at, *start)

    def outline_each(self, name: str, formula: Callable[..., Any], calls: Sequence[Sequence[Any]]) -> Sequence[Any]:
        """Return the formula of each tuple of operands, by a loop."""
        # Compilers copy a function to wherever it is called.
        f, type_ = self.f, f"array<{PAIR}, {len(calls)}>"
        operands = [f.var(type_, f"{type_}({', '.join(x.text for x in column)})") for column in zip(*calls, strict=True)]
        results = f.var(type_, f"{type_}()")
        with f.loop(opaque_count(f, len(calls))) as k:
            f.emit(f"{results}[{k}] = {outlined(name, formula, *[self.let(f'{x}[{k}]') for x in operands]).text};")
        return [self.let(f"{results}[{k}u]") for k in range(len(calls))]

    def quarter_periods(self) -> Any:
        """Return (quarters, r, rest) with self = r + rest + quarters pi/2.

        |self| is at least 2^-5.
        """
        quarters, r, rest = self._component("x").quarter_periods()
        return quarters, r.widened() + rest, self._component("y").widened()

    def polynomial(self, coefficients: Sequence[Scalar], square: Any = None) -> Any:
        """Evaluate a polynomial of |x| <= 1.

        Its first terms, as long as they are small, need only one float.
        """
        small = 2.0**-18 * max(map(abs, coefficients))
        first, total = 0, 0.0
        while first < len(coefficients) - 1 and total + abs(coefficients[first]) < small:
            total += abs(coefficients[first])
            first += 1
        result = self.narrowed().polynomial(coefficients[:first]).widened() if first else self.like(coefficients[0])
        rest = [self.like(c).text for c in coefficients[max(first, 1) :]]
        if len(rest) < _FEW_TERMS:
            for coefficient in coefficients[max(first, 1) :]:
                result = result.mad(self, coefficient)
            return result
        return self._call(declare_pair_polynomial(self.f, rest), result)
