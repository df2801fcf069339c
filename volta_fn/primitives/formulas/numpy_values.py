"""Formulas evaluated by NumPy, and arithmetic that NumPy defines otherwise."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from volta_fn.primitives.formulas.values import BIAS, SIGNIFICAND, Scalar, Values

_NARROW = 2  # bytes of float16 and bfloat16, which compute through float32


def _widened(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float32) if x.dtype.itemsize == _NARROW and x.dtype.kind not in "iu" else x


def _rounded(x: np.ndarray, dtype: np.dtype, out: np.ndarray | None) -> np.ndarray:
    """Convert `x` to a dtype, and write it to `out` if there is one."""
    if out is None:
        return x.astype(dtype, copy=False)
    out[...] = x
    return out


# quotients


def div(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return x / y; of integers rounded toward zero.

    For y = 0 it is -1 (all bits 1); it wraps when it overflows.
    """
    if x.dtype.kind not in "iu":
        return np.divide(x, y)
    quotient = np.floor_divide(x, y)
    if x.dtype.kind == "i":
        quotient = quotient + ((x < 0) != (y < 0)) * (quotient * y != x)
    return np.where(y == 0, ~x.dtype.type(0), quotient)


def rem(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the remainder of `div`, with x's sign; by 0 integers leave x, floats NaN."""
    rest = np.fmod(x, y)
    return np.where(y == 0, x, rest) if x.dtype.kind in "iu" else rest


# sign and rounding


def sign(x: np.ndarray) -> np.ndarray:
    """Return -1, 0 (for -0.0, too) or 1; NaN stays; x / |x| for complex x."""
    if x.dtype.kind == "c":
        x = _scaled(x, _moderating(x))
    return np.sign(x) + x.dtype.type(0) if x.dtype.kind == "V" else np.sign(x)  # ml_dtypes keeps the sign of zeros


def _moderating(x: np.ndarray) -> np.ndarray:
    """Return powers of two that make absolute values normal and finite."""
    size = np.maximum(np.abs(x.real), np.abs(x.imag))
    return np.where(size > 1e38, 0.5, np.where(size < 1e-30, 2.0**64 if size.dtype.itemsize == 8 else 2.0**32, 1.0)).astype(size.dtype)


def round_half_away(x: np.ndarray) -> np.ndarray:
    """Return the nearest integer; halves go away from zero."""
    integral = np.trunc(x)
    half_or_more = np.abs(x - integral) >= 0.5
    return integral + np.copysign(half_or_more.astype(x.dtype), x)


def nextafter(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the next value of the dtype after x in the direction of y.

    Of equal ones it is y, as C says (NumPy's float16 gave x up to some version).
    """
    return np.where(x == y, y, np.nextafter(x, y))


# roots and the logistic function


def rsqrt(x: np.ndarray) -> np.ndarray:
    """Return 1 / sqrt(x); infinite at zero, with its sign."""
    return np.reciprocal(np.sqrt(_widened(x))).astype(x.dtype, copy=False)


def cbrt(x: np.ndarray) -> np.ndarray:
    """Return the real cube root."""
    return np.cbrt(x)


def logistic(x: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
    """Return 1 / (1 + exp(-x)) without overflow: exp(x) / (1 + exp(x)) on the left."""
    if x.dtype.kind == "c":
        return _rounded(_logistic_complex(x), x.dtype, out)
    wide = _widened(x)
    power = np.abs(wide, out=np.empty(wide.shape, wide.dtype))
    np.negative(power, out=power)
    np.exp(power, out=power)
    above = np.empty_like(power) if out is None or out.dtype != wide.dtype else out
    np.maximum(power, wide >= 0.0, out=above)
    np.add(power, 1.0, out=power)
    np.divide(above, power, out=above)
    return _rounded(above, x.dtype, None if above is out else out)


def _logistic_complex(x: np.ndarray) -> np.ndarray:
    left = x.real < 0
    power = np.exp(np.where(left, x, -x))
    return np.where(left, power, 1.0) / (1.0 + power)


# complex functions at infinity, as the Array API standard has them


def expm1(x: np.ndarray) -> np.ndarray:
    """Return exp(x) - 1; NumPy's own is NaN for some complex infinities."""
    out = np.expm1(x)
    if x.dtype.kind != "c":
        return out
    undirected = np.isinf(x.real) & ~np.isfinite(x.imag)
    re = np.where(undirected, np.expm1(x.real), out.real)
    im = np.where(undirected & (x.real < 0), 0.0, out.imag)
    return _complex(re + 0.0, np.where(x.imag == 0, x.imag, im), x.dtype)  # -0.0 becomes 0.0


def log1p(x: np.ndarray) -> np.ndarray:
    """Return log(1 + x).

    Of complex x it is exact near zero, where NumPy adds 1 first, and |1 + x| does not overflow.
    """
    if x.dtype.kind != "c":
        return np.log1p(x)
    re, im = x.real.astype(np.float64), x.imag.astype(np.float64)
    near = (np.abs(re) < 3) & (np.abs(im) < 3)
    less = _less_one(np.where(near, re, 3), np.where(near, im, 3))
    near = np.abs(less) < 0.75
    inside = np.log1p(np.where(near, less, 0)) / 2
    outside = np.log(np.hypot((re + 1) / 4, im / 4)) + np.log(4)
    return _complex(np.where(near, inside, outside), np.arctan2(im, re + 1), x.dtype)


def _less_one(re: np.ndarray, im: np.ndarray) -> np.ndarray:
    """Return (1 + re)^2 + im^2 - 1, which may be much smaller than its terms."""
    (first, first_rest), (second, second_rest) = _exact_square(re), _exact_square(im)
    total, rest = _exact_sum(2 * re, second)
    total, more = _exact_sum(total, first)
    return total + (rest + more + (first_rest + second_rest))


def _exact_square(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return x * x rounded, and the rounding error (Dekker)."""
    split = x * 134217729.0
    high = split - (split - x)
    low, product = x - high, x * x
    return product, ((high * high - product) + 2 * high * low) + low * low


def _exact_sum(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return x + y rounded, and the rounding error (Knuth)."""
    total = x + y
    added = total - x
    return total, (x - (total - added)) + (y - added)


def tanh(x: np.ndarray) -> np.ndarray:
    """Return tanh(x); at complex infinity ±1, and the imaginary zero has x's sign."""
    out = np.tanh(x)
    if x.dtype.kind != "c":
        return out
    return _complex(out.real, np.where(np.isinf(x.real), np.copysign(0.0, x.imag), out.imag), x.dtype)


def tan(x: np.ndarray) -> np.ndarray:
    """Return tan(x), which is -i tanh(i x)."""
    out = np.tan(x)
    if x.dtype.kind != "c":
        return out
    return _complex(np.where(np.isinf(x.imag), np.copysign(0.0, x.real), out.real), out.imag, x.dtype)


def _scaled(x: np.ndarray, factor: np.ndarray) -> np.ndarray:
    return _complex(x.real * factor, x.imag * factor, x.dtype)


def _complex(re: np.ndarray, im: np.ndarray, dtype: np.dtype) -> np.ndarray:
    out = np.empty(re.shape, dtype)
    out.real, out.imag = re, im
    return out


# powers


def pow(x: np.ndarray, y: np.ndarray) -> np.ndarray:  # JAX's name
    """Return x to the power y.

    For integers a negative power is the exact value rounded toward zero (and 0 for x = 0).
    """
    if x.dtype.kind == "f":
        # NumPy takes square roots where neighbours share the exponent 0.5, which have none of -infinity, and -0.0 of -0.0.
        power = np.power(x, y)
        if y.ndim and 0 not in y.strides:
            return power
        if not y.size or (not any(y.strides) and y.item(0) != 0.5):
            return power
        roots = (np.isneginf(x) | (x == 0)) & (y == 0.5)
        return np.where(roots, np.abs(x), power) if roots.any() else power
    if x.dtype.kind != "i":
        return np.power(x, y)
    one, zero = x.dtype.type(1), x.dtype.type(0)
    unit = np.where(np.bitwise_and(y, 1) == 1, x, one)
    inverse = np.where((x == 1) | (x == -1), unit, zero)
    return np.where(y < 0, inverse, np.power(x, np.maximum(y, zero)))


def integer_pow(x: np.ndarray, *, y: int, out: np.ndarray | None = None) -> np.ndarray:
    """Return x to an integer power by repeated squaring; negative ones by reciprocals."""
    if y == 2 and out is not None and x.dtype.itemsize != _NARROW and x.dtype.kind != "c":
        return np.multiply(x, x, out=out)
    result, square = None, _widened(x)
    exponent = abs(y)
    while exponent:
        if exponent & 1:
            result = square if result is None else np.multiply(result, square)
        exponent >>= 1
        square = _square(square) if exponent else square
    result = np.ones_like(x) if result is None else _reciprocal(result) if y < 0 else result
    return _rounded(result, x.dtype, out)


def _square(x: np.ndarray) -> np.ndarray:
    """Return x * x; of complex x by factors, as a difference of squares cancels."""
    if x.dtype.kind != "c":
        return np.multiply(x, x)
    re, im = x.real * x.real.dtype.type(0.5), x.imag * x.real.dtype.type(0.5)
    return _complex((re - im) * (re + im) * x.real.dtype.type(4.0), x.real * x.imag * x.real.dtype.type(2.0), x.dtype)


def _reciprocal(x: np.ndarray) -> np.ndarray:
    """Return 1 / x; of complex numbers without a divisor that overflows."""
    if x.dtype.kind != "c":
        return np.reciprocal(x)
    factor = _moderating(x)
    return _scaled(np.reciprocal(_scaled(x, factor)), factor)


def _unsigned(x: np.ndarray) -> np.ndarray:
    return x.view(f"u{x.dtype.itemsize}")


# NumPy's shifts are defined for every count: one that is negative or not below the width shifts all bits out. That is XLA's meaning.


def shift_left(x: np.ndarray, count: np.ndarray) -> np.ndarray:
    """Return x << count, with zeros moving in; 0 for a count outside 0, …, width - 1."""
    return np.left_shift(x, count)


def shift_right_arithmetic(x: np.ndarray, count: np.ndarray) -> np.ndarray:
    """Return x >> count, with copies of the sign bit moving in.

    That holds for unsigned integers, too; there are only copies for a count outside 0, …, width - 1.
    """
    signed = f"i{x.dtype.itemsize}"
    return np.right_shift(x.view(signed), count.view(signed)).view(x.dtype)


def shift_right_logical(x: np.ndarray, count: np.ndarray) -> np.ndarray:
    """Return x >> count, with zeros moving in; 0 for a count outside 0, …, width - 1."""
    return np.right_shift(_unsigned(x), _unsigned(count)).view(x.dtype)


def population_count(x: np.ndarray) -> np.ndarray:
    """Return the number of bits that are 1."""
    return np.bitwise_count(_unsigned(x)).astype(x.dtype)


def clz(x: np.ndarray) -> np.ndarray:
    """Return the number of zeros above the highest bit that is 1; the width for 0."""
    width = 8 * x.dtype.itemsize
    smeared = _unsigned(x)
    step = 1
    while step < width:
        smeared = smeared | (smeared >> smeared.dtype.type(step))
        step *= 2
    return (width - np.bitwise_count(smeared)).astype(x.dtype)


# Formulas evaluated by NumPy: `Values` that are NumPy arrays.
#
# Each step of a formula is a pass over memory. On blocks of a few thousand elements those passes run at the speed of the cache,
# whatever the size of the array.

#: Elements of a block: a handful of temporaries of this size fit the second-level cache of any CPU of this century.
BLOCK = 1 << 14

_FLOAT32, _FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)

#: 2^27 + 1: multiplying by it and taking away the excess leaves the upper 26 bits of a float64.
_SPLITTER = 134217729.0

Formula = Callable[..., Any]


def evaluated(formula: Formula) -> Callable[..., np.ndarray]:
    """Return the evaluation rule of a primitive with this formula.

    It is a function of float arrays of one dtype, which broadcast. float16 and bfloat16 compute in float32.
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


def fused_multiply_add(x: Any, y: Any, z: Any) -> Any:
    """Return x y + z rounded once, in float64."""
    # In it products of float32 are exact, and those of float64 must not overflow.
    if x.dtype == _FLOAT32:
        return x.astype(np.float64) * y + z
    # The exact rounding errors of product and sum are added (Dekker 1971, Knuth's two-sum).
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
    """A NumPy array of float32, float64, int32, int64 or bool, as `Values`."""

    __slots__ = ("x",)

    fuses = False
    is_numpy = True

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

    def by_numpy(self, function: Callable[..., Any], others: Sequence[NumpyValues | Scalar]) -> NumpyValues:
        """Call a function of NumPy arrays with these values and others."""
        return NumpyValues(function(self.x, *[self.like(y).x for y in others]))

    # arithmetic

    def binary(self, operator: str, other: NumpyValues | Scalar) -> NumpyValues:
        """Apply an operator of `_OPERATORS`."""
        return NumpyValues(_OPERATORS[operator](self.x, self.like(other).x))

    def __neg__(self) -> NumpyValues:
        return NumpyValues(-self.x)

    def __invert__(self) -> NumpyValues:
        return NumpyValues(~self.x)

    def shift_right(self, count: NumpyValues | Scalar, *, signed: bool = False) -> NumpyValues:
        """Shift right; zeros or copies of the sign move in."""
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

    def round_half_away(self) -> NumpyValues:
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

    def copysign(self, model: NumpyValues | Scalar) -> NumpyValues:
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

    def to_float(self) -> NumpyValues:
        """Convert a non-negative integer to a float of the same width."""
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
        return self.to_float()

    def round_scaled(self, factor: float, addend: float = 0.0, offset: int = 0) -> tuple[NumpyValues, NumpyValues]:
        """Return n = round(self * factor + addend) as a float, n + offset as an integer."""
        n = self.mad(factor, addend).nearest()
        return n, n.as_integer() + offset

    def power_of_two(self) -> NumpyValues:
        """Return 2^n of an integer n, where that is a normal number."""
        return ((self.as_integer() + BIAS[self.bits]) << SIGNIFICAND[self.bits]).as_float()

    # control flow

    def if_any(self, name: str, write: Callable[..., Values], arguments: Sequence[NumpyValues], usual: NumpyValues) -> NumpyValues:
        """Return ``write(*arguments)`` where this condition holds, else `usual`."""
        if not self.x.any():
            return usual
        special: Any = write(*[NumpyValues(np.broadcast_to(a.x, self.x.shape)[self.x]) for a in arguments])
        result = usual.x.copy()
        result[self.x] = special.x
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
            positions = np.flatnonzero(condition)
            result[positions] = formula(*[NumpyValues(a.x.take(positions)) for a in arguments]).x
        return NumpyValues(result)

    # operations composed of the above, in fewer passes

    def product_error(self, factor: NumpyValues | Scalar, product: NumpyValues) -> NumpyValues:
        """Return the rounding error of the product with a factor."""
        if self.bits == 32:
            return self.fma(factor, -product)
        return NumpyValues(_product_error(self.x, self.like(factor).x, product.x))

    def max_keep_nan(self, low: Scalar) -> NumpyValues:
        """Return the larger of the float and `low`; NaN stays NaN."""
        return NumpyValues(np.maximum(self.x, self.like(low).x)) if low else super().max_keep_nan(low)  # NumPy chooses any of equal zeros

    def min_keep_nan(self, high: Scalar) -> NumpyValues:
        """Return the lesser of the float and `high`; NaN stays NaN."""
        return NumpyValues(np.minimum(self.x, self.like(high).x)) if high else super().min_keep_nan(high)

    def polynomial(self, coefficients: Sequence[Scalar], square: NumpyValues | None = None) -> NumpyValues:
        """Return the polynomial by Horner's rule, in one array."""
        first, second, *rest = [self.like(c).x for c in coefficients]
        result = self.x * first
        result += second
        for coefficient in rest:
            result *= self.x
            result += coefficient
        return NumpyValues(result)


_OPERATORS = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv,
    "&": operator.and_, "|": operator.or_, "^": operator.xor, "<<": operator.lshift,
}  # fmt: skip
_COMPARISONS = {"eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal}
