"""What elementwise operations are tested with: operands with all that is special about a dtype, and which operations are exact."""

import itertools

import ml_dtypes
import numpy as np

from volta_fn import dtypes
from volta_fn.core.primitive import PRIMITIVES

INTEGERS = sorted(dtypes.INTEGERS, key=str)
FLOATS = sorted(dtypes.FLOATS, key=str)
BOOL = [np.dtype(bool)]


#: Special and ordinary parts of complex numbers.
PARTS = [0.0, -0.0, 1.0, -2.5, 3e-3, 1e30, np.inf, -np.inf, np.nan]


def complex_pairs(dtype):
    """Return all pairs of complex numbers of these parts, as two operands."""
    values = [complex(a, b) for a, b in itertools.product(PARTS, repeat=2)]
    return [np.array(column, dtype) for column in zip(*itertools.product(values, repeat=2), strict=True)]


def samples(dtype):
    """Values of a dtype, with all that is special about it."""
    rng = np.random.default_rng(7)
    if dtype.kind == "b":
        return np.array([False, True])
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        edges = np.array([0, 1, 2, 3, 7, info.bits - 1, info.bits, info.max, info.max - 1, info.min, info.min + 1], dtype)
        return np.concatenate([edges, -edges, rng.integers(info.min, info.max, 12, dtype, endpoint=True)])
    info = ml_dtypes.finfo(dtype)
    tiny = float(info.smallest_subnormal)
    edges = [0.0, 0.5, 1.0, 1.5, 2.5, 3.0, 7.3, float(info.max), float(info.tiny), tiny, 3 * tiny, np.inf, np.nan]
    values = np.concatenate([edges, rng.normal(size=6), 10.0 ** rng.uniform(-6, 6, 8)])
    with np.errstate(all="ignore"):
        return np.concatenate([values, -values]).astype(dtype)


def operands(arity, dtype):
    """Return all combinations of samples, as arrays."""
    values = samples(dtype)
    chosen = values if arity < 3 else values[::3]
    return [np.array(column, dtype) for column in zip(*itertools.product(chosen, repeat=arity), strict=True)]


def assert_same_bits(actual, expected):
    """Equal, zeros with their signs, all NaNs alike."""
    assert actual.dtype == expected.dtype
    if actual.dtype in dtypes.FLOATS:
        with np.errstate(all="ignore"):
            nan = np.isnan(expected)
            assert np.array_equal(np.isnan(actual), nan)
        actual, expected = (np.where(nan, np.zeros((), x.dtype), x).view(f"u{x.dtype.itemsize}") for x in (actual, expected))
    np.testing.assert_array_equal(actual, expected)


COMPARISONS = ["eq", "ne", "lt", "le", "gt", "ge"]
BITS = ["and", "or", "xor", "not"]
SHIFTS = ["shift_left", "shift_right_logical", "shift_right_arithmetic", "population_count", "clz"]
ARITHMETIC = ["add", "sub", "mul", "div", "neg", "abs", "sign", "max", "min", "clamp"]
ROUNDING = ["floor", "ceil", "round", "round_half_even", "is_finite", "sqrt", "rsqrt"]
CASES = [
    *itertools.product([*COMPARISONS, *BITS, "add", "mul", "max", "min", "clamp"], BOOL),
    *itertools.product([*COMPARISONS, *BITS, *SHIFTS, *ARITHMETIC, "rem", "pow"], INTEGERS),
    *itertools.product([*COMPARISONS, *ARITHMETIC, *ROUNDING], FLOATS),
    *itertools.product(["nextafter"], [np.dtype(np.float32), np.dtype(np.float64)]),
]


COMPLEX_FUNCTIONS = (
    "exp exp2 expm1 log log2 log1p sqrt rsqrt logistic sin cos tan sinh cosh tanh asin acos atan asinh acosh atanh sign pow".split()
)


#: Functions with their parameters, at zeros, infinities and NaN as C's standard and NumPy have them.
COMPLEX_AT_INFINITY = [
    *[(op, {}) for op in "exp exp2 log log1p sqrt rsqrt sin cos sinh cosh asin acos atan asinh acosh atanh tanh expm1".split()],
    ("integer_pow", {"y": -1}),
]


def complex_edges(op, dtype):
    """Return complex numbers whose components are zeros, ordinary numbers, infinities and NaN, in all pairs.

    Of acosh(0 + NaN i) C's standards, and NumPy's versions, say different things.
    """
    parts = [0.0, 0.5, 1.0, 3.0, np.inf]
    values = [*parts, *[-x for x in parts], np.nan]
    result = np.array([complex(a, b) for a, b in itertools.product(values, repeat=2)], dtype)
    return result[(result.real != 0) | ~np.isnan(result.imag)] if op == "acosh" else result


def differs_at(actual, wanted):
    """Return where components are not the same NaN, infinity, zero with its sign, or number up to some units in the last place."""
    close = 8 * np.finfo(wanted.dtype).eps
    wrong = np.zeros(wanted.shape, bool)
    for a, e in ((actual.real, wanted.real), (actual.imag, wanted.imag)):
        near = np.isfinite(e) & (np.abs(a - e) <= close * np.maximum(np.abs(e), 1)) & ((e != 0) | (np.signbit(a) == np.signbit(e)))
        wrong |= ~(near | (a == e) & np.isinf(e) | (np.isnan(a) & np.isnan(e)))
    return wrong


def complex_arguments():
    """Return two arrays of complex128: all quadrants, near 0 and far, on the axes, and on both sides of the branch cuts."""
    rng = np.random.default_rng(7)
    sizes = np.repeat([1.0, 0.01, 5.0], 400)
    x, y = ((rng.normal(size=1200) + 1j * rng.normal(size=1200)) * sizes for _ in range(2))
    x[:10] = [1, -1, 1j, -1j, 2, -2, 0.5, -0.5, complex(-2, -0.0), complex(2, -0.0)]
    return x, y


def wide_value(op, operands, **params):
    """Return what the evaluation rule makes of complex operands in the widest dtype that it takes."""
    dtype = np.complex128 if op in ("logistic", "sign") else np.clongdouble
    return PRIMITIVES[op].evaluate(*[v.astype(dtype) for v in operands], **params)


#: Complex functions, with parameters, whose components are each right to some units in their last place.
COMPONENTWISE = [
    *[(op, {}) for op in "exp log log2 log1p sqrt sin cos tan sinh cosh tanh asin acos atan asinh acosh atanh sign abs".split()],
    ("integer_pow", {"y": 2}),
    ("integer_pow", {"y": -1}),
]


def exponent_pairs(dtype, step):
    """Return complex numbers in all quadrants, with all pairs of exponents, from the smallest number to the largest, by a step."""
    part = np.finfo(dtype).dtype
    rng = np.random.default_rng(7)
    exponents = np.arange(*{4: (-149, 128), 8: (-1074, 1024)}[part.itemsize], step)
    pairs = np.array(np.meshgrid(exponents, exponents)).reshape(2, -1)
    signs = rng.choice([-1.0, 1.0], pairs.shape)
    with np.errstate(over="ignore"):
        re, im = np.ldexp((signs * rng.uniform(1, 2, pairs.shape)).astype(part), pairs)
    result = (re + 1j * im).astype(dtype)
    return result[np.isfinite(result)]


def _wide_log1p(z):
    """Compute log1p in wider numbers, as NumPy's adds 1 first."""
    x, y = z.real, z.imag
    near = (np.abs(x) < 0.5) & (np.abs(y) < 0.5)
    return np.where(near, np.log1p(np.where(near, x * x + (2 * x + y * y), 0)) / 2, np.log1p(z).real) + 1j * np.arctan2(y, x + 1)


_LOG_2 = np.log(np.longdouble(2))
_WIDE = {
    "log2": lambda z: np.log(z) / _LOG_2,
    "log1p": _wide_log1p,
    "sign": lambda z: z / np.abs(z),
    **{f"a{name}": getattr(np, f"arc{name}") for name in "sin cos tan sinh cosh tanh".split()},
}


def assert_components(op, params, x, actual, units):
    """Compare each component with NumPy's function in 80 bits, whose exponents have room on both sides, in units in the last place."""
    wide = x.astype(np.clongdouble)
    with np.errstate(all="ignore"):
        wanted = (
            wide ** params["y"]
            if op == "integer_pow" and params["y"] > 0
            else 1 / wide
            if params
            else _WIDE.get(op, getattr(np, op, None))(wide)
        )
        part = actual.real.dtype
        for got, want in ((actual.real, wanted.real), (actual.imag, wanted.imag)):
            rounded = want.astype(part)
            close = np.abs(got - want) <= units * np.spacing(np.abs(rounded))
            wrong = ~(close | (got == rounded))
            assert not wrong.any(), f"{op}{params} of {x[wrong][:3]}: {got[wrong][:3]}, not {rounded[wrong][:3]}"
