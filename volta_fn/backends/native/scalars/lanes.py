"""Vectors of machine numbers with operators: `x * y + 1.0` writes the instructions.

`Lanes` is a `Value` in the function that is being written. Operators write the plain instruction for its type: nothing is contracted or
reassociated. Python numbers stand for vectors of copies. Comparisons are methods, and give vectors of i1.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from volta_fn.backends.native.llvm.text import Function, Value, element_of, lanes_of, vector_of

Scalar = float | int | bool
FLOATS = ("half", "float", "double")
_BITS = {"half": 16, "float": 32, "double": 64}


def bits_of(type_: str) -> int:
    """The width of an element of a type."""
    element = element_of(type_)
    return _BITS.get(element) or int(element[1:])


def literal(element: str, value: Scalar) -> str:
    """A constant's text."""
    if element == "i1":
        return "true" if value else "false"
    if element == "half":
        return f"0xH{np.float16(value).view(np.uint16):04X}"
    if element == "float":
        value = float(np.float32(value))
    if element in FLOATS:
        return f"0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016X}"
    width = bits_of(element)
    wrapped = int(value) & ((1 << width) - 1)
    return str(wrapped - (1 << width) if wrapped >> (width - 1) else wrapped)


def overload(type_: str) -> str:
    """A type as intrinsics have it in their names: f32, v16f32, v8i64, …"""
    element, lanes = element_of(type_), lanes_of(type_)
    short = f"f{bits_of(element)}" if element in FLOATS else element
    return f"v{lanes}{short}" if lanes > 1 else short


class Lanes(NamedTuple):
    """A value and the function that it belongs to."""

    f: Function
    value: Value

    @property
    def type(self) -> str:
        """Its LLVM type."""
        return self.value.type

    @property
    def lanes(self) -> int:
        """How many numbers it holds."""
        return lanes_of(self.type)

    @property
    def is_float(self) -> bool:
        """Whether its elements are floating-point numbers."""
        return element_of(self.type) in FLOATS

    @property
    def bits(self) -> int:
        """The width of an element."""
        return bits_of(self.type)

    # making others

    def new(self, value: Value) -> Lanes:
        """Another value of the function."""
        return Lanes(self.f, value)

    def like(self, value: Scalar | Lanes, element: str = "") -> Lanes:
        """Copies of a Python number as elements of this type, or of another; values are as they are."""
        if isinstance(value, Lanes):
            return value
        element = element or element_of(self.type)
        return self.new(self.f.splat(Value(element, literal(element, value)), self.lanes))

    def of(self, element: str) -> str:
        """The type of as many elements of another type."""
        return vector_of(element, self.lanes)

    def integer(self) -> str:
        """The type of as many integers of the same width."""
        return self.of(f"i{self.bits}")

    def intrinsic(self, name: str, *others: Lanes | Scalar) -> Lanes:
        """The intrinsic ``llvm.name`` of this type, of this value and others."""
        values = [self.value, *[self.like(o).value for o in others]]
        return self.new(self.f.intrinsic(f"llvm.{name}.{overload(self.type)}", self.type, *values))

    def cast(self, op: str, element: str) -> Lanes:
        """``sext``, ``fptosi``, ``bitcast``, … to elements of another type."""
        return self.new(self.f.cast(op, self.value, self.of(element)))

    # arithmetic

    def _binary(self, op: str, other: Lanes | Scalar) -> Lanes:
        return self.new(self.f.binary(op, self.value, self.like(other).value))

    def __add__(self, other: Lanes | Scalar) -> Lanes:  # type: ignore[override]  # tuples add otherwise
        return self._binary("fadd" if self.is_float else "add", other)

    def __sub__(self, other: Lanes | Scalar) -> Lanes:
        return self._binary("fsub" if self.is_float else "sub", other)

    def __mul__(self, other: Lanes | Scalar) -> Lanes:  # type: ignore[override]  # tuples multiply otherwise
        return self._binary("fmul" if self.is_float else "mul", other)

    def __truediv__(self, other: Lanes | Scalar) -> Lanes:
        return self._binary("fdiv", other)

    def __radd__(self, other: Scalar) -> Lanes:
        return self.like(other) + self

    def __rsub__(self, other: Scalar) -> Lanes:
        return self.like(other) - self

    def __rmul__(self, other: Scalar) -> Lanes:  # type: ignore[override]  # tuples multiply otherwise
        return self.like(other) * self

    def __rtruediv__(self, other: Scalar) -> Lanes:
        return self.like(other) / self

    def __neg__(self) -> Lanes:
        return self.new(self.f.let(self.type, f"fneg {self.value}")) if self.is_float else self.like(0) - self

    def __and__(self, other: Lanes | Scalar) -> Lanes:
        return self._binary("and", other)

    def __or__(self, other: Lanes | Scalar) -> Lanes:
        return self._binary("or", other)

    def __xor__(self, other: Lanes | Scalar) -> Lanes:
        return self._binary("xor", other)

    def __invert__(self) -> Lanes:
        return self ^ (self.bits == 1 or -1)

    def __lshift__(self, count: Lanes | Scalar) -> Lanes:
        return self._binary("shl", count)

    def shift_right(self, count: Lanes | Scalar, *, signed: bool = False) -> Lanes:
        """The bits moved right; what moves in is zeros, or copies of the sign."""
        return self._binary("ashr" if signed else "lshr", count)

    # comparison

    def compare(self, predicate: str, other: Lanes | Scalar) -> Lanes:
        """``olt``, ``une``, … for floats; ``eq``, ``slt``, ``ult``, … for integers."""
        op = "fcmp" if self.is_float else "icmp"
        return self.new(self.f.compare(f"{op} {predicate}", self.value, self.like(other).value))

    def below(self, other: Lanes | Scalar) -> Lanes:
        """self < other (of floats: false with NaN; of integers: as signed numbers)."""
        return self.compare("olt" if self.is_float else "slt", other)

    def above(self, other: Lanes | Scalar) -> Lanes:
        """self > other."""
        return self.compare("ogt" if self.is_float else "sgt", other)

    def equals(self, other: Lanes | Scalar) -> Lanes:
        """self == other."""
        return self.compare("oeq" if self.is_float else "eq", other)

    def is_nan(self) -> Lanes:
        """Whether it is not a number."""
        return self.compare("uno", self)

    def select(self, yes: Lanes | Scalar, no: Lanes | Scalar) -> Lanes:
        """`yes` where this condition holds, else `no`; one of them is `Lanes`."""
        model = yes if isinstance(yes, Lanes) else no
        assert isinstance(model, Lanes)
        return self.new(self.f.select(self.value, model.like(yes).value, model.like(no).value))

    def any(self) -> Value:
        """Whether the condition holds in any lane."""
        if self.lanes == 1:
            return self.value
        return self.f.intrinsic(f"llvm.vector.reduce.or.v{self.lanes}i1", "i1", self.value)

    def taken(self, order: Sequence[int], other: Lanes | None = None) -> Lanes:
        """Lanes of this vector and another (numbered on) in the given order."""
        picked = ", ".join(f"i32 {k}" for k in order)
        type_ = vector_of(element_of(self.type), len(order))
        second = f"{self.type} poison" if other is None else other.value
        return self.new(self.f.let(type_, f"shufflevector {self.value}, {second}, <{len(order)} x i32> <{picked}>"))

    # floats

    def fma(self, factor: Lanes | Scalar, addend: Lanes | Scalar) -> Lanes:
        """self * factor + addend, rounded once."""
        return self.intrinsic("fma", factor, addend)

    def abs(self) -> Lanes:
        """|self| of floats."""
        return self.intrinsic("fabs")

    def sqrt(self) -> Lanes:
        """The square root, correctly rounded."""
        return self.intrinsic("sqrt")

    def nearest(self) -> Lanes:
        """The nearest whole number, halves to even."""
        return self.intrinsic("rint")

    def floor(self) -> Lanes:
        """The largest whole number not above."""
        return self.intrinsic("floor")

    def trunc(self) -> Lanes:
        """The whole number toward zero."""
        return self.intrinsic("trunc")

    def signed(self, model: Lanes | Scalar) -> Lanes:
        """|self| with another's sign."""
        return self.intrinsic("copysign", model)

    def at_most(self, bound: Lanes | Scalar) -> Lanes:
        """The lesser of two floats: `bound` if either is NaN, and if they are equal."""
        return self.below(bound).select(self, bound)

    def at_least(self, bound: Lanes | Scalar) -> Lanes:
        """The larger of two floats: `bound` if either is NaN, and if they are equal."""
        return self.above(bound).select(self, bound)

    def floored(self, low: Scalar) -> Lanes:
        """The float, or `low` where it is less; NaN stays."""
        bound = self.like(low)
        return bound.above(self).select(bound, self)

    def capped(self, high: Scalar) -> Lanes:
        """The float, or `high` where it is more; NaN stays."""
        bound = self.like(high)
        return bound.below(self).select(bound, self)

    def clamped(self, low: Scalar, high: Scalar) -> Lanes:
        """The float between bounds; NaN stays."""
        return self.floored(low).capped(high)

    def as_bits(self) -> Lanes:
        """A float's bits as an integer."""
        return self.cast("bitcast", f"i{self.bits}")

    def as_float(self) -> Lanes:
        """An integer's bits as a float."""
        return self.cast("bitcast", {16: "half", 32: "float", 64: "double"}[self.bits])

    def polynomial(self, coefficients: Sequence[Scalar], square: Lanes | None = None) -> Lanes:
        """The polynomial with these coefficients, highest power first, by Horner's rule.

        Given the square, it is two, of the even and of the odd powers, which do not wait for each other.
        """
        if square is not None:
            count = len(coefficients)
            even, odd = coefficients[(count - 1) % 2 :: 2], coefficients[count % 2 :: 2]
            return square.polynomial(odd).fma(self, square.polynomial(even))
        result = self.like(coefficients[0])
        for coefficient in coefficients[1:]:
            result = result.fma(self, coefficient)
        return result


def inlined(name: str, write: Callable[..., Lanes], *args: Lanes) -> Lanes:
    """``write(*args)``, as a call of a function that the module has once per type, and that is inlined."""
    return _defined(name, "alwaysinline nounwind", write, args)


def outlined(name: str, write: Callable[..., Lanes], *args: Lanes) -> Lanes:
    """``write(*args)``, as a call of a function that is not inlined: what hardly ever runs should not be in the way."""
    return _defined(name, "noinline cold nounwind", write, args)


def _defined(name: str, attributes: str, write: Callable[..., Lanes], args: Sequence[Lanes]) -> Lanes:
    f = args[0].f
    symbol = f"vf.{name}.{overload(args[0].type)}"
    types: list[str] = []

    def define() -> None:
        parameters = [Value(a.type, f"%a{k}") for k, a in enumerate(args)]
        function = Function(f.module, symbol, parameters, "", attributes)
        result = write(*[Lanes(function, p) for p in parameters])
        function.result = f"internal {result.type}"
        function.finish(result.value)
        types.append(result.type)

    f.module.define(symbol, define)
    return Lanes(f, f.call(symbol, types[0] if types else args[0].type, *[a.value for a in args]))
