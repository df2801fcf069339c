"""NumPy rules of arithmetic that NumPy defines otherwise, or lacks."""

from __future__ import annotations

import numpy as np

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
    """Return what `div`, rounded toward zero, leaves of x, with x's sign.

    Integers by 0 leave x, floats NaN.
    """
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
    """Return 1 / (1 + exp(-x)) without overflow.

    On the left it is exp(x) / (1 + exp(x)).
    """
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
        return _float_power(x, y)
    if x.dtype.kind != "i":
        return np.power(x, y)
    one, zero = x.dtype.type(1), x.dtype.type(0)
    unit = np.where(np.bitwise_and(y, 1) == 1, x, one)
    inverse = np.where((x == 1) | (x == -1), unit, zero)
    return np.where(y < 0, inverse, np.power(x, np.maximum(y, zero)))


def _float_power(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return x to the power y, of -infinity, too.

    NumPy takes square roots where neighbours share the exponent 0.5, which have none of -infinity.
    """
    power = np.power(x, y)
    if y.ndim and 0 not in y.strides:
        return power
    if not y.size or (not any(y.strides) and y.item(0) != 0.5):
        return power
    roots = np.isneginf(x) & (y == 0.5)
    return np.where(roots, x.dtype.type(np.inf), power) if roots.any() else power


def integer_pow(x: np.ndarray, *, y: int, out: np.ndarray | None = None) -> np.ndarray:
    """Return x to an integer power by repeated squaring.

    A negative power is the reciprocal of the positive one.
    """
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
    """Return the number of zeros above the highest bit that is 1.

    For 0 it is the width.
    """
    width = 8 * x.dtype.itemsize
    smeared = _unsigned(x)
    step = 1
    while step < width:
        smeared = smeared | (smeared >> smeared.dtype.type(step))
        step *= 2
    return (width - np.bitwise_count(smeared)).astype(x.dtype)
