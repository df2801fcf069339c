"""Numbers in registers: formulas that write instructions.

The first section has AVX-512's instructions that split floats into exponent and significand.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from volta_fn.primitives.formulas.trigonometric import reduced_large
from volta_fn.primitives.formulas.values import Scalar, Values
from volta_fn.runtime.llvm.host import host
from volta_fn.runtime.llvm.text import Function, Value, element_of, i64, lanes_of, vector_of

# AVX-512 instructions that split floats into exponent and significand.

#: The rounding mode that is set.
_CURRENT = Value("i32", "4")
#: A significand in [3/4, 3/2); NaN for negative numbers.
_FROM_THREE_QUARTERS = Value("i32", "15")
_WIDTH = {"float": 32, "double": 64}


def has_avx512(x: Value) -> bool:
    """Return True if AVX-512 applies to vectors such as `x` on this machine."""
    return host().vector_bytes == 64 and lanes_of(x.type) * _WIDTH[element_of(x.type)] >= 512


def avx512_scale(f: Function, x: Value, n: Value) -> Value:
    """Return x 2^n for integers n, rounded once."""
    return _by_register(f, "scalef", lambda a, b: [a, b, a, _all(a), _CURRENT], x, n)


def avx512_exponent(f: Function, x: Value) -> Value:
    """Return the exponent of |x| as a float: -inf of 0, inf of infinities."""
    return _by_register(f, "getexp", lambda a: [a, a, _all(a), _CURRENT], x)


def avx512_significand(f: Function, x: Value) -> Value:
    """Return the number in [3/4, 3/2) that is x times a power of 2.

    It is 1 for zeros and inf, NaN for negative numbers.
    """
    return _by_register(f, "getmant", lambda a: [a, _FROM_THREE_QUARTERS, a, _all(a), _CURRENT], x)


def _all(x: Value) -> Value:
    return Value(f"i{lanes_of(x.type)}", "-1")


def _by_register(f: Function, name: str, operands: Callable[..., list[Value]], *args: Value) -> Value:
    lanes, width = lanes_of(args[0].type), _WIDTH[element_of(args[0].type)]
    if lanes * width > 512:
        halves = [range(lanes // 2), range(lanes // 2, lanes)]
        low, high = [_by_register(f, name, operands, *[f.shuffle(a, half) for a in args]) for half in halves]
        return f.shuffle(low, range(lanes), high)
    suffix = "ps" if width == 32 else "pd"
    return f.intrinsic(f"llvm.x86.avx512.mask.{name}.{suffix}.512", args[0].type, *operands(*args))


# Vectors of machine numbers with operators: `x * y` writes the instruction.
#
# `Lanes` is a `Value` in the function that is being written. Operators write the plain instruction for its type: nothing is contracted or
# reassociated. Python numbers stand for vectors of copies. Comparisons are methods, and give vectors of i1.

FLOATS = ("half", "float", "double")
_BITS = {"half": 16, "float": 32, "double": 64}


def bits_of(type_: str) -> int:
    """Return the width of an element of a type."""
    element = element_of(type_)
    return _BITS.get(element) or int(element[1:])


def literal(element: str, value: Scalar) -> str:
    """Return a constant's text."""
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
    """Return a type as in intrinsics' names: f32, v16f32, v8i64."""
    element, lanes = element_of(type_), lanes_of(type_)
    short = f"f{bits_of(element)}" if element in FLOATS else element
    return f"v{lanes}{short}" if lanes > 1 else short


#: Instructions of integers; those of floats begin with an f.
_INSTRUCTIONS = {"+": "add", "-": "sub", "*": "mul", "/": "div", "&": "and", "|": "or", "^": "xor", "<<": "shl"}


class Lanes(Values):
    """A value and the function that it belongs to, with the operations of `Values`."""

    __slots__ = ("f", "value")

    def __init__(self, f: Function, value: Value) -> None:
        self.f = f
        self.value = value

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
        """Return another value of the function."""
        return Lanes(self.f, value)

    def like(self, value: Scalar | Lanes, element: str = "") -> Lanes:
        """Return copies of a Python number, as this type of element or another.

        Values are returned as they are.
        """
        if isinstance(value, Lanes):
            return value
        element = element or element_of(self.type)
        return self.new(self.f.splat(Value(element, literal(element, value)), self.lanes))

    def of(self, element: str) -> str:
        """Return the vector type with this number of lanes and another element type."""
        return vector_of(element, self.lanes)

    def integer(self) -> str:
        """Return the vector type of integers of the same width."""
        return self.of(f"i{self.bits}")

    def intrinsic(self, name: str, *others: Lanes | Scalar) -> Lanes:
        """Apply the intrinsic ``llvm.name`` of this type to this value and others."""
        values = [self.value, *[self.like(o).value for o in others]]
        return self.new(self.f.intrinsic(f"llvm.{name}.{overload(self.type)}", self.type, *values))

    def cast(self, op: str, element: str) -> Lanes:
        """``sext``, ``fptosi``, ``bitcast``, … to elements of another type."""
        return self.new(self.f.cast(op, self.value, self.of(element)))

    # arithmetic

    def binary(self, operator: str, other: Lanes | Scalar) -> Lanes:
        """Emit an operation of integers or floats."""
        instruction = _INSTRUCTIONS[operator]
        return self._instruction(f"f{instruction}" if self.is_float else instruction, other)

    def _instruction(self, name: str, other: Lanes | Scalar) -> Lanes:
        return self.new(self.f.binary(name, self.value, self.like(other).value))

    def __neg__(self) -> Lanes:
        return self.new(self.f.let(self.type, f"fneg {self.value}")) if self.is_float else self.like(0) - self

    def __invert__(self) -> Lanes:
        return self ^ (self.bits == 1 or -1)

    def shift_right(self, count: Lanes | Scalar, *, signed: bool = False) -> Lanes:
        """Shift right; zeros or copies of the sign move in."""
        return self._instruction("ashr" if signed else "lshr", count)

    # comparison

    def compare(self, predicate: str, other: Lanes | Scalar) -> Lanes:
        """``olt``, ``une``, … for floats; ``eq``, ``slt``, ``ult``, … for integers."""
        op = "fcmp" if self.is_float else "icmp"
        return self.new(self.f.compare(f"{op} {predicate}", self.value, self.like(other).value))

    def below(self, other: Lanes | Scalar) -> Lanes:
        """Return self < other (of floats: false with NaN; of integers: as signed numbers)."""
        return self.compare("olt" if self.is_float else "slt", other)

    def above(self, other: Lanes | Scalar) -> Lanes:
        """Return self > other."""
        return self.compare("ogt" if self.is_float else "sgt", other)

    def equals(self, other: Lanes | Scalar) -> Lanes:
        """Return self == other."""
        return self.compare("oeq" if self.is_float else "eq", other)

    def is_nan(self) -> Lanes:
        """Return whether it is NaN."""
        return self.compare("uno", self)

    def select(self, yes: Lanes | Scalar, no: Lanes | Scalar) -> Lanes:
        """`yes` where this condition holds, else `no`; one of them is `Lanes`."""
        model = yes if isinstance(yes, Lanes) else no
        assert isinstance(model, Lanes)
        return self.new(self.f.select(self.value, model.like(yes).value, model.like(no).value))

    def any(self) -> Value:
        """Return whether the condition holds in any lane."""
        if self.lanes == 1:
            return self.value
        return self.f.intrinsic(f"llvm.vector.reduce.or.v{self.lanes}i1", "i1", self.value)

    def shuffle(self, order: Sequence[int], other: Lanes | None = None) -> Lanes:
        """Lanes of this vector and another (numbered on) in the given order."""
        return self.new(self.f.shuffle(self.value, order, None if other is None else other.value))

    # floats

    def fma(self, factor: Lanes | Scalar, addend: Lanes | Scalar) -> Lanes:
        """Return self * factor + addend, rounded once."""
        if not host().has_fma:
            return _fused(self, self.like(factor), self.like(addend))
        return self.intrinsic("fma", factor, addend)

    def mad(self, factor: Lanes | Scalar, addend: Lanes | Scalar) -> Lanes:
        """Return self * factor + addend, rounded once."""
        return self.fma(factor, addend)

    def abs(self) -> Lanes:
        """Return |self| of floats."""
        return self.intrinsic("fabs")

    def sqrt(self) -> Lanes:
        """Return the square root, correctly rounded."""
        return self.intrinsic("sqrt")

    def nearest(self) -> Lanes:
        """Return the nearest integer, halves to even."""
        return self.intrinsic("rint")

    def floor(self) -> Lanes:
        """Return the largest integer not above."""
        return self.intrinsic("floor")

    def round_half_away(self) -> Lanes:
        """Return the nearest integer, halves away from zero."""
        return self.intrinsic("round")

    def ceil(self) -> Lanes:
        """Return the smallest integer not below."""
        return self.intrinsic("ceil")

    def trunc(self) -> Lanes:
        """Return the integer toward zero."""
        return self.intrinsic("trunc")

    def copysign(self, model: Lanes | Scalar) -> Lanes:
        """Return |self| with another's sign."""
        return self.intrinsic("copysign", model)

    def as_bits(self) -> Lanes:
        """Return a float's bits as an integer."""
        return self.cast("bitcast", f"i{self.bits}")

    def as_float(self) -> Lanes:
        """Return an integer's bits as a float."""
        return self.cast("bitcast", {16: "half", 32: "float", 64: "double"}[self.bits])

    def widened(self) -> Lanes:
        """Return float32 as float64."""
        return self.cast("fpext", "double")

    def narrowed(self) -> Lanes:
        """Return float64 as float32."""
        return self.cast("fptrunc", "float")

    def as_integer(self) -> Lanes:
        """Return an integral float as a signed integer of the same width."""
        return self.cast("fptosi", f"i{self.bits}")

    def to_float(self) -> Lanes:
        """Convert a non-negative integer to a float of the same width."""
        return self.cast("uitofp", {32: "float", 64: "double"}[self.bits])

    def ldexp(self, n: Lanes) -> Lanes:
        """Return self 2^n, by an instruction if there is one."""
        if has_avx512(self.value):
            return self.new(avx512_scale(self.f, self.value, n.value))
        return super().ldexp(n)

    def exponent_and_significand(self) -> tuple[Lanes, Lanes] | None:
        """Return exponent and significand in [3/4, 3/2), if instructions exist."""
        if not has_avx512(self.value):
            return None
        significand = self.new(avx512_significand(self.f, self.value))
        return self.new(avx512_exponent(self.f, self.value)), significand

    def quarter_periods(self) -> tuple[Lanes, Lanes, Lanes]:
        """Return (quarters, r, rest), self = r + rest + quarters pi/2, |r| <= pi/4.

        Quarters are integers, up to multiples of 4.
        """
        if self.bits == 64:
            return reduced_large(self)
        quarters, wide, _ = reduced_large(self.widened())
        r = wide.narrowed()
        return quarters.cast("trunc", "i32"), r, (wide - r.widened()).narrowed()

    def bits_of_table(self, name: str, table: bytes) -> Lanes:
        """Return the 64 bits of a constant that begin at the byte of this number."""
        f, symbol = self.f, f"vf.{name}"
        text = "".join(f"\\{b:02X}" for b in table)
        f.module.declare(symbol, f'@{symbol} = internal constant [{len(table)} x i8] c"{text}", align 64')
        if self.lanes == 1:
            return self.new(f.load("i64", f.at(Value("ptr", f"@{symbol}"), "i8", self.value), 1))
        where = f.let(f"<{self.lanes} x ptr>", f"getelementptr inbounds i8, ptr @{symbol}, {self.value}")
        everywhere = f.splat(Value("i1", "true"), self.lanes)
        operands = (where, Value("i32", "1"), everywhere, Value(self.type, "zeroinitializer"))
        return self.new(f.intrinsic(f"llvm.masked.gather.{overload(self.type)}.v{self.lanes}p0", self.type, *operands))

    # control flow

    def if_any(self, name: str, write: Callable[..., Lanes], arguments: Sequence[Lanes], usual: Lanes) -> Lanes:
        """Return ``write(*arguments)`` where this condition holds, else `usual`.

        The code of `write` is outlined as cold, and runs only if the condition holds for any lane.
        """

        def corrected() -> list[Value]:
            return [self.select(outlined(name, write, *arguments), usual).value]

        return self.new(self.f.branch(self.any(), corrected, lambda: [usual.value])[0])

    def iterated(self, count: int | Lanes, step: Callable[..., Sequence[Lanes]], *start: Lanes) -> Sequence[Lanes]:
        """Return the values after `count` steps ``values = step(k, *values)``.

        k is the iteration's number, of this type of float.
        """

        def body(k: Value, carried: list[Value]) -> list[Value]:
            number = self.new(self.f.splat(self.f.cast("uitofp", k, element_of(self.type)), self.lanes))
            return [x.value for x in step(number, *map(self.new, carried))]

        end = i64(count) if isinstance(count, int) else self.f.cast("fptosi", count.greatest(), "i64")
        return [self.new(x) for x in self.f.loop(i64(0), end, 1, [x.value for x in start], body, nonempty=True)]

    def greatest(self) -> Value:
        """Return the greatest lane of a float, none of which is NaN."""
        if self.lanes == 1:
            return self.value
        return self.f.intrinsic(f"llvm.vector.reduce.fmax.{overload(self.type)}", element_of(self.type), self.value)

    def outline(self, name: str, formula: Callable[..., Any], *others: Lanes) -> Any:
        """Return ``formula(self, *others)``, by a function call where that saves code."""
        return inlined(name, formula, self, *others)


def inlined(name: str, write: Callable[..., Lanes], *args: Lanes) -> Lanes:
    """Call ``write``, as a function of the module that is inlined."""
    return _defined(name, "alwaysinline nounwind", write, args)


def outlined(name: str, write: Callable[..., Lanes], *args: Lanes) -> Lanes:
    """Call ``write``, as a function of the module for cold code."""
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


_SPLIT = 2.0**27 + 1


def _fused(x: Lanes, y: Lanes, z: Lanes) -> Lanes:
    """Return x y + z where no instruction computes it with one rounding.

    Only ties of a second rounding may differ. A product of float32 is exact in float64; that of float64 is a sum of two (T. J. Dekker, "A
    floating-point technique for extending the available precision", 1971), which is added to z with the error of the sum.
    """
    if element_of(x.type) == "float":
        a, b, c = [number.cast("fpext", "double") for number in (x, y, z)]
        return (a * b + c).cast("fptrunc", "float")
    product = x * y
    (a, low_a), (b, low_b) = _halves(x), _halves(y)
    error = ((a * b - product) + a * low_b + low_a * b) + low_a * low_b
    total = product + z
    part = total - product
    rest = (product - (total - part)) + (z - part)
    exact = total + (rest + error)
    return exact.is_nan().select(total, exact)


def _halves(x: Lanes) -> tuple[Lanes, Lanes]:
    """Return the upper and the lower half of the significand of a float64."""
    scaled = x * _SPLIT
    upper = scaled - (scaled - x)
    return upper, x - upper
