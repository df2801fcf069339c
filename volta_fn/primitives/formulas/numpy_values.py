"""Formulas evaluated by NumPy: `Values` that are NumPy arrays.

Each step of a formula is a pass over memory. On blocks of a few thousand elements those passes run at the speed of the cache, whatever the
size of the array.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from volta_fn.primitives.formulas.values import BIAS, SIGNIFICAND, Scalar, Values

#: Elements of a block: a handful of temporaries of this size fit the second-level cache of any CPU of this century.
BLOCK = 1 << 14

_FLOAT32, _FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)

#: 2^27 + 1: multiplying by it and taking away the excess leaves the upper 26 bits of a float64.
_SPLITTER = 134217729.0

Formula = Callable[..., Any]


def evaluated(formula: Formula) -> Callable[..., np.ndarray]:
    """Return the evaluation rule of a primitive with this formula.

    It is a function of float arrays of one dtype, which broadcast.

    float16 and bfloat16 compute in float32.
    """

    @functools.wraps(formula)
    def evaluate(*operands: np.ndarray) -> np.ndarray:
        return blockwise(lambda *xs: formula(*[NumpyValues(x) for x in xs]).x, *operands)

    return evaluate


def blockwise(function: Callable[..., np.ndarray], *operands: np.ndarray) -> np.ndarray:
    """Apply a function of vectors of float32 or float64 to blocks of operands.

    They may have any shape and float dtype.
    """
    dtype = operands[0].dtype
    work = _FLOAT64 if dtype == _FLOAT64 else _FLOAT32
    shape = np.broadcast_shapes(*[x.shape for x in operands])
    flat = [(x if x.shape == shape else np.broadcast_to(x, shape)).reshape(-1) for x in operands]
    out = np.empty(shape, dtype)
    target = out.reshape(-1)
    for start in range(0, target.size, BLOCK):
        block = slice(start, start + BLOCK)
        target[block] = function(*[x[block].astype(work, copy=False) for x in flat])
    return out


def of_numpy(function: Callable[..., Any]) -> Callable[[Formula], Formula]:
    """Decorate a formula to be replaced by NumPy's function for NumPy arrays."""

    def decorate(formula: Formula) -> Formula:
        @functools.wraps(formula)
        def applied(x: Any, *others: Any) -> Any:
            if isinstance(x, NumpyValues):
                return x.new(function(x.x, *[x.like(y).x for y in others]))
            return formula(x, *others)

        return applied

    return decorate


def fused_multiply_add(x: Any, y: Any, z: Any) -> Any:
    """Return x y + z rounded once, in float64.

    In it products of float32 are exact, and those of float64 must not overflow.
    """
    if x.dtype == _FLOAT32:
        return x.astype(np.float64) * y + z
    return _fused(x, y, z)


def _fused(x: Any, y: Any, z: Any) -> Any:
    """Add the rounding errors of product and sum in one addition.

    They are exact (Dekker 1971, Knuth's two-sum).
    """
    product = x * y
    product_error = _product_error(x, y, product)
    total = product + z
    added = total - product
    total_error = (product - (total - added)) + (z - added)
    fused = total + (total_error + product_error)
    return np.where(np.isfinite(fused), fused, np.where(np.isinf(z) & np.isfinite(x) & np.isfinite(y), z, total))


def _product_error(x: Any, y: Any, product: Any) -> Any:
    x_high, x_low = _halves(x)
    if x is y:
        return x_low * x_low - ((product - x_high * x_high) - 2.0 * x_high * x_low)
    y_high, y_low = _halves(y)
    return x_low * y_low - (((product - x_high * y_high) - x_low * y_high) - x_high * y_low)


def _halves(x: Any) -> tuple[Any, Any]:
    scaled = _SPLITTER * x
    high = scaled - (scaled - x)
    return high, x - high


class NumpyValues(Values):
    """A NumPy array of float32, float64, int32, int64 or bool."""

    __slots__ = ("x",)

    fuses = False

    def __init__(self, x: Any) -> None:
        self.x = x

    @property
    def bits(self) -> int:
        """The width of a number."""
        return 1 if self.x.dtype == np.bool_ else 8 * self.x.dtype.itemsize

    def new(self, x: Any) -> NumpyValues:
        """Return other values."""
        return NumpyValues(x)

    def like(self, value: Scalar | NumpyValues) -> NumpyValues:
        """Return a Python number as one of this type; values are as they are."""
        return value if isinstance(value, NumpyValues) else NumpyValues(self.x.dtype.type(value))

    # arithmetic

    def __add__(self, other: NumpyValues | Scalar) -> NumpyValues:
        return NumpyValues(self.x + self.like(other).x)

    def __sub__(self, other: NumpyValues | Scalar) -> NumpyValues:
        return NumpyValues(self.x - self.like(other).x)

    def __mul__(self, other: NumpyValues | Scalar) -> NumpyValues:
        return NumpyValues(self.x * self.like(other).x)

    def __truediv__(self, other: NumpyValues | Scalar) -> NumpyValues:
        return NumpyValues(self.x / self.like(other).x)

    def __neg__(self) -> NumpyValues:
        return NumpyValues(-self.x)

    def __and__(self, other: NumpyValues | Scalar) -> NumpyValues:
        return NumpyValues(self.x & self.like(other).x)

    def __or__(self, other: NumpyValues | Scalar) -> NumpyValues:
        return NumpyValues(self.x | self.like(other).x)

    def __xor__(self, other: NumpyValues | Scalar) -> NumpyValues:
        return NumpyValues(self.x ^ self.like(other).x)

    def __invert__(self) -> NumpyValues:
        return NumpyValues(~self.x)

    def __lshift__(self, count: NumpyValues | Scalar) -> NumpyValues:
        return NumpyValues(self.x << self.like(count).x)

    def shift_right(self, count: NumpyValues | Scalar, *, signed: bool = False) -> NumpyValues:
        """Return the bits moved right; what moves in is zeros, or copies of the sign."""
        type_ = np.dtype(f"{'i' if signed else 'u'}{self.x.dtype.itemsize}")
        return NumpyValues((self.x.view(type_) >> self.like(count).x.astype(type_)).view(self.x.dtype))

    # comparison

    def compare(self, predicate: str, other: NumpyValues | Scalar) -> NumpyValues:
        """Return ``olt``, ``une``, … of floats; ``eq``, ``slt``, … of integers."""
        x, y = self.x, self.like(other).x
        if predicate == "uno":
            return NumpyValues(np.isnan(x) | np.isnan(y))
        if predicate in ("one", "ueq"):
            either = (x < y) | (x > y)
            return NumpyValues(either if predicate == "one" else ~either)
        return NumpyValues(_COMPARISONS[predicate[-2:]](x, y))

    def below(self, other: NumpyValues | Scalar) -> NumpyValues:
        """Return self < other."""
        return NumpyValues(self.x < self.like(other).x)

    def above(self, other: NumpyValues | Scalar) -> NumpyValues:
        """Return self > other."""
        return NumpyValues(self.x > self.like(other).x)

    def equals(self, other: NumpyValues | Scalar) -> NumpyValues:
        """Return self == other."""
        return NumpyValues(self.x == self.like(other).x)

    def is_nan(self) -> NumpyValues:
        """Return whether it is not a number."""
        return NumpyValues(np.isnan(self.x))

    def select(self, yes: NumpyValues | Scalar, no: NumpyValues | Scalar) -> NumpyValues:
        """Return `yes` where this condition holds, else `no`; one of them is a value."""
        model = yes if isinstance(yes, NumpyValues) else no
        assert isinstance(model, NumpyValues)
        return NumpyValues(np.where(self.x, model.like(yes).x, model.like(no).x))

    # floats

    def fma(self, factor: NumpyValues | Scalar, addend: NumpyValues | Scalar) -> NumpyValues:
        """Return self * factor + addend, rounded once."""
        return NumpyValues(fused_multiply_add(self.x, self.like(factor).x, self.like(addend).x).astype(self.x.dtype, copy=False))

    def mad(self, factor: NumpyValues | Scalar, addend: NumpyValues | Scalar) -> NumpyValues:
        """Return self * factor + addend."""
        return NumpyValues(self.x * self.like(factor).x + self.like(addend).x)

    def abs(self) -> NumpyValues:
        """Return |self|."""
        return NumpyValues(np.abs(self.x))

    def sqrt(self) -> NumpyValues:
        """Return the square root."""
        return NumpyValues(np.sqrt(self.x))

    def nearest(self) -> NumpyValues:
        """Return the nearest integer, halves to even."""
        return NumpyValues(np.rint(self.x))

    def nearest_away(self) -> NumpyValues:
        """Return the nearest integer, halves away from zero."""
        integral = np.trunc(self.x)
        return NumpyValues(integral + np.copysign((np.abs(self.x - integral) >= 0.5).astype(self.x.dtype), self.x))

    def floor(self) -> NumpyValues:
        """Return the largest integer not above."""
        return NumpyValues(np.floor(self.x))

    def ceil(self) -> NumpyValues:
        """Return the smallest integer not below."""
        return NumpyValues(np.ceil(self.x))

    def trunc(self) -> NumpyValues:
        """Return the integer toward zero."""
        return NumpyValues(np.trunc(self.x))

    def signed(self, model: NumpyValues | Scalar) -> NumpyValues:
        """Return |self| with another's sign."""
        return NumpyValues(np.copysign(self.x, self.like(model).x))

    def as_bits(self) -> NumpyValues:
        """Return a float's bits as an integer."""
        return NumpyValues(self.x.view(f"i{self.x.dtype.itemsize}"))

    def as_float(self) -> NumpyValues:
        """Return an integer's bits as a float."""
        return NumpyValues(self.x.view(f"f{self.x.dtype.itemsize}"))

    def widened(self) -> NumpyValues:
        """Return float32 as float64."""
        return NumpyValues(self.x.astype(np.float64))

    def narrowed(self) -> NumpyValues:
        """Return float64 as float32."""
        return NumpyValues(self.x.astype(np.float32))

    def as_integer(self) -> NumpyValues:
        """Return an integral float as a signed integer of the same width."""
        return NumpyValues(self.x.astype(f"i{self.x.dtype.itemsize}"))

    def number(self) -> NumpyValues:
        """Return an integer that is not negative as a float of the same width."""
        return NumpyValues(self.x.astype(f"f{self.x.dtype.itemsize}"))

    def bits_of_table(self, name: str, table: bytes) -> NumpyValues:
        """Raise: only trigonometric functions, which NumPy has, need this."""
        raise NotImplementedError

    def quarter_periods(self) -> tuple[NumpyValues, NumpyValues, NumpyValues]:
        """Raise: only trigonometric functions, which NumPy has, need this."""
        raise NotImplementedError

    # integers in floats

    def small_integer(self) -> NumpyValues:
        """Return a small float rounded to an integer."""
        return self.nearest()

    def small_float(self) -> NumpyValues:
        """Return a small integer as a float."""
        return self.number()

    def counted(self, factor: float, addend: float = 0.0, offset: int = 0) -> tuple[NumpyValues, NumpyValues]:
        """Return the integer nearest to self * factor + addend, and its sum with offset."""
        n = self.mad(factor, addend).nearest()
        return n, n.as_integer() + offset

    def power_of_two(self) -> NumpyValues:
        """Return 2^n of an integer n, where that is a normal number."""
        return ((self.as_integer() + BIAS[self.bits]) << SIGNIFICAND[self.bits]).as_float()

    # control flow

    def rarely(self, name: str, write: Callable[..., Values], arguments: Sequence[NumpyValues], usual: NumpyValues) -> NumpyValues:
        """Return ``write(*arguments)`` where this holds, computed there, else `usual`."""
        if not self.x.any():
            return usual
        found: Any = write(*[NumpyValues(np.broadcast_to(a.x, self.x.shape)[self.x]) for a in arguments])
        result = usual.x.copy()
        result[self.x] = found.x
        return NumpyValues(result)

    def iterated(self, count: int | NumpyValues, step: Callable[..., Sequence[NumpyValues]], *start: NumpyValues) -> Sequence[NumpyValues]:
        """Return the values after `count` iterations."""
        values: Sequence[NumpyValues] = start
        for k in range(count if isinstance(count, int) else int(np.max(count.x, initial=0))):
            values = step(self.like(k), *values)
        return values

    def choose(self, yes: Callable[..., Any], no: Callable[..., Any], *arguments: NumpyValues) -> NumpyValues:
        """Return ``yes(*arguments)`` or ``no(*arguments)``, each computed where needed."""
        if self.x.all():
            return self.new(yes(*arguments).x)
        if not self.x.any():
            return self.new(no(*arguments).x)
        result = np.empty(self.x.shape, arguments[0].x.dtype)
        for condition, formula in ((self.x, yes), (~self.x, no)):
            there = np.flatnonzero(condition)
            result[there] = formula(*[NumpyValues(a.x.take(there)) for a in arguments]).x
        return NumpyValues(result)

    # what follows, in fewer passes

    def product_error(self, factor: NumpyValues | Scalar, product: NumpyValues) -> NumpyValues:
        """Return what rounding took from the product with a factor."""
        if self.bits == 32:
            return self.fma(factor, -product)
        return NumpyValues(_product_error(self.x, self.like(factor).x, product.x))

    def floored(self, low: Scalar) -> NumpyValues:
        """Return the float, or `low` where it is less; NaN stays."""
        return NumpyValues(np.maximum(self.x, self.like(low).x)) if low else super().floored(low)  # NumPy chooses any of equal zeros

    def capped(self, high: Scalar) -> NumpyValues:
        """Return the float, or `high` where it is more; NaN stays."""
        return NumpyValues(np.minimum(self.x, self.like(high).x)) if high else super().capped(high)

    def polynomial(self, coefficients: Sequence[Scalar], square: NumpyValues | None = None) -> NumpyValues:
        """Return the polynomial by Horner's rule, in one array."""
        first, second, *rest = [self.like(c).x for c in coefficients]
        result = self.x * first
        result += second
        for coefficient in rest:
            result *= self.x
            result += coefficient
        return NumpyValues(result)


_COMPARISONS = {"eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal}
