"""Special functions: error, gamma, zeta and Bessel functions."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from volta_fn import dtypes
from volta_fn.core.array import Array, as_value
from volta_fn.errors import GradientError
from volta_fn.primitives.arithmetic import sign
from volta_fn.primitives.comparison import eq
from volta_fn.primitives.declare import Domain, Elementwise, elementwise
from volta_fn.primitives.exponential import exp
from volta_fn.primitives.formulas import bessel, error, gamma
from volta_fn.primitives.selection import select

_POSITIVE = Domain(0.2, 4.0)

# error function: its derivative is the Gaussian 2/sqrt(pi) exp(-x^2)

_TWO_OVER_SQRT_PI = 2.0 / math.sqrt(math.pi)

erf: Elementwise = elementwise(
    "erf", formula=error.erf, operands=dtypes.FLOATS, derivatives=[lambda g, out, x: g * (_TWO_OVER_SQRT_PI * exp(-x * x))],
    doc="Error function.",
)  # fmt: skip
erfc: Elementwise = elementwise(
    "erfc", formula=error.erfc, operands=dtypes.FLOATS, derivatives=[lambda g, out, x: g * (-_TWO_OVER_SQRT_PI * exp(-x * x))],
    doc="1 - erf(x), exact for large x.",
)  # fmt: skip
erf_inv: Elementwise = elementwise(
    "erf_inv", formula=error.erf_inv, operands=dtypes.FLOATS, derivatives=[lambda g, out, x: g * (exp(out * out) / _TWO_OVER_SQRT_PI)],
    domain=Domain(-0.9, 0.9), doc="The inverse of erf.",
)  # fmt: skip

# normal distribution: its density is the derivative of its function


def _density(x: Array) -> Array:
    return exp(-0.5 * x * x) * (1.0 / math.sqrt(2.0 * math.pi))


ndtr: Elementwise = elementwise(
    "ndtr", formula=error.ndtr, operands=dtypes.FLOATS, derivatives=[lambda g, out, x: g * _density(x)],
    doc="The normal distribution's function, exact far on the left.",
)  # fmt: skip
gelu: Elementwise = elementwise(
    "gelu", formula=error.gelu, operands=dtypes.FLOATS, derivatives=[lambda g, out, x: g * (ndtr(x) + x * _density(x))],
    doc="x ndtr(x), exact far on the left; an operation by itself since one evaluation of the tail does for both signs.",
)  # fmt: skip


def _undefined(function: str, operand: str) -> Callable[..., Array]:
    """Return the derivative by an operand that has none: it raises."""

    def derivative(*_: Array) -> Array:
        raise GradientError(f"{function} has no derivative by {operand}; wrap the argument in lax.stop_gradient to hold it fixed")

    return derivative


# gamma function

lgamma: Elementwise = elementwise(
    "lgamma", formula=gamma.lgamma, operands=dtypes.FLOATS, derivatives=[lambda g, out, x: g * digamma(x)], domain=_POSITIVE,
    doc="log |gamma(x)|.",
)  # fmt: skip
digamma: Elementwise = elementwise(
    "digamma", formula=gamma.digamma, operands=dtypes.FLOATS, derivatives=[lambda g, out, x: g * polygamma(1.0, x)], domain=_POSITIVE,
    doc="The derivative of lgamma.",
)  # fmt: skip
polygamma: Elementwise = elementwise(
    "polygamma", formula=gamma.polygamma, operands=dtypes.FLOATS,
    derivatives=[_undefined("polygamma", "m"), lambda g, out, m, x: g * polygamma(m + 1.0, x)],
    domain=Domain(0.2, 4.0, operands={0: (1.0, 1.0)}), doc="The m-th derivative of digamma at x.",
)  # fmt: skip

# zeta and Bessel functions

zeta: Elementwise = elementwise(
    "zeta", formula=gamma.zeta, operands=dtypes.FLOATS,
    derivatives=[_undefined("zeta", "x"), lambda g, out, x, q: g * (-x * zeta(x + 1.0, q))],
    domain=Domain(0.5, 3.0, operands={0: (2.0, 2.0)}),
    doc="Hurwitz's zeta function, the sum of (q + k)^-x over k = 0, 1, …; differentiable in q.",
)  # fmt: skip

bessel_i0e: Elementwise = elementwise(
    "bessel_i0e", formula=bessel.bessel_i0e, operands=dtypes.FLOATS, derivatives=[lambda g, out, x: g * (bessel_i1e(x) - sign(x) * out)],
    domain=Domain(avoid=(0.0,)), doc="The modified Bessel function of order 0, scaled: exp(-|x|) I0(x).",
)  # fmt: skip


def _i1e_derivative(g: Array, out: Array, x: Array) -> Array:
    """Return I0e - (sign x + 1 / x) I1e, whose limit at zero is 1/2."""
    at_zero = eq(x, 0.0)
    safe = select(at_zero, as_value(np.ones((), x.dtype)), x)
    slope = bessel_i0e(x) - (out * sign(x) + out / safe)
    return g * select(at_zero, as_value(np.asarray(0.5, x.dtype)), slope)


bessel_i1e: Elementwise = elementwise(
    "bessel_i1e", formula=bessel.bessel_i1e, operands=dtypes.FLOATS, derivatives=[_i1e_derivative],
    domain=Domain(avoid=(0.0,), margin=0.2), doc="The modified Bessel function of order 1, scaled: exp(-|x|) I1(x).",
)  # fmt: skip
