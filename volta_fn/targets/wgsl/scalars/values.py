"""Values with operators: `x * y + 1.0` writes the statements.

Compilers may assume that floats are real numbers, and do: Mesa's rewrites ``x != x`` as false, ``x - x`` and ``x * 0.0`` as 0 and
``(x + y) - y`` as x; NVIDIA's merges a comparison and a selection between the same numbers into one instruction, which ignores NaN, and a
product and a sum into one that rounds once. So NaN is detected by its bits, and formulas that compute rounding errors use a factor 1.0 that
no compiler can fold (`opaque_one`), or pass a number through an integer (`opaque`). Quotients and roots, of which WGSL promises only some
digits, are corrected by `fma` where it rounds once; where it does not, `fma` is computed from products and sums with their errors. Formulas
that need float64 compute in pairs of floats (`pairs`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from volta_fn.lazy_imports import deferred
from volta_fn.primitives.formulas.trigonometric import reduced_large
from volta_fn.primitives.formulas.values import Scalar, Values, exact_product
from volta_fn.targets.wgsl.scalars.number import (
    declare_bits_of_table,
    declare_fma,
    declare_near_quotient,
    declare_one,
    declare_quarters,
    declare_quotient,
    declare_root,
    literal,
)
from volta_fn.targets.wgsl.shader import BITS_F32, Function

#: The type of a pair of floats, and the module of its class, which is derived from `ShaderValue`.
PAIR = "vec2<f32>"
_PAIRS = deferred("volta_fn.targets.wgsl.scalars.pairs")

_OPERATORS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}

#: The most terms of a sum, or factors of a product, that are recorded.
_MOST_LEAVES = 16

_HALF_PI, _HALF_PI_REST = 1.57079637050628662109375, -4.371139000186241e-08


class ShaderValue(Values):
    """A name or a literal of a WGSL type, with operators that write to its function.

    A `Number` is an expression of a NumPy dtype, without operators.
    """

    __slots__ = ("f", "text", "type")

    #: Many devices have no float64, and to most it is slow.
    widens = False

    def __init__(self, f: Function, type_: str, text: str) -> None:
        self.f = f
        self.type = type_
        self.text = text

    @property
    def is_float(self) -> bool:
        """Whether it is a floating-point number."""
        return self.type[0] == "f"

    @property
    def bits(self) -> int:
        """The width."""
        return 1 if self.type == "bool" else int(self.type[1:])

    def choose_if_any(self, yes: Callable[..., Any], no: Callable[..., Any], *arguments: ShaderValue) -> Any:
        """Return the result of `choose`, for a condition that seldom holds, by a branch."""
        f, type_ = self.f, arguments[0].type
        result = f.var(type_, arguments[0].like(0).text)
        for head, way in ((f"if ({self.text})", yes), ("else", no)):
            with f.block(head):
                f.emit(f"{result} = {way(*arguments).text};")
        return self.new(result, type_)

    # making others

    def new(self, text: str, type_: str) -> ShaderValue:
        """Return a value of the function by its text."""
        return (_PAIRS.ShaderPair if type_ == PAIR else ShaderValue)(self.f, type_, text)

    def let(self, expression: str, type_: str = "") -> ShaderValue:
        """Return a value of the same type, or another."""
        return self.new(self.f.let(type_ or self.type, expression), type_ or self.type)

    def named(self) -> ShaderValue:
        """Return the value by a name."""
        # naga computes with literals itself, and refuses |x| of float64, or shifts by more bits than there are.
        return self if self.text.isidentifier() else self.let(self.text)

    def like(self, value: Scalar | ShaderValue) -> ShaderValue:
        """Return a Python number as one of this type; values are returned as they are."""
        if not isinstance(value, ShaderValue):
            return self.new(literal(self.type, value), self.type)
        return value if value.type == self.type else value.as_type(self.type)

    def as_type(self, type_: str) -> ShaderValue:
        """Return the bits as another type of this width."""
        return self if self.type == type_ else self.let(f"bitcast<{type_}>({self.text})", type_)

    def converted(self, type_: str) -> ShaderValue:
        """Return the value as WGSL converts it to another type."""
        if type_ == PAIR:
            return self.converted("f32").widened()
        return self if self.type == type_ else self.let(f"{type_}({self.text})", type_)

    # arithmetic

    def binary(self, operator: str, other: ShaderValue | Scalar) -> ShaderValue:
        """Emit an operation, as WGSL has it."""
        operator = "!=" if operator == "^" and self.type == "bool" else operator
        return self.let(f"{self.text} {operator} {self.like(other).text}")

    def __mul__(self, other: ShaderValue | Scalar) -> ShaderValue:
        if not self.is_float:
            return self.binary("*", other)
        return self.combined(self.like(other), self.f.factors, lambda x, y: x.opaque_factor().binary("*", y.opaque_factor()))

    def combined(
        self, other: ShaderValue, leaves: dict[str, frozenset[str]], combine: Callable[[ShaderValue, ShaderValue], ShaderValue]
    ) -> ShaderValue:
        """Return a sum or a product whose common `leaves` compilers do not combine."""
        # Compilers would cancel z in (x + z) - (y + z), though it may be NaN or infinite, and compute x * x in y * x * x, which may
        # overflow. So one operand is hidden. Leaves are the terms of sums, or the factors of products, by name.
        x, y = self, other
        of_x, of_y = [leaves.get(v.text) or frozenset((v.text.strip("(-)"),)) for v in (x, y)]
        if of_x & of_y and x.text != y.text:
            x, y = (x.hidden(), y) if x.text in leaves else (x, y.hidden())
        result = combine(x, y)
        if len(of_x | of_y) <= _MOST_LEAVES:
            leaves[result.text] = of_x | of_y | {result.text}
        return result

    def __truediv__(self, other: ShaderValue | Scalar) -> ShaderValue:
        if self.type != "f32" or not self.f.module.capabilities.fma:
            return self.binary("/", self.like(other).opaque_factor())
        return self.let(f"{declare_quotient(self.f)}({self.text}, {self.like(other).text})")

    def fast_log2(self) -> ShaderValue | None:
        """Return WGSL's own logarithm of a float32, which promises no more than this."""
        return self.call("log2") if self.type == "f32" else None

    def divide_bounded(self, other: ShaderValue) -> ShaderValue:
        """Return the quotient by a number between 1 and 2^60.

        The dividend is at most about 2^60.
        """
        if self.type != "f32" or not self.f.module.capabilities.fma:
            return self.binary("/", other)
        return self.let(f"{declare_near_quotient(self.f)}({self.text}, {other.text})")

    def __neg__(self) -> ShaderValue:
        return self.let(f"-{self.text}") if self.type[0] != "u" else self.like(0) - self

    def __invert__(self) -> ShaderValue:
        return self.let(f"!{self.text}" if self.type == "bool" else f"~{self.text}")

    def __lshift__(self, count: ShaderValue | Scalar) -> ShaderValue:
        return self.let(f"{self.text} << {self._count(count)}")

    def shift_right(self, count: ShaderValue | Scalar, *, signed: bool = False) -> ShaderValue:
        """Shift right; zeros or copies of the sign move in."""
        x = self.as_type(f"{'i' if signed else 'u'}{self.bits}")
        return x.let(f"{x.text} >> {self._count(count)}").as_type(self.type)

    @staticmethod
    def _count(count: ShaderValue | Scalar) -> str:
        if isinstance(count, ShaderValue):
            return f"u32({count.named().text})"
        return f"{count}u"

    # comparison

    def _compare(self, op: str, other: ShaderValue | Scalar) -> ShaderValue:
        return self.let(f"{self.text} {op} {self.like(other).text}", "bool")

    def compare(self, predicate: str, other: ShaderValue | Scalar) -> ShaderValue:
        """Compare by LLVM's predicates.

        They are ``olt``, ``une``, … for floats (o: and neither is NaN; u: or one is); ``eq``, ``slt``, ``ult``, … for integers.
        """
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
            return self.equals(other) | self.compare("uno", y)
        return self._compare(_OPERATORS[predicate[1:]], y)

    def below(self, other: ShaderValue | Scalar) -> ShaderValue:
        """Return self < other (of floats: false with NaN)."""
        # Infinity is compared by bits: compilers may assume that there is none.
        if is_infinity(other):
            return ~(self.is_nan() | self.equals(other))
        return self._compare("<", other)

    def above(self, other: ShaderValue | Scalar) -> ShaderValue:
        """Return self > other."""
        return self._compare(">", other)

    def equals(self, other: ShaderValue | Scalar) -> ShaderValue:
        """Return self == other."""
        if is_infinity(other):
            return self.as_bits()._compare("==", self.like(other).as_bits())
        return self._compare("==", other)

    def is_nan(self) -> ShaderValue:
        """Return whether it is NaN."""
        size, infinity = (0x7FFFFFFF, 0x7F800000) if self.bits == 32 else ((1 << 63) - 1, 0x7FF << 52)
        return (self.as_type(f"u{self.bits}") & size).above(infinity)

    def select(self, yes: ShaderValue | Scalar, no: ShaderValue | Scalar) -> ShaderValue:
        """Return `yes` where this condition holds, else `no`; one is no Python number."""
        model = yes if isinstance(yes, ShaderValue) else no
        assert isinstance(model, ShaderValue)
        return model.let(f"select({model.like(no).text}, {model.like(yes).text}, {self.text})")

    # floats

    def call(self, name: str, *others: ShaderValue | Scalar) -> ShaderValue:
        """Call a function of this value and others, of its type."""
        first = self.named() if self.type == "f64" else self
        return self.let(f"{name}({', '.join([first.text, *[self.like(o).text for o in others]])})")

    def fma(self, factor: ShaderValue | Scalar, addend: ShaderValue | Scalar) -> ShaderValue:
        """Return self * factor + addend, rounded once."""
        name = "fma" if self.f.module.capabilities.fma else declare_fma(self.f, self.type)
        return self.call(name, factor, addend)

    def mad(self, factor: ShaderValue | Scalar, addend: ShaderValue | Scalar) -> ShaderValue:
        """Return self * factor + addend, rounded once or twice."""
        return self.call("fma", factor, addend)

    def max_keep_nan(self, low: Scalar) -> ShaderValue:
        """Return the larger of the float and `low`; NaN stays NaN."""
        return self.is_nan().select(self, super().max_keep_nan(low))

    def min_keep_nan(self, high: Scalar) -> ShaderValue:
        """Return the lesser of the float and `high`; NaN stays NaN."""
        return self.is_nan().select(self, super().min_keep_nan(high))

    def clamped(self, low: Scalar, high: Scalar) -> ShaderValue:
        """Clamp the float to bounds; NaN stays NaN."""
        return self.is_nan().select(self, super().max_keep_nan(low).at_most(high))

    def bounded(
        self, low: Scalar, high: Scalar, function: Callable[[ShaderValue], ShaderValue], below: Scalar, above: Scalar
    ) -> ShaderValue:
        """Return a function of the float between bounds, else `below` or `above`.

        For NaN it is the function's result.
        """
        return self.below(low).select(below, self.above(high).select(above, function(self)))

    def opaque_one(self) -> ShaderValue:
        """Return 1.0 as a value that compilers cannot fold."""
        name = declare_one(self.f)
        return self.new(name if self.type == "f32" else f"{self.type}({name})", self.type)

    def opaque_non_finite(self) -> ShaderValue:
        """Return a literal infinity or NaN as a number that compilers cannot fold.

        Other values are returned as they are.

        NVIDIA's compiler assumes that there are none: of the lesser of inf * x and 1.0, in float64, a kernel stored nothing at all.
        """
        if not self.is_float or not self.text.startswith(("bitcast", BITS_F32)):
            return self
        return self._opaque_bits(self.text.partition("(")[2].removesuffix(")"))

    def opaque_factor(self) -> ShaderValue:
        """Return a literal factor as a number that compilers cannot fold.

        Other values are returned as they are, and so are 1.0 and -1.0. Compilers fold two constants in a chain of products into one: x *
        1e-30 * 1e-30 would be x * 0.0.
        """
        if not self.is_float or self.text[0].isalpha():
            return self.opaque_non_finite()
        value = float(self.text.strip("()").rstrip("lf"))
        return self if abs(value) == 1.0 else self.opaque_number(self.f, self.type, value)

    @classmethod
    def opaque_number(cls, f: Function, type_: str, value: Any) -> ShaderValue:
        """Return a float of a type as a number that compilers cannot fold."""
        bits = np.asarray(value).astype(type_.replace("f", "float")).view(type_.replace("f", "uint"))
        return cls(f, type_, "")._opaque_bits(f"{bits}{'u' if type_ == 'f32' else 'lu'}")

    def _opaque_bits(self, bits: str, combine: str = "|") -> ShaderValue:
        """Return the float of these bits, combined with a zero that compilers cannot fold."""
        zero = f"(bitcast<u32>({declare_one(self.f)}) ^ 0x3f800000u)"
        return self.let(f"bitcast<{self.type}>({bits} {combine} {zero if self.type == 'f32' else f'u64{zero}'})")

    def opaque(self) -> ShaderValue:
        """Return the same number, hidden from compilers that simplify sums."""
        # A factor of 1.0 does not suffice for 32 bits: Mesa's compiler takes a common factor out of a sum, and so folded the rounding
        # errors of `exact_sum` to 0.
        return self.hidden() if self.bits >= 32 else self.binary("*", self.opaque_one())

    def hidden(self) -> ShaderValue:
        """Return the same number, about which compilers can assume nothing."""
        # It passes through a sum of integers, which differs from the expression of `opaque_number`.
        return self._opaque_bits(f"bitcast<u{self.bits}>({self.text})", "+")

    def zero(self) -> ShaderValue:
        """Return 0.0 as a value that compilers cannot fold."""
        return self.opaque_one() - 1.0

    def abs(self) -> ShaderValue:
        """Return |self|."""
        return self.call("abs")

    def sqrt(self) -> ShaderValue:
        """Return the square root, correctly rounded."""
        if self.type != "f32" or not self.f.module.capabilities.fma:
            return self.call("sqrt").hidden()
        return self.call(declare_root(self.f))

    def nearest(self) -> ShaderValue:
        """Return the nearest integer, halves to even."""
        if self.type == "f32":
            return self.call("round")
        integral = self.trunc()
        rest, half = (self - integral).abs(), integral * 0.5
        further = rest.above(0.5) | (rest.equals(0.5) & half.trunc().compare("one", half))
        return further.select(integral.abs() + 1.0, integral.abs()).copysign(self)

    def floor(self) -> ShaderValue:
        """Return the largest integer not above."""
        if self.type == "f32":
            return self.call("floor")
        integral = self.trunc()
        return integral.above(self).select(integral - 1.0, integral)

    def trunc(self) -> ShaderValue:
        """Return the integer toward zero."""
        if self.type == "f32":
            return self.call("trunc")
        bits = self.as_bits()
        exponent = (bits.shift_right(52) & 0x7FF) - 1023
        bounded = exponent.below(0).select(0, exponent.above(52).select(52, exponent))
        integral = (bits & ~(self.like(0.0).as_bits() + (1 << 52) - 1).shift_right(bounded)).as_float()
        return exponent.below(0).select(self.like(0.0).copysign(self), integral)

    def round_half_away(self) -> ShaderValue:
        """Return the nearest integer, halves away from zero."""
        integral = self.trunc()
        further = (self - integral).abs().compare("oge", 0.5)
        return further.select(integral.abs() + 1.0, integral.abs()).copysign(self)

    def ceil(self) -> ShaderValue:
        """Return the smallest integer not below."""
        return self.call("ceil") if self.type == "f32" else -(-self).floor()

    def copysign(self, model: ShaderValue | Scalar) -> ShaderValue:
        """Return |self| with another's sign."""
        least = 1 << (self.bits - 1)
        sign = self.like(model).as_bits() & least
        return ((self.as_bits() & (least - 1)) | sign).as_float()

    def as_bits(self) -> ShaderValue:
        """Return a float's bits as an integer."""
        return self.as_type(f"i{self.bits}")

    def as_float(self) -> ShaderValue:
        """Return an integer's bits as a float."""
        return self.as_type(f"f{self.bits}")

    def widened(self) -> ShaderValue:
        """Return float32 as a pair of floats."""
        return self.new(f"{PAIR}({self.text}, 0.0f)", PAIR)

    def narrowed(self) -> ShaderValue:
        """Return a pair of floats as float32."""
        return self

    def as_integer(self) -> ShaderValue:
        """Return an integral float as a signed integer of the same width."""
        return self.converted(f"i{self.bits}")

    def to_float(self) -> ShaderValue:
        """Convert a non-negative integer to a float of the same width."""
        return self.as_type(f"u{self.bits}").converted(f"f{self.bits}")

    def bits_of_table(self, name: str, table: bytes) -> ShaderValue:
        """Return the 64 bits of a constant that begin at the byte of this number."""
        return self.call(declare_bits_of_table(self.f, name, table))

    # integral numbers in floats: GPUs convert few numbers at a time, and add many

    def plus_magic(self, magic: float) -> ShaderValue:
        """Return the sum with a magic number, which compilers keep."""
        return self.mad(self.opaque_one(), magic)

    @property
    def flushes(self) -> bool:
        """Whether subnormal numbers are zeros."""
        return self.type == "f32" and not self.f.module.capabilities.subnormals

    def ldexp_normal(self, n: ShaderValue) -> ShaderValue:
        """Return self 2^n, where operand and result are normal numbers.

        n is an integer modulo some power of two.
        """
        return self.mad(self.zero(), super().ldexp_normal(n))

    def quarter_periods(self) -> tuple[ShaderValue, ShaderValue, ShaderValue]:
        """Return (quarters, r, rest), self = r + rest + quarters pi/2, |r| <= pi/4.

        Quarters are integers, up to multiples of 4.
        """
        if self.bits == 64:
            quarters, r, rest = reduced_large(self)
            return quarters, self.abs().below(math.inf).select(r, math.nan), rest
        reduced = self.let(f"{declare_quarters(self.f)}({self.text})", "vec3<f32>")
        quarters, high, low = [self.new(f"{reduced.text}.{c}", "f32") for c in "xyz"]
        r, error = exact_product(high, _HALF_PI)
        return quarters.as_integer(), r, error + low.mad(_HALF_PI, high * _HALF_PI_REST)

    # control flow

    def if_any(self, name: str, write: Callable[..., Any], arguments: Sequence[ShaderValue], usual: ShaderValue) -> ShaderValue:
        """Return ``write(*arguments)`` where this condition holds, else `usual`.

        The code of `write` is outlined as cold, and runs only if the condition holds for any lane.
        """
        result = usual.new(self.f.var(usual.type, usual.text), usual.type)
        with self.f.block(f"if ({self.text})"):
            self.f.emit(f"{result.text} = {outlined(name, write, *arguments).text};")
        return result

    def iterated(self, count: int | ShaderValue, step: Callable[..., Sequence[ShaderValue]], *start: ShaderValue) -> Sequence[ShaderValue]:
        """Return the values after `count` steps ``values = step(k, *values)``.

        k is the iteration's number, of this type of float.
        """
        results = [x.new(self.f.var(x.type, x.text), x.type) for x in start]
        with self.f.loop(count if isinstance(count, int) else f"u32({count.narrowed().text})") as k:
            before = [x.let(x.text) for x in results]
            for x, after in zip(results, step(self.new(k, "u32").converted(self.type), *before), strict=True):
                self.f.emit(f"{x.text} = {after.text};")
        return results

    def outline(self, name: str, formula: Callable[..., Any], *others: ShaderValue) -> Any:
        """Return ``formula(self, *others)``, by a function call where that saves code."""
        return outlined(name, formula, self, *others)


def is_infinity(value: ShaderValue | Scalar) -> bool:
    """Return True for Python's positive infinity."""
    return isinstance(value, float) and math.isinf(value) and value > 0


def outlined(name: str, write: Callable[..., Any], *args: ShaderValue) -> ShaderValue:
    """``write(*args)``, as a call of a function that the module has once per type."""
    types = [a.type for a in args]

    def body(f: Function) -> tuple[str, str]:
        result = write(*[type(a)(f, a.type, f"a{k}") for k, a in enumerate(args)])
        return result.type, result.text

    symbol = args[0].f.function(f"{name.replace('.', '_')}_{'pair' if types[0] == PAIR else types[0]}", types, body)
    return args[0].call(symbol, *args[1:])
