"""Values with operators: `x * y + 1.0` writes code.

Formulas are written once, over `Values`. Each lane has a class of its own, which says what an operator writes. Python numbers stand for
values of the other operand's type. Comparisons are methods, and give conditions. Operators write the plain operation: a formula may count
on every single one being rounded, in this order.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Self

Scalar = float | int | bool

#: Bits of the significand, and what is added to the exponent, by width.
SIGNIFICAND, BIAS = {32: 23, 64: 52}, {32: 127, 64: 1023}

#: Adding it rounds a small number to a whole one, which is then in the last bits.
MAGIC = {32: 1.5 * 2.0**23, 64: 1.5 * 2.0**52}


class Values:
    """A floating-point number, an integer or a condition in a function that is being written; or a vector of them."""

    __slots__ = ()

    #: Whether formulas for float32 may compute in float64.
    widens = True

    #: Whether `fma` costs as little as a product.
    fuses = True

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
        """A Python number as one of this type; values are as they are."""

    # arithmetic

    @abstractmethod
    def __add__(self, other: Self | Scalar) -> Self: ...

    @abstractmethod
    def __sub__(self, other: Self | Scalar) -> Self: ...

    @abstractmethod
    def __mul__(self, other: Self | Scalar) -> Self: ...

    @abstractmethod
    def __truediv__(self, other: Self | Scalar) -> Self: ...

    @abstractmethod
    def __neg__(self) -> Self: ...

    @abstractmethod
    def __and__(self, other: Self | Scalar) -> Self: ...

    @abstractmethod
    def __or__(self, other: Self | Scalar) -> Self: ...

    @abstractmethod
    def __xor__(self, other: Self | Scalar) -> Self: ...

    @abstractmethod
    def __invert__(self) -> Self: ...

    @abstractmethod
    def __lshift__(self, count: Self | Scalar) -> Self: ...

    @abstractmethod
    def shift_right(self, count: Self | Scalar, *, signed: bool = False) -> Self:
        """The bits moved right; what moves in is zeros, or copies of the sign."""

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
        """``olt``, ``une``, … for floats (o: and neither is NaN; u: or one is); ``eq``, ``slt``, ``ult``, … for integers."""

    @abstractmethod
    def below(self, other: Self | Scalar) -> Self:
        """self < other (of floats: false with NaN; of integers: as signed numbers)."""

    @abstractmethod
    def above(self, other: Self | Scalar) -> Self:
        """self > other."""

    @abstractmethod
    def equals(self, other: Self | Scalar) -> Self:
        """self == other."""

    @abstractmethod
    def is_nan(self) -> Self:
        """Whether it is not a number."""

    @abstractmethod
    def select(self, yes: Self | Scalar, no: Self | Scalar) -> Self:
        """`yes` where this condition holds, else `no`; one of them is a value."""

    # floats

    @abstractmethod
    def fma(self, factor: Self | Scalar, addend: Self | Scalar) -> Self:
        """self * factor + addend, rounded once."""

    @abstractmethod
    def mad(self, factor: Self | Scalar, addend: Self | Scalar) -> Self:
        """self * factor + addend, rounded once or twice."""

    def held(self) -> Self:
        """The same number, which compilers that simplify sums cannot see through."""
        return self

    @abstractmethod
    def abs(self) -> Self:
        """|self|."""

    @abstractmethod
    def sqrt(self) -> Self:
        """The square root, correctly rounded."""

    @abstractmethod
    def nearest(self) -> Self:
        """The nearest whole number, halves to even."""

    @abstractmethod
    def nearest_away(self) -> Self:
        """The nearest whole number, halves away from zero."""

    @abstractmethod
    def floor(self) -> Self:
        """The largest whole number not above."""

    @abstractmethod
    def ceil(self) -> Self:
        """The smallest whole number not below."""

    @abstractmethod
    def trunc(self) -> Self:
        """The whole number toward zero."""

    @abstractmethod
    def signed(self, model: Self | Scalar) -> Self:
        """|self| with another's sign."""

    @abstractmethod
    def as_bits(self) -> Self:
        """A float's bits as an integer."""

    @abstractmethod
    def as_float(self) -> Self:
        """An integer's bits as a float."""

    @abstractmethod
    def widened(self) -> Self:
        """float32 as float64."""

    @abstractmethod
    def narrowed(self) -> Self:
        """float64 as float32."""

    @abstractmethod
    def as_integer(self) -> Self:
        """A whole number in a float as a signed integer of the same width."""

    @abstractmethod
    def number(self) -> Self:
        """An integer that is not negative as a float of the same width."""

    @abstractmethod
    def bits_of_table(self, name: str, table: bytes) -> Self:
        """The 64 bits of a constant that begin at a byte, of which this integer of 64 bits is the number."""

    # whole numbers in floats, of less than half the significand's digits

    @abstractmethod
    def small_whole(self) -> Self:
        """A small float rounded to a whole number."""

    @abstractmethod
    def small_float(self) -> Self:
        """A small integer as a float."""

    @abstractmethod
    def counted(self, factor: float, addend: float = 0.0, offset: int = 0) -> tuple[Self, Self]:
        """n, the whole number next to self * factor + addend, and as an integer n + offset (modulo some power of two)."""

    @abstractmethod
    def power_of_two(self) -> Self:
        """2^n of a whole number n, where that is a normal number."""

    def scaled(self, n: Self) -> Self:
        """self 2^n for a number near 1 and a whole n, rounded once: what is too large is infinite, what is small subnormal or 0."""
        half, biased = n.counted(0.5, offset=BIAS[self.bits])
        return self * (biased << SIGNIFICAND[self.bits]).as_float() * (n - half).power_of_two()

    def raised(self, n: Self) -> Self:
        """The same where all of these are normal numbers, by n as an integer modulo some power of two."""
        return (self.as_bits() + (n << SIGNIFICAND[self.bits])).as_float()

    def taken_apart(self) -> tuple[Self, Self] | None:
        """The exponent and the significand in [3/4, 3/2) by instructions, if there are any."""
        return None

    @abstractmethod
    def quarter_turns(self) -> tuple[Self, Self, Self]:
        """(quarters, r, rest) with self = r + rest + quarters pi/2, |r| <= pi/4, quarters (integers) up to multiples of 4.

        For numbers from 2^-5 up. r is NaN where the number is not finite.
        """

    # control flow

    @abstractmethod
    def rarely(self, name: str, write: Callable[..., Self], arguments: Sequence[Self], usual: Self) -> Self:
        """``write(*arguments)`` where this condition holds, else `usual`: a function by itself, which hardly ever runs."""

    @abstractmethod
    def iterated(self, count: int | Self, step: Callable[..., Sequence[Self]], *start: Self) -> Sequence[Self]:
        """The values after `count` iterations of ``values = step(k, *values)``, where k is the iteration's number, of this type of float.

        Where numbers of iterations differ, the largest one is done for all.
        """

    def choose(self, yes: Callable[..., Any], no: Callable[..., Any], *arguments: Self) -> Any:
        """``yes(*arguments)`` where this condition holds, else ``no(*arguments)``: code computes both and selects."""
        return self.select(yes(*arguments), no(*arguments))

    def product_error(self, factor: Self | Scalar, product: Self) -> Self:
        """What rounding took from the product with a factor."""
        return self.fma(factor, -product)

    def called(self, name: str, formula: Callable[..., Any], *others: Self) -> Any:
        """``formula(self, *others)``, as a call of a function where that makes code smaller."""
        return formula(self, *others)

    # what follows

    def over(self, other: Self) -> Self:
        """The quotient by a number between 1 and 2^60 of one that is not greater than 2^60, or nearly that."""
        return self / other

    def at_most(self, bound: Self | Scalar) -> Self:
        """The lesser of two floats: `bound` if either is NaN, and if they are equal."""
        return self.below(bound).select(self, bound)

    def at_least(self, bound: Self | Scalar) -> Self:
        """The larger of two floats: `bound` if either is NaN, and if they are equal."""
        return self.above(bound).select(self, bound)

    def floored(self, low: Scalar) -> Self:
        """The float, or `low` where it is less; NaN stays."""
        bound = self.like(low)
        return bound.above(self).select(bound, self)

    def capped(self, high: Scalar) -> Self:
        """The float, or `high` where it is more; NaN stays."""
        bound = self.like(high)
        return bound.below(self).select(bound, self)

    def clamped(self, low: Scalar, high: Scalar) -> Self:
        """The float between bounds; NaN stays."""
        return self.floored(low).capped(high)

    def bounded(self, low: Scalar, high: Scalar, function: Callable[[Self], Self], below: Scalar, above: Scalar) -> Self:
        """A function of the float between bounds, and what it is at the bounds, `below` and `above`, beyond them; of NaN what it is."""
        return function(self.clamped(low, high))

    def polynomial(self, coefficients: Sequence[Scalar], square: Self | None = None) -> Self:
        """The polynomial with these coefficients, highest power first, by Horner's rule.

        Given the square, it is two, of the even and of the odd powers, which do not wait for each other.
        """
        if square is not None:
            count = len(coefficients)
            even, odd = coefficients[(count - 1) % 2 :: 2], coefficients[count % 2 :: 2]
            return square.polynomial(odd).mad(self, square.polynomial(even))
        result = self.like(coefficients[0])
        for coefficient in coefficients[1:]:
            result = result.mad(self, coefficient)
        return result
