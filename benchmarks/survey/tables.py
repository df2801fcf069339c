"""All functions of the survey."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.survey.rows import Maker, Row, batch, between, each, listed, matrices, normal, plain, rows, with_options

ONE, TWO, UNIT, POSITIVE = normal("float32"), normal("float32", "float32"), between(-0.99, 0.99), between(0.1, 10)
INTEGER, INTEGER_TWO, INDICES = between(1, 1000, dtype="int32"), between(1, 1000, 2, "int32"), between(0, 900, dtype="int32")
MATRIX, MATRICES, HALVES = matrices(), matrices(2), normal("float16", "float16")
COMPLEX = normal("complex64")


def flags(count: int = 1) -> Maker:
    """Make arrays of booleans."""
    return lambda rng, n: tuple([rng.random(n) < 0.5 for _ in range(count)])


def sorted_and_queries(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Make a sorted array, and numbers to look up."""
    return np.sort(rng.normal(size=n)).astype(np.float32), rng.normal(size=n).astype(np.float32)


def filtered(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Make a signal and a short filter."""
    return rng.normal(size=n).astype(np.float32), rng.normal(size=31).astype(np.float32)


def holed(rng: np.random.Generator, n: int) -> tuple[np.ndarray]:
    """Make numbers of which a tenth are NaN."""
    return (np.where(rng.random(n) < 0.1, np.nan, rng.normal(size=n)).astype(np.float32),)


def row_and_matrix(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Make a matrix and one row to broadcast over it."""
    side = int(n**0.5)
    return rng.normal(size=(side, side)).astype(np.float32), rng.normal(size=side).astype(np.float32)


def polynomial(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Make eight coefficients, and where to evaluate the polynomial."""
    return rng.normal(size=8).astype(np.float32), rng.normal(size=n).astype(np.float32)


def count(rng: np.random.Generator, n: int) -> tuple[np.int32]:
    """Make a number of iterations."""
    return (np.int32(n),)


# Bodies of loops


def below(carry: Any) -> Any:
    """Return True until the counter is at its end."""
    return carry[0] < carry[1]


def advanced(carry: Any) -> Any:
    """Count, and do little else."""
    return carry[0] + 1, carry[1], carry[2] * 0.5 + 1.0


def halved(i: Any, total: Any) -> Any:
    """Do little."""
    return total * 0.5 + 1.0


def decayed(total: Any, x: Any) -> Any:
    """Add to a sum that decays."""
    return total * 0.5 + x, total


ELEMENTWISE = [
    *rows("numpy", "abs cbrt ceil cos cosh deg2rad exp exp2 expm1 fabs floor isfinite isinf isnan isneginf isposinf logical_not", ONE),
    *rows("numpy", "negative positive rad2deg reciprocal rint round sign signbit sin sinc sinh spacing square tan tanh trunc", ONE),
    *rows("numpy", "i0 nan_to_num angle real imag conjugate frexp modf arctan arcsinh iscomplex isreal", ONE),
    *rows("numpy", "sqrt log log10 log1p log2", POSITIVE),
    *rows("numpy", "arccos arcsin arctanh", UNIT),
    *rows("numpy", "arccosh", between(1.1, 9)),
    *rows("numpy", "add arctan2 copysign divide equal floor_divide fmax fmin fmod greater greater_equal heaviside hypot isclose less", TWO),
    *rows("numpy", "less_equal logaddexp logaddexp2 logical_and logical_or logical_xor maximum minimum multiply nextafter not_equal", TWO),
    *rows("numpy", "remainder subtract divmod allclose array_equal", TWO),
    *rows("numpy", "power float_power", each(POSITIVE, ONE)),
    *rows("numpy", "power", ONE, with_options(2), "2"),
    *rows("numpy", "power", POSITIVE, with_options(0.3), "0.3"),
    *rows("numpy", "clip", ONE, with_options(-1, 1)),
    *rows("numpy", "where", each(flags(), TWO)),
    *rows("numpy", "ldexp", each(ONE, between(-5, 5, dtype="int32"))),
    *rows("numpy", "bitwise_and bitwise_or bitwise_xor floor_divide remainder gcd lcm add multiply", INTEGER_TWO, variant="int32"),
    *rows("numpy", "divide", INTEGER_TWO, variant="int32"),
    *rows("numpy", "power", each(INTEGER, between(0, 3, dtype="int32")), variant="int32"),
    *rows("numpy", "left_shift right_shift", each(INTEGER, between(0, 8, dtype="int32"))),
    *rows("numpy", "bitwise_count bitwise_invert sign", INTEGER, variant="int32"),
    *rows("numpy", "abs angle exp sqrt", COMPLEX, variant="complex64"),
    *rows("numpy", "multiply divide", normal("complex64", "complex64"), variant="complex64"),
    *rows("numpy", "add multiply divide maximum less", HALVES, variant="float16"),
    *rows("numpy", "exp tanh sqrt", normal("float16"), lambda f, x: f(abs(x)), "float16"),
    *rows("numpy", "add multiply divide", normal("float64", "float64"), variant="float64"),
    *rows("numpy", "exp log1p sin tanh", between(0.1, 3, dtype="float64"), variant="float64"),
    *rows("numpy", "add multiply", row_and_matrix, variant="row"),
    *rows("numpy", "add", matrices(2), lambda f, x, y: f(x, y.T), "transposed"),
    *rows("numpy", "astype", ONE, with_options("int32"), "int32"),
    *rows("numpy", "astype", ONE, with_options("float16"), "float16"),
    *rows("numpy", "astype", INTEGER, with_options("float32"), "from int32"),
]

REDUCTIONS = [
    *rows("numpy", "sum mean prod max min argmax argmin std var ptp any all count_nonzero average trapezoid median", ONE),
    *rows("numpy", "cumsum cumprod nancumsum", ONE),
    *rows("numpy", "nansum nanmean nanmax nanmin nanstd nanvar nanprod nanargmax nanmedian", holed),
    *rows("numpy", "sum mean max argmax std cumsum median", MATRIX, with_options(axis=0), "axis 0"),
    *rows("numpy", "sum mean max argmin var cumsum", MATRIX, with_options(axis=1), "axis 1"),
    *rows("numpy", "sum cumsum", INTEGER, variant="int32"),
    *rows("numpy", "sum mean", normal("float16"), variant="float16"),
    *rows("numpy", "sum", normal("float64"), variant="float64"),
    *rows("numpy", "any all sum count_nonzero", flags(), variant="bool"),
    *rows("numpy", "percentile", ONE, with_options(30.0)),
    *rows("numpy", "quantile", ONE, with_options(0.7)),
    *rows("numpy", "histogram", ONE),
    *rows("numpy", "bincount", between(0, 100, dtype="int32"), with_options(length=100)),
    *rows("numpy", "cov corrcoef", batch, with_options(rowvar=False)),
    *rows("numpy", "diff ediff1d gradient", ONE),
]

PRODUCTS = [
    *rows("numpy", "dot inner vdot", TWO),
    *rows("numpy", "matmul tensordot", MATRICES, plain),
    *rows("numpy", "matmul", matrices(2, "float16"), variant="float16", largest=10**5),
    *rows("numpy", "matmul", matrices(2, "float64"), variant="float64"),
    *rows("numpy", "matvec", row_and_matrix),
    *rows("numpy", "einsum", MATRICES, lambda f, x, y: f("ij,kj->ik", x, y)),
    *rows("numpy", "outer", lambda rng, n: tuple([rng.normal(size=int(n**0.5)).astype(np.float32) for _ in range(2)])),
    *rows("numpy", "kron", lambda rng, n: tuple([rng.normal(size=(int(n**0.25),) * 2).astype(np.float32) for _ in range(2)])),
    *rows("numpy", "cross", lambda rng, n: tuple([rng.normal(size=(n // 3, 3)).astype(np.float32) for _ in range(2)])),
    *rows("numpy", "convolve correlate", filtered),
    *rows("numpy", "polyval", polynomial),
    *rows("numpy", "vander", lambda rng, n: (rng.normal(size=n // 4).astype(np.float32),), with_options(4)),
    *rows("numpy", "trace", MATRIX),
]

MOVEMENT = [
    *rows("numpy", "concatenate stack hstack vstack dstack column_stack", TWO, listed()),
    *rows("numpy", "stack", TWO, listed(axis=-1), "last axis"),
    *rows("numpy", "concatenate", MATRICES, listed(axis=1), "axis 1"),
    *rows("numpy", "append", TWO),
    *rows("numpy", "flip roll", ONE, lambda f, x: f(x, 3) if f.__name__ == "roll" else f(x)),
    *rows("numpy", "tril triu diag rot90 fliplr flipud", MATRIX),
    *rows("numpy", "transpose", MATRIX, lambda f, x: f(x) + 1, "plus 1"),
    *rows("numpy", "roll", MATRIX, with_options(7, axis=1), "axis 1"),
    *rows("numpy", "repeat", ONE, with_options(2)),
    *rows("numpy", "repeat", MATRIX, with_options(2, axis=0), "axis 0"),
    *rows("numpy", "tile", ONE, with_options(2)),
    *rows("numpy", "pad", MATRIX, with_options(2)),
    *rows("numpy", "pad", ONE, with_options(3, mode="reflect"), "reflect"),
    *rows("numpy", "take", each(ONE, INDICES)),
    *rows("numpy", "take", matrices(), with_options(np.arange(0, 30, 3), axis=1), "columns"),
    *rows("numpy", "take_along_axis", each(ONE, INDICES), with_options(axis=0)),
    *rows("numpy", "delete", ONE, with_options(5), largest=10**5),
    *rows("numpy", "insert", ONE, with_options(5, 1.0), largest=10**5),
    *rows("numpy", "zeros_like ones_like copy", ONE),
    *rows("numpy", "full_like", ONE, with_options(2.0)),
    *rows("numpy", "meshgrid", lambda rng, n: tuple([rng.normal(size=int(n**0.5)).astype(np.float32) for _ in range(2)])),
    *rows("numpy", "linspace", lambda rng, n: (), lambda f: f(0.0, 1.0, 1000), "1000"),
    *rows("numpy", "arange", lambda rng, n: (), lambda f: f(1000), "1000"),
    *rows("numpy", "select", each(flags(2), TWO), lambda f, p, q, x, y: f([p, q], [x, y])),
]

ORDER = [
    *rows("numpy", "sort", ONE),
    *rows("numpy", "sort", MATRIX, with_options(axis=0), "axis 0"),
    *rows("numpy", "argsort", ONE, defined=False),
    *rows("numpy", "argsort", MATRIX, with_options(axis=0), "axis 0", defined=False),
    *rows("numpy", "sort", INTEGER, variant="int32"),
    *rows("numpy", "partition argpartition", ONE, with_options(10), defined=False),
    *rows("numpy", "searchsorted", sorted_and_queries),
    *rows("numpy", "digitize", lambda rng, n: (rng.normal(size=n).astype(np.float32), np.linspace(-3, 3, 20).astype(np.float32))),
    *rows("numpy", "interp", lambda rng, n: (rng.normal(size=n).astype(np.float32), *np.linspace(-3, 3, 40).astype("f").reshape(2, 20))),
    *rows("numpy", "isin", each(INTEGER, lambda rng, n: (np.arange(0, 60, 3, dtype=np.int32),))),
    *rows("numpy", "lexsort", INTEGER_TWO, listed()),
    *rows("lax", "top_k", batch, with_options(5)),
]

FOURIER = [
    *rows("fft", "fft ifft", normal("complex64")),
    *rows("fft", "rfft", ONE),
    *rows("fft", "irfft", normal("complex64")),
    *rows("fft", "fft ifft", lambda rng, n: (rng.normal(size=(n // 100, 100)).astype(np.complex64),), variant="batch"),
    *rows("fft", "rfft", batch, variant="batch"),
    *rows("fft", "fft2 ifft2", matrices(1, "complex64")),
    *rows("fft", "rfft2", MATRIX),
    *rows("fft", "fftn", matrices(1, "complex64")),
    *rows("fft", "fftshift ifftshift", ONE),
]

LAX = [
    *rows("lax", "abs neg exp sign sin floor is_finite erf erfc logistic tanh square cbrt expm1 round", ONE),
    *rows("lax", "rsqrt sqrt log lgamma digamma", POSITIVE),
    *rows("lax", "erf_inv", UNIT),
    *rows("lax", "add mul sub div max min eq lt rem atan2 nextafter", TWO),
    *rows("lax", "add div rem population_count clz", INTEGER_TWO, lambda f, x, y: f(x) if f.__name__[0] in "pc" else f(x, y), "int32"),
    *rows("lax", "integer_pow", ONE, with_options(3)),
    *rows("lax", "clamp", ONE, lambda f, x: f(-1.0, x, 1.0)),
    *rows("lax", "select", each(flags(), TWO)),
    *rows("lax", "cumsum cummax cumprod cumlogsumexp", ONE),
    *rows("lax", "convert_element_type", ONE, with_options("int32")),
    *rows("lax", "reduce_max reduce_sum", MATRIX, with_options((0,)), "axis 0"),
    *rows("lax", "rev", ONE, with_options((0,))),
    *rows("lax", "dynamic_slice", ONE, lambda f, x: f(x, (7,), (x.shape[0] // 2,))),
    *rows("lax", "dynamic_update_slice", TWO, lambda f, x, y: f(x, y[:100], (7,))),
    *rows("lax", "dot", MATRICES),
    *rows("lax", "sort", ONE),
    *rows("lax", "while_loop", count, lambda f, n: f(below, advanced, (0, n, 0.0))[2]),
    *rows("lax", "fori_loop", count, lambda f, n: f(0, n, halved, 0.0)),
    *rows("lax", "scan", ONE, lambda f, x: f(decayed, 0.0, x)),
    *rows("lax", "scan", batch, lambda f, x: f(decayed, x[0], x), "rows"),
]

ACTIVATIONS = [
    *rows("nn", "relu relu6 gelu silu sigmoid softplus elu selu celu leaky_relu hard_sigmoid hard_tanh hard_silu log_sigmoid mish", ONE),
    *rows("nn", "soft_sign squareplus", ONE),
    *rows("nn", "softmax log_softmax logsumexp", batch),
    *rows("nn", "one_hot", lambda rng, n: (rng.integers(0, 10, n // 10),), with_options(10)),
    *rows("nn", "glu", batch),
]

SPECIAL = [
    *rows("special", "erf erfc expit i0 i0e i1 i1e log_ndtr ndtr", ONE),
    *rows("special", "gammaln digamma gamma entr exp1 xlogy", POSITIVE, lambda f, x: f(x, x) if f.__name__ == "xlogy" else f(x)),
    *rows("special", "erfinv", UNIT),
    *rows("special", "logit ndtri", between(0.01, 0.99)),
    *rows("special", "xlog1py rel_entr kl_div betaln", between(0.1, 10, 2)),
    *rows("special", "gammainc gammaincc", between(0.5, 10, 2), largest=10**5),
    *rows("special", "betainc", lambda rng, n: (*between(0.5, 5, 2)(rng, n), *between(0.01, 0.99)(rng, n)), largest=10**5),
    *rows("special", "logsumexp", ONE),
]

TABLE: list[Row] = [*ELEMENTWISE, *REDUCTIONS, *PRODUCTS, *MOVEMENT, *ORDER, *FOURIER, *LAX, *ACTIVATIONS, *SPECIAL]
