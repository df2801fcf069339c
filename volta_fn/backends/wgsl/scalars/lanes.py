"""Values with operators: `x * y + 1.0` writes the statements.

Compilers may assume that floats are real numbers, and do: Mesa's turn ``x != x`` into false, ``x - x`` and ``x * 0.0`` into 0 and
``(x + y) - y`` into x. So NaN is told by its bits, and where a rounding error is what is wanted, there is a factor that is 1.0 but that no
compiler knows (`one`). Quotients and roots, of which WGSL promises only some digits, get a correction where `fma` rounds once; where it
does not, `fma` is made of products and sums with their errors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from volta_fn.backends.wgsl.scalars.number import literal
from volta_fn.backends.wgsl.text import Function

Scalar = float | int | bool

#: A number that is 1.0, which `Shader` sets.
ONE = "one"

_FMA = """fn fma_once(x: f32, y: f32, z: f32) -> f32 {
  let product = x * y;
  let x1 = bitcast<f32>(bitcast<u32>(x) & 0xfffff000u);
  let y1 = bitcast<f32>(bitcast<u32>(y) & 0xfffff000u);
  let x2 = x - x1;
  let y2 = y - y1;
  let lost = (((x1 * y1 - product) + x1 * y2) + x2 * y1) + x2 * y2;
  let total = product + z;
  let part = total * one - product;
  let lost_too = (product - (total * one - part)) + (z - part);
  let result = total + (lost + lost_too);
  return select(total, result, (bitcast<u32>(result) & 0x7fffffffu) < 0x7f800000u);
}"""

_QUOTIENT = """fn quotient(x: f32, y: f32) -> f32 {
  let near = x / y;
  let better = fma(fma(-near, y, x), 1.0f / y, near);
  return select(near, better, max(abs(near), abs(y)) < 0x1p100f && min(abs(near), abs(y)) > 0x1p-100f && abs(x) > 0x1p-100f);
}"""

_ROOT = """fn root(x: f32) -> f32 {
  let near = sqrt(x);
  let better = fma(fma(-near, near, x), 0.5f / near, near);
  return select(near, better, x > 0x1p-100f && x < 0x1p127f);
}"""


class Lanes(NamedTuple):
    """A value (a name or a literal) of a WGSL type, and the function that it belongs to. Python numbers stand for values of its type."""

    f: Function
    type: str
    text: str

    @property
    def is_float(self) -> bool:
        """Whether it is a floating-point number."""
        return self.type[0] == "f"

    @property
    def bits(self) -> int:
        """The width."""
        return 1 if self.type == "bool" else int(self.type[1:])

    # making others

    def new(self, text: str, type_: str) -> Lanes:
        """A value of the function by its text."""
        return Lanes(self.f, type_, text)

    def let(self, expression: str, type_: str = "") -> Lanes:
        """A value of the same type, or another."""
        return Lanes(self.f, type_ or self.type, self.f.let(type_ or self.type, expression))

    def like(self, value: Scalar | Lanes) -> Lanes:
        """A Python number as one of this type; values are as they are, integers of this signedness."""
        if not isinstance(value, Lanes):
            return Lanes(self.f, self.type, literal(self.type, value))
        return value if value.type == self.type else value.as_type(self.type)

    def as_type(self, type_: str) -> Lanes:
        """The bits as another type of this width."""
        return self if self.type == type_ else self.let(f"bitcast<{type_}>({self.text})", type_)

    def converted(self, type_: str) -> Lanes:
        """The value as WGSL converts it to another type."""
        return self if self.type == type_ else self.let(f"{type_}({self.text})", type_)

    # arithmetic

    def _binary(self, op: str, other: Lanes | Scalar) -> Lanes:
        return self.let(f"{self.text} {op} {self.like(other).text}")

    def __add__(self, other: Lanes | Scalar) -> Lanes:  # type: ignore[override]  # tuples add otherwise
        return self._binary("+", other)

    def __sub__(self, other: Lanes | Scalar) -> Lanes:
        return self._binary("-", other)

    def __mul__(self, other: Lanes | Scalar) -> Lanes:  # type: ignore[override]  # tuples multiply otherwise
        return self._binary("*", other)

    def __truediv__(self, other: Lanes | Scalar) -> Lanes:
        if self.type != "f32" or not self.f.module.facts.fma:
            return self._binary("/", other)
        return self.let(f"{self.f.helper('quotient', _QUOTIENT)}({self.text}, {self.like(other).text})")

    def __radd__(self, other: Scalar) -> Lanes:
        return self.like(other) + self

    def __rsub__(self, other: Scalar) -> Lanes:
        return self.like(other) - self

    def __rmul__(self, other: Scalar) -> Lanes:  # type: ignore[override]  # tuples multiply otherwise
        return self.like(other) * self

    def __rtruediv__(self, other: Scalar) -> Lanes:
        return self.like(other) / self

    def __neg__(self) -> Lanes:
        return self.let(f"-{self.text}") if self.type[0] != "u" else self.like(0) - self

    def __and__(self, other: Lanes | Scalar) -> Lanes:
        return self._binary("&", other)

    def __or__(self, other: Lanes | Scalar) -> Lanes:
        return self._binary("|", other)

    def __xor__(self, other: Lanes | Scalar) -> Lanes:
        return self._binary("!=" if self.type == "bool" else "^", other)

    def __invert__(self) -> Lanes:
        return self.let(f"!{self.text}" if self.type == "bool" else f"~{self.text}")

    def __lshift__(self, count: Lanes | Scalar) -> Lanes:
        return self.let(f"{self.text} << {self._count(count)}")

    def shift_right(self, count: Lanes | Scalar, *, signed: bool = False) -> Lanes:
        """The bits moved right; what moves in is zeros, or copies of the sign."""
        x = self.as_type(f"{'i' if signed else 'u'}{self.bits}")
        return x.let(f"{x.text} >> {self._count(count)}").as_type(self.type)

    @staticmethod
    def _count(count: Lanes | Scalar) -> str:
        if isinstance(count, Lanes):
            wide = count.text.removesuffix("lu")
            return f"{wide}u" if wide.isdigit() else f"u32({count.text})"  # naga converts no literals of 64 bits
        return f"{count}u"

    # comparison

    def _compare(self, op: str, other: Lanes | Scalar) -> Lanes:
        return self.let(f"{self.text} {op} {self.like(other).text}", "bool")

    def compare(self, predicate: str, other: Lanes | Scalar) -> Lanes:
        """As LLVM has it: ``olt``, ``une``, … for floats; ``eq``, ``slt``, ``ult``, … for integers."""
        y = self.like(other)
        if predicate in ("eq", "ne"):
            return self._compare(_OPERATORS[predicate], y)
        if not self.is_float:
            type_ = f"{'i' if predicate[0] == 's' else 'u'}{self.bits}"
            return self.as_type(type_)._compare(_OPERATORS[predicate[1:]], y.as_type(type_))
        if predicate == "uno":
            return self.is_nan() if self.text == y.text else self.is_nan() | y.is_nan()
        if predicate == "une":
            return ~self._compare("==", y)
        if predicate == "one":
            return self._compare("<", y) | self._compare(">", y)
        if predicate == "ueq":
            return self._compare("==", y) | self.compare("uno", y)
        return self._compare(_OPERATORS[predicate[1:]], y)

    def below(self, other: Lanes | Scalar) -> Lanes:
        """self < other (of floats: false with NaN)."""
        return self._compare("<", other)

    def above(self, other: Lanes | Scalar) -> Lanes:
        """self > other."""
        return self._compare(">", other)

    def equals(self, other: Lanes | Scalar) -> Lanes:
        """self == other."""
        return self._compare("==", other)

    def is_nan(self) -> Lanes:
        """Whether it is not a number."""
        size, infinity = (0x7FFFFFFF, 0x7F800000) if self.bits == 32 else ((1 << 63) - 1, 0x7FF << 52)
        return (self.as_type(f"u{self.bits}") & size).above(infinity)

    def select(self, yes: Lanes | Scalar, no: Lanes | Scalar) -> Lanes:
        """`yes` where this condition holds, else `no`; one of them is `Lanes`."""
        model = yes if isinstance(yes, Lanes) else no
        assert isinstance(model, Lanes)
        return model.let(f"select({model.like(no).text}, {model.like(yes).text}, {self.text})")

    # floats

    def call(self, name: str, *others: Lanes | Scalar) -> Lanes:
        """A function of this value and others, of its type."""
        return self.let(f"{name}({', '.join([self.text, *[self.like(o).text for o in others]])})")

    def fma(self, factor: Lanes | Scalar, addend: Lanes | Scalar) -> Lanes:
        """self * factor + addend, rounded once (float64: if the device does so)."""
        if self.f.module.facts.fma or self.type != "f32":
            return self.call("fma", factor, addend)
        self.one()
        return self.call(self.f.helper("fma_once", _FMA), factor, addend)

    def one(self) -> Lanes:
        """1.0, of which compilers do not know that it is."""
        self.f.module.declare(ONE, f"var<private> {ONE}: f32;")
        return Lanes(self.f, self.type, ONE if self.type == "f32" else f"{self.type}({ONE})")

    def zero(self) -> Lanes:
        """0.0, of which compilers do not know that it is."""
        return self.one() - 1.0

    def abs(self) -> Lanes:
        """|self|."""
        return self.call("abs")

    def sqrt(self) -> Lanes:
        """The square root."""
        if self.type != "f32" or not self.f.module.facts.fma:
            return self.call("sqrt")
        return self.call(self.f.helper("root", _ROOT))

    def nearest(self) -> Lanes:
        """The nearest whole number, halves to even. (Mesa's ``round`` of float64 is another.)"""
        if self.type == "f32":
            return self.call("round")
        whole = self.trunc()
        rest, half = (self - whole).abs(), whole * 0.5
        further = rest.above(0.5) | (rest.equals(0.5) & half.trunc().compare("one", half))
        return further.select(whole.abs() + 1.0, whole.abs()).signed(self)

    def floor(self) -> Lanes:
        """The largest whole number not above."""
        return self.call("floor")

    def trunc(self) -> Lanes:
        """The whole number toward zero."""
        return self.call("trunc")

    def signed(self, model: Lanes | Scalar) -> Lanes:
        """|self| with another's sign."""
        least = 1 << (self.bits - 1)
        sign = self.like(model).as_bits() & least
        return ((self.as_bits() & (least - 1)) | sign).as_float()

    def at_most(self, bound: Lanes | Scalar) -> Lanes:
        """The lesser of two floats: `bound` if either is NaN, and if they are equal."""
        return self.below(bound).select(self, bound)

    def at_least(self, bound: Lanes | Scalar) -> Lanes:
        """The larger of two floats: `bound` if either is NaN, and if they are equal."""
        return self.above(bound).select(self, bound)

    def floored(self, low: Scalar) -> Lanes:
        """The float, or `low` where it is less; NaN stays."""
        return self.below(low).select(low, self)

    def capped(self, high: Scalar) -> Lanes:
        """The float, or `high` where it is more; NaN stays."""
        return self.above(high).select(high, self)

    def clamped(self, low: Scalar, high: Scalar) -> Lanes:
        """The float between bounds; NaN stays."""
        return self.floored(low).capped(high)

    def as_bits(self) -> Lanes:
        """A float's bits as a signed integer."""
        return self.as_type(f"i{self.bits}")

    def as_float(self) -> Lanes:
        """An integer's bits as a float."""
        return self.as_type(f"f{self.bits}")

    def polynomial(self, coefficients: Sequence[Scalar]) -> Lanes:
        """The polynomial with these coefficients, highest power first, by Horner's rule."""
        result = self.like(coefficients[0])
        for coefficient in coefficients[1:]:
            result = result.call("fma", self, coefficient)
        return result


_OPERATORS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
