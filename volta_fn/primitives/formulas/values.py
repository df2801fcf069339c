"""Values with operators, over which formulas are written.

`x * y + 1.0` writes code. The last section has arithmetic with more digits than a dtype has.
"""

from __future__ import annotations

import functools
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Self, TypeVar

# Formulas are written once, over `Values`. Each target has a class of its own, whose operators write the target's code. Python numbers
# stand for values of the other operand's type. Comparisons are methods, and give conditions. Operators write the plain operation: a
# formula may count on every single one being rounded, in this order.

Scalar = float | int | bool

#: Bits of the significand, and the bias of the exponent, by width.
SIGNIFICAND, BIAS = {32: 23, 64: 52}, {32: 127, 64: 1023}

#: The magic numbers of rounding: adding one rounds a small number to an integer, which is then in the last bits.
MAGIC = {32: 1.5 * 2.0**23, 64: 1.5 * 2.0**52}
MAGIC_BITS = {32: 0x4B400000, 64: 0x4338000000000000}


class Values:
    """A float, an integer or a condition, or a vector of them, in a formula."""

    __slots__ = ()

    #: Whether formulas for float32 may compute in float64.
    widens = True

    #: Whether `fma` costs as little as a product.
    fuses = True

    #: Whether it is a sum of two float32, which stands for a float64 where there is none. Its own rounding errors are neglected.
    is_pair = False

    #: Whether these are NumPy arrays, which have `by_numpy`: some formulas are functions of NumPy (`of_numpy`).
    is_numpy = False

    @property
    def range(self) -> int:
        """The width of the float that has the same exponents."""
        return 32 if self.is_pair else self.bits

    @property
    def flushes(self) -> bool:
        """Whether subnormal numbers are zeros."""
        return False

    @property
    @abstractmethod
    def bits(self) -> int:
        """The width of a number."""

    @abstractmethod
    def like(self, value: Scalar | Self) -> Self:
        """Return a Python number as one of this type; values are returned as they are."""

    # arithmetic

    def binary(self, operator: str, other: Self | Scalar) -> Self:
        """Write an operation: ``+``, ``-``, ``*``, ``/``, ``&``, ``|``, ``^`` or ``<<``."""
        raise NotImplementedError

    def __add__(self, other: Self | Scalar) -> Self:
        return self.binary("+", other)

    def __sub__(self, other: Self | Scalar) -> Self:
        return self.binary("-", other)

    def __mul__(self, other: Self | Scalar) -> Self:
        return self.binary("*", other)

    def __truediv__(self, other: Self | Scalar) -> Self:
        return self.binary("/", other)

    def __and__(self, other: Self | Scalar) -> Self:
        return self.binary("&", other)

    def __or__(self, other: Self | Scalar) -> Self:
        return self.binary("|", other)

    def __xor__(self, other: Self | Scalar) -> Self:
        return self.binary("^", other)

    def __lshift__(self, count: Self | Scalar) -> Self:
        return self.binary("<<", count)

    @abstractmethod
    def __neg__(self) -> Self: ...

    @abstractmethod
    def __invert__(self) -> Self: ...

    @abstractmethod
    def shift_right(self, count: Self | Scalar, *, signed: bool = False) -> Self:
        """Shift right; zeros or copies of the sign move in."""

    def __radd__(self, other: Scalar) -> Self:
        return self.like(other) + self

    def __rsub__(self, other: Scalar) -> Self:
        return self.like(other) - self

    def __rmul__(self, other: Scalar) -> Self:
        return self.like(other) * self

    def __rtruediv__(self, other: Scalar) -> Self:
        return self.like(other) / self

    # comparison

    @abstractmethod
    def compare(self, predicate: str, other: Self | Scalar) -> Self:
        """Compare by LLVM's predicates.

        They are ``olt``, ``une``, … for floats (o: and neither is NaN; u: or one is); ``eq``, ``slt``, ``ult``, … for integers.
        """

    @abstractmethod
    def below(self, other: Self | Scalar) -> Self:
        """Return self < other (of floats: false with NaN; of integers: as signed numbers)."""

    @abstractmethod
    def above(self, other: Self | Scalar) -> Self:
        """Return self > other."""

    @abstractmethod
    def equals(self, other: Self | Scalar) -> Self:
        """Return self == other."""

    @abstractmethod
    def is_nan(self) -> Self:
        """Return whether it is NaN."""

    @abstractmethod
    def select(self, yes: Self | Scalar, no: Self | Scalar) -> Self:
        """Return `yes` where this condition holds, else `no`; one of them is a value."""

    # floats

    @abstractmethod
    def fma(self, factor: Self | Scalar, addend: Self | Scalar) -> Self:
        """Return self * factor + addend, rounded once."""

    @abstractmethod
    def mad(self, factor: Self | Scalar, addend: Self | Scalar) -> Self:
        """Return self * factor + addend, rounded once or twice."""

    def opaque(self) -> Self:
        """Return the same number, hidden from compilers that simplify sums."""
        return self

    @abstractmethod
    def abs(self) -> Self:
        """Return |self|."""

    @abstractmethod
    def sqrt(self) -> Self:
        """Return the square root, correctly rounded."""

    def fast_log2(self) -> Self | None:
        """Return the target's own base-2 logarithm of a positive normal number, or None.

        Its error is at most 2^-21 from 1/2 to 2, and three units in the last place elsewhere.
        """
        return None

    @abstractmethod
    def nearest(self) -> Self:
        """Return the nearest integer, halves to even."""

    @abstractmethod
    def round_half_away(self) -> Self:
        """Return the nearest integer, halves away from zero."""

    @abstractmethod
    def floor(self) -> Self:
        """Return the largest integer that is not greater."""

    @abstractmethod
    def ceil(self) -> Self:
        """Return the smallest integer that is not less."""

    @abstractmethod
    def trunc(self) -> Self:
        """Return the integer toward zero."""

    @abstractmethod
    def copysign(self, model: Self | Scalar) -> Self:
        """Return |self| with another's sign."""

    @abstractmethod
    def as_bits(self) -> Self:
        """Return a float's bits as an integer."""

    @abstractmethod
    def as_float(self) -> Self:
        """Return an integer's bits as a float."""

    @abstractmethod
    def widened(self) -> Self:
        """Return float32 as float64."""

    @abstractmethod
    def narrowed(self) -> Self:
        """Return float64 as float32."""

    @abstractmethod
    def as_integer(self) -> Self:
        """Return an integral float as a signed integer of the same width."""

    @abstractmethod
    def to_float(self) -> Self:
        """Convert a non-negative integer to a float of the same width."""

    @abstractmethod
    def bits_of_table(self, name: str, table: bytes) -> Self:
        """Return the 64 bits of a constant that begin at the byte of this number."""

    # small integers held in floats, of less than half the significand's digits: GPUs convert few numbers at a time, and add many

    def plus_magic(self, magic: float) -> Self:
        """Return the sum with a magic number, of either sign, which compilers must keep."""
        return self + magic if magic > 0 else self - -magic

    def small_integer(self) -> Self:
        """Round a small float to an integer."""
        return self.plus_magic(MAGIC[self.bits]).plus_magic(-MAGIC[self.bits])

    def small_float(self) -> Self:
        """Return a small integer as a float."""
        return (self + MAGIC_BITS[self.bits]).as_float().plus_magic(-MAGIC[self.bits])

    def round_scaled(self, factor: float, addend: float = 0.0, offset: int = 0) -> tuple[Self, Self]:
        """Return n = round(self * factor + addend) as a float, n + offset as an integer.

        The integer is exact modulo some power of two.
        """
        magic = MAGIC[self.bits] + offset
        shifted = self.mad(factor, addend).plus_magic(magic) if addend else self.mad(factor, magic)
        return shifted.plus_magic(-magic), shifted.as_bits()

    def power_of_two(self) -> Self:
        """Return 2^n of an integer n, where that is a normal number."""
        return (self.plus_magic(MAGIC[self.bits] + BIAS[self.bits]).as_bits() << SIGNIFICAND[self.bits]).as_float()

    def ldexp(self, n: Self) -> Self:
        """Return self 2^n for a number near 1 and an integer n, rounded once.

        Overflow gives infinity; underflow gives subnormal numbers and 0.
        """
        half, biased = n.round_scaled(0.5, offset=BIAS[self.bits])
        return self * (biased << SIGNIFICAND[self.bits]).as_float() * (n - half).power_of_two()

    def ldexp_normal(self, n: Self) -> Self:
        """Return self 2^n of normal numbers, n being an integer modulo a power of two."""
        return (self.as_bits() + (n << SIGNIFICAND[self.bits])).as_float()

    def exponent_and_significand(self) -> tuple[Self, Self] | None:
        """Return the exponent and the significand in [3/4, 3/2) by instructions, or None."""
        return None

    @abstractmethod
    def quarter_periods(self) -> tuple[Self, Self, Self]:
        """Return (quarters, r, rest) with self = r + rest + quarters pi/2 and |r| <= pi/4.

        The quarters are integers modulo 4. Numbers must be at least 2^-5; r is NaN for infinities and NaN.
        """

    # control flow

    @abstractmethod
    def if_any(self, name: str, write: Callable[..., Self], arguments: Sequence[Self], usual: Self) -> Self:
        """Return ``write(*arguments)`` where this condition holds, else `usual`.

        The code of `write` is outlined as cold, and runs only if the condition holds for any lane.
        """

    @abstractmethod
    def iterated(self, count: int | Self, step: Callable[..., Sequence[Self]], *start: Self) -> Sequence[Self]:
        """Return the values after `count` steps ``values = step(k, *values)``.

        k is the iteration's number, of this type of float. If lanes differ in their counts, all of them do the largest one.
        """

    def choose(self, yes: Callable[..., Any], no: Callable[..., Any], *arguments: Self) -> Any:
        """Return ``yes(*arguments)`` where this condition holds, else ``no(*arguments)``.

        Both are computed, and one is selected.
        """
        return self.select(yes(*arguments), no(*arguments))

    def choose_if_any(self, yes: Callable[..., Any], no: Callable[..., Any], *arguments: Self) -> Any:
        """Return the result of `choose`, for a condition that seldom holds.

        Code for GPUs branches, since few subgroups take both ways.
        """
        return self.choose(yes, no, *arguments)

    def product_error(self, factor: Self | Scalar, product: Self) -> Self:
        """Return the rounding error of the product with a factor."""
        return self.fma(factor, -product)

    def repeated(self, tables: Sequence[Sequence[float]], step: Callable[..., Sequence[Self]], *start: Self) -> Sequence[Self]:
        """Return the values after steps ``values = step(*entries, *values)``.

        There is a step for each entry of the tables: so few that they may be written one by one.
        """
        values = start
        for entries in zip(*tables, strict=True):
            values = tuple(step(*entries, *values))
        return values

    def outline_each(self, name: str, formula: Callable[..., Self], calls: Sequence[Sequence[Self]]) -> Sequence[Self]:
        """Return the formula of each tuple of operands.

        Its code is written once where it is long.
        """
        return [first.outline(name, formula, *others) for first, *others in calls]

    def outline(self, name: str, formula: Callable[..., Any], *others: Self) -> Any:
        """Return ``formula(self, *others)``, by a function call where that saves code."""
        return formula(self, *others)

    # composed of the above

    def divide_bounded(self, other: Self) -> Self:
        """Return the quotient of a number up to about 2^60 by one between 1 and 2^60."""
        return self / other

    def at_most(self, bound: Self | Scalar) -> Self:
        """Return the lesser of two floats; `bound` for NaN or equal ones."""
        return self.below(bound).select(self, bound)

    def at_least(self, bound: Self | Scalar) -> Self:
        """Return the larger of two floats; `bound` for NaN or equal ones."""
        return self.above(bound).select(self, bound)

    def max_keep_nan(self, low: Scalar) -> Self:
        """Return the larger of the float and `low`; NaN stays NaN."""
        bound = self.like(low)
        return bound.above(self).select(bound, self)

    def min_keep_nan(self, high: Scalar) -> Self:
        """Return the lesser of the float and `high`; NaN stays NaN."""
        bound = self.like(high)
        return bound.below(self).select(bound, self)

    def clamped(self, low: Scalar, high: Scalar) -> Self:
        """Clamp the float to bounds; NaN stays NaN."""
        return self.max_keep_nan(low).min_keep_nan(high)

    def bounded(self, low: Scalar, high: Scalar, function: Callable[[Self], Self], below: Scalar, above: Scalar) -> Self:
        """Return a function of the float between bounds, else `below` or `above`.

        NaN is passed to the function.
        """
        return function(self.clamped(low, high))

    def polynomial(self, coefficients: Sequence[Scalar], square: Self | None = None) -> Self:
        """Evaluate a polynomial, highest power first, by Horner's rule.

        With `square`, even and odd powers are summed by two rules in the square, which breaks the dependency chain in two.
        """
        if square is not None:
            count = len(coefficients)
            even, odd = coefficients[(count - 1) % 2 :: 2], coefficients[count % 2 :: 2]
            return square.polynomial(odd).mad(self, square.polynomial(even))
        result = self.like(coefficients[0])
        for coefficient in coefficients[1:]:
            result = result.mad(self, coefficient)
        return result


# More digits than a dtype has: rounding errors, and float32 in float64.

V = TypeVar("V", bound=Values)


def exact_product(x: V, y: V | float) -> tuple[V, V]:
    """Return x y rounded, and the rounding error."""
    product = x * y
    return product, x.product_error(y, product)


def exact_sum(x: V, y: V) -> tuple[V, V]:
    """Return x + y rounded, and the rounding error (Knuth)."""
    if x.is_pair:
        return x + y, x.like(0.0)
    total = (x + y).opaque()
    added = (total - x).opaque()
    return total, (x - (total - added)) + (y - added)


def exact_sum_ordered(x: V | float, y: V) -> tuple[V, V]:
    """Return x + y rounded, and the error, for |x| >= |y| (Dekker)."""
    if y.is_pair:
        return x + y, y.like(0.0)
    total = (x + y).opaque()
    return total, y - (total - x)


#: The first bit of magnitudes, and the number of bits below half a unit in the last place of bfloat16 from there on.
_STICKY = ((24, 16), (39, 31), (54, 46))


def with_sticky_bits(x: V, signed: bool) -> V:
    """Replace bits that float32 rounds away by a sticky bit below bfloat16's ties."""
    # The result is exact in float32, and rounding that to bfloat16 rounds as if it were the first time.
    magnitude = x.below(0).select(~x, x) if signed else x
    for first, low in _STICKY:
        if first < x.bits:
            rest = x & ((1 << low) - 1)
            inexact = magnitude.compare("uge", 1 << first) & rest.compare("ne", 0)
            x = inexact.select((x - rest) + (1 << (low - 1)), x)
    return x


def rounded_to_odd(x: V, near: V, back: V) -> V:
    """Round float64 to float32, to odd where it is inexact.

    Rounding that again rounds as if it were the first time. `near` is x rounded to nearest, and `back` that in float64.
    """
    bits = near.as_bits()
    moved = x.abs().above(back.abs()).select(bits + 1, bits - 1).as_float()
    inexact = back.compare("one", x) & near.abs().below(float("inf"))
    return ((bits & 1).equals(0) & inexact).select(moved, near)


Formula = Callable[..., Values]


def of_numpy(function: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorate a formula to be replaced by NumPy's function for NumPy arrays."""

    def decorate(formula: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(formula)
        def applied(x: Any, *others: Any) -> Any:
            return x.by_numpy(function, others) if x.is_numpy else formula(x, *others)

        return applied

    return decorate


def in_float64(formula: Formula) -> Formula:
    """Decorate a formula to compute float32 in float64 on targets that have it."""

    @functools.wraps(formula)
    def widened(*operands: Values) -> Values:
        if operands[0].bits == 64 or not operands[0].widens:
            return formula(*operands)
        return formula(*[x.widened() for x in operands]).narrowed()

    return widened


#: Formulas that may be computed in pairs, whose code is long.
PAIRED: set[Formula] = set()


def in_float64_or_pairs(formula: Formula) -> Formula:
    """Decorate a formula to compute float32 in float64, or in pairs.

    Pairs of float32 stand for float64 on targets that do not have it.
    """

    @functools.wraps(formula)
    def widened(*operands: Values) -> Values:
        if operands[0].bits == 64:
            return formula(*operands)
        return formula(*[x.widened() for x in operands]).narrowed()

    PAIRED.add(widened)
    return widened


def in_float64_unless_fused(formula: Formula) -> Formula:
    """Decorate a formula of float32 to compute in float64 where `fma` is expensive.

    That is on NumPy, whose exponential is also off by some units in the last place.
    """
    widened = in_float64(formula)

    @functools.wraps(formula)
    def evaluated(*operands: Values) -> Values:
        return (formula if operands[0].fuses else widened)(*operands)

    return evaluated
