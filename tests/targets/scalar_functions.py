"""Oracles for functions that are approximated, arguments to try, and how many units in the last place results are off."""

import numpy as np
import scipy.special

FLOAT32, FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)


def logistic(x):
    """Compute the logistic function in the arithmetic of x."""
    power = np.exp(-np.abs(x))
    return np.where(x < 0, power, 1) / (1 + power)


ORACLES = {
    "exp": np.exp,
    "exp2": np.exp2,
    "expm1": np.expm1,
    "logistic": logistic,
    "tanh": np.tanh,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "log": np.log,
    "log2": np.log2,
    "log1p": np.log1p,
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "asinh": np.arcsinh,
    "acosh": np.arccosh,
    "atanh": np.arctanh,
    "cbrt": np.cbrt,
}


def lgamma(x):
    """SciPy's, infinite at both infinities."""
    return np.where(np.isinf(x), np.inf, scipy.special.gammaln(x))


def digamma(x):
    """SciPy's, NaN at its poles."""
    return np.where((x <= 0) & (x == np.floor(x)), np.nan, scipy.special.digamma(x))


def gelu(x):
    """Compute GELU by SciPy's distribution function; its limit at -inf."""
    return np.where(x == -np.inf, -0.0, x * scipy.special.ndtr(x))


SPECIAL = {
    "erf": scipy.special.erf,
    "erfc": scipy.special.erfc,
    "ndtr": scipy.special.ndtr,
    "gelu": gelu,
    "lgamma": lgamma,
    "digamma": digamma,
}

#: Units in the last place of float32 allowed where two are not enough.
UNITS = {"ndtr": 3.5, "gelu": 4.0}


def arguments(dtype, count):
    """Numbers of all sizes, by their bits, and more of those that matter."""
    rng = np.random.default_rng(11)
    unsigned = np.dtype(f"u{dtype.itemsize}")
    step = (1 << (8 * dtype.itemsize)) // count
    bits = np.arange(count, dtype=unsigned) * unsigned.type(step) + rng.integers(0, step, count, unsigned)
    ranges = [(-1, 1), (-4, 4), (-20, 20), (-110, 110), (0, 2), (-1000, 1000), (1e4, 1e6)]
    usual = [rng.uniform(low, high, count // 8).astype(dtype) for low, high in ranges]
    return np.concatenate([bits.view(dtype), *usual])


def edges(dtype):
    """Arguments at which something changes."""
    info = np.finfo(dtype)
    bounds = [88.722839, 89.4159, 103.972, 87.33655, 128.0, 149.0, 709.782712893384, 745.13, 1024.0, 1074.0, np.pi, np.pi / 2]
    sizes = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 8.0, 1e30, info.tiny, info.smallest_subnormal, info.max, np.inf, np.nan, *bounds]
    values = np.array([*sizes, *[-x for x in sizes]], dtype)
    return np.concatenate([values, np.nextafter(values, dtype.type(0)), np.nextafter(values, dtype.type(np.inf))])


def assert_within(actual, expected, units, what=""):
    """`actual` is off by at most so many units in the last place of `expected`, which is of a wider dtype."""
    dtype = actual.dtype
    rounded = expected.astype(dtype)
    same = (actual == rounded) | (np.isnan(actual) & np.isnan(rounded))
    unit = np.spacing(np.minimum(np.abs(rounded), np.finfo(dtype).max)).astype(expected.dtype)
    off = np.where(same, 0, np.abs(np.where(same, 0, actual.astype(expected.dtype) - expected)) / unit)
    assert not np.isnan(off).any(), what
    assert off.max() <= units, what


def tail_of_range(expected, dtype):
    """Results so near to overflow that rounding decides."""
    return np.abs(expected) > 0.999999 * float(np.finfo(dtype).max)
