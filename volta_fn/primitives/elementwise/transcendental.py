"""Elementwise exponentials, logarithms, roots and trigonometric functions."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass

import numpy as np

from volta_fn import dtypes
from volta_fn.core.array import Array, as_value
from volta_fn.primitives.declare import Domain, Elementwise, elementwise
from volta_fn.primitives.elementwise import arithmetic, selection
from volta_fn.primitives.elementwise.selection import select
from volta_fn.primitives.formulas import exponential, trigonometric
from volta_fn.primitives.formulas import numpy_values as rules

# ------------------------------------------------------------------------------
# JAX's choices between fast and exact code, the option `accuracy`.
# ------------------------------------------------------------------------------


class AccuracyMode(enum.Enum):
    """The accuracy of an elementwise function; all code here is of the highest.

    >>> import volta_fn as vf
    >>> vf.lax.exp(0.0, accuracy=vf.lax.AccuracyMode.HIGHEST)
    Array(1., dtype=float32, weak_type=True)
    """

    HIGHEST = 1
    DEFAULT = 2


@dataclass(frozen=True)
class Tolerance:
    """The errors that a caller accepts, the last one in units in the last place.

    >>> import volta_fn as vf
    >>> vf.lax.exp(0.0, accuracy=vf.lax.Tolerance(rtol=1e-3))
    Array(1., dtype=float32, weak_type=True)
    """

    atol: float = 0.0
    rtol: float = 0.0
    ulps: int = 0


# ------------------------------------------------------------------------------
# Elementwise exponentials, logarithms and roots.
# ------------------------------------------------------------------------------

_POSITIVE = Domain(0.2, 4.0)

exp: Elementwise = elementwise(
    "exp", np.exp, formula=exponential.exp, operands=dtypes.INEXACT, derivatives=[lambda g, out, x: g * out], doc="e to the power x."
)
exp2: Elementwise = elementwise(
    "exp2", np.exp2, formula=exponential.exp2, operands=dtypes.INEXACT, derivatives=[lambda g, out, x: g * (out * math.log(2.0))],
    doc="2 to the power x.",
)  # fmt: skip
expm1: Elementwise = elementwise(
    "expm1", rules.expm1, formula=exponential.expm1, operands=dtypes.INEXACT, derivatives=[lambda g, out, x: g * exp(x)],
    float_ufunc=np.expm1, doc="exp(x) - 1, exact near zero.",
)  # fmt: skip
log: Elementwise = elementwise(
    "log", np.log, formula=exponential.log, operands=dtypes.INEXACT, derivatives=[lambda g, out, x: g / x], domain=_POSITIVE,
    doc="Natural logarithm.",
)  # fmt: skip
log2: Elementwise = elementwise(
    "log2", np.log2, formula=exponential.log2, operands=dtypes.INEXACT, derivatives=[lambda g, out, x: g / (x * math.log(2.0))],
    domain=_POSITIVE, doc="Logarithm to base 2.",
)  # fmt: skip
log1p: Elementwise = elementwise(
    "log1p", rules.log1p, formula=exponential.log1p, operands=dtypes.INEXACT, derivatives=[lambda g, out, x: g / (x + 1.0)],
    domain=_POSITIVE, float_ufunc=np.log1p, doc="log(1 + x), exact near zero.",
)  # fmt: skip
sqrt: Elementwise = elementwise(
    "sqrt", np.sqrt, operands=dtypes.INEXACT, derivatives=[lambda g, out, x: g * (0.5 / out)], domain=_POSITIVE, doc="Square root."
)
rsqrt: Elementwise = elementwise(
    "rsqrt", rules.rsqrt, operands=dtypes.INEXACT, derivatives=[lambda g, out, x: g * (-0.5 * out / x)], domain=_POSITIVE,
    doc="1 / sqrt(x).",
)  # fmt: skip
cbrt: Elementwise = elementwise(
    "cbrt", np.cbrt, formula=exponential.cbrt, operands=dtypes.FLOATS, derivatives=[lambda g, out, x: g / (3.0 * out * out)], domain=_POSITIVE,
    doc="Cube root.",
)  # fmt: skip
logistic: Elementwise = elementwise(
    "logistic", rules.logistic, formula=exponential.logistic, operands=dtypes.INEXACT,
    derivatives=[lambda g, out, x: g * (out * (1.0 - out))], doc="1 / (1 + exp(-x)).",
)  # fmt: skip


def gap(x: Array, y: Array) -> Array:
    """Return x - y, and 0 for equal infinities, whose difference is NaN."""
    same = selection.bitwise_and(selection.eq(x, y), selection.bitwise_not(selection.is_finite(x)))
    return select(same, as_value(np.zeros((), x.dtype)), x - y)


logaddexp: Elementwise = elementwise(
    "logaddexp", np.logaddexp, formula=exponential.logaddexp, operands=dtypes.FLOATS,
    derivatives=[lambda g, out, x, y: g * logistic(gap(x, y)), lambda g, out, x, y: g * logistic(gap(y, x))],
    doc="log(exp(x) + exp(y)), without overflow.",
)  # fmt: skip


# ------------------------------------------------------------------------------
# Elementwise trigonometric and hyperbolic functions with their inverses.
# ------------------------------------------------------------------------------

_UNIT = Domain(-0.9, 0.9)

sin: Elementwise = elementwise(
    "sin", np.sin, formula=trigonometric.sin, operands=dtypes.INEXACT, derivatives=[lambda g, out, x: g * cos(x)],
    doc="Sine of x in radians.",
)  # fmt: skip
cos: Elementwise = elementwise(
    "cos", np.cos, formula=trigonometric.cos, operands=dtypes.INEXACT, derivatives=[lambda g, out, x: -(g * sin(x))],
    doc="Cosine of x in radians.",
)  # fmt: skip
tan: Elementwise = elementwise(
    "tan", rules.tan, formula=trigonometric.tan, operands=dtypes.INEXACT, derivatives=[lambda g, out, x: g * (1.0 + out * out)],
    domain=Domain(-1.2, 1.2), float_ufunc=np.tan, doc="Tangent of x in radians.",
)  # fmt: skip
asin: Elementwise = elementwise(
    "asin", np.arcsin, formula=trigonometric.asin, operands=dtypes.INEXACT, derivatives=[lambda g, out, x: g * rsqrt(1.0 - x * x)],
    domain=_UNIT, doc="The angle in [-pi/2, pi/2] whose sine is x.",
)  # fmt: skip
acos: Elementwise = elementwise(
    "acos", np.arccos, formula=trigonometric.acos, operands=dtypes.INEXACT, derivatives=[lambda g, out, x: -(g * rsqrt(1.0 - x * x))],
    domain=_UNIT, doc="The angle in [0, pi] whose cosine is x.",
)  # fmt: skip
atan: Elementwise = elementwise(
    "atan", np.arctan, formula=trigonometric.atan, operands=dtypes.INEXACT, derivatives=[lambda g, out, x: g / (1.0 + x * x)],
    doc="The angle in [-pi/2, pi/2] whose tangent is x.",
)  # fmt: skip


def _over_squares(x: Array, y: Array) -> Array:
    """Return x / (x² + y²), whose squares may be beyond the range."""
    size = arithmetic.max(arithmetic.abs(x), arithmetic.abs(y))
    u, v = x / size, y / size
    return u / (u * u + v * v) / size


atan2: Elementwise = elementwise(
    "atan2", np.arctan2, formula=trigonometric.atan2, operands=dtypes.FLOATS, domain=Domain(avoid=(0.0,), margin=0.3),
    derivatives=[lambda g, out, y, x: g * _over_squares(x, y), lambda g, out, y, x: -g * _over_squares(y, x)],
    doc="The angle in [-pi, pi] of the point (x, y), given as (y, x).",
)  # fmt: skip
sinh: Elementwise = elementwise(
    "sinh", np.sinh, formula=exponential.sinh, operands=dtypes.INEXACT, derivatives=[lambda g, out, x: g * cosh(x)], doc="Hyperbolic sine."
)
cosh: Elementwise = elementwise(
    "cosh", np.cosh, formula=exponential.cosh, operands=dtypes.INEXACT, derivatives=[lambda g, out, x: g * sinh(x)],
    doc="Hyperbolic cosine.",
)  # fmt: skip
tanh: Elementwise = elementwise(
    "tanh", rules.tanh, formula=exponential.tanh, operands=dtypes.INEXACT, derivatives=[lambda g, out, x: g * (1.0 - out * out)],
    float_ufunc=np.tanh, doc="Hyperbolic tangent.",
)  # fmt: skip
asinh: Elementwise = elementwise(
    "asinh", np.arcsinh, formula=exponential.asinh, operands=dtypes.INEXACT, derivatives=[lambda g, out, x: g * rsqrt(x * x + 1.0)],
    doc="The inverse of sinh.",
)  # fmt: skip
acosh: Elementwise = elementwise(
    "acosh", np.arccosh, formula=exponential.acosh, operands=dtypes.INEXACT, domain=Domain(1.2, 4.0),
    derivatives=[lambda g, out, x: g / (sqrt(x - 1.0) * sqrt(x + 1.0))], doc="The inverse of cosh.",
)  # fmt: skip
atanh: Elementwise = elementwise(
    "atanh", np.arctanh, formula=exponential.atanh, operands=dtypes.INEXACT, derivatives=[lambda g, out, x: g / (1.0 - x * x)], domain=_UNIT,
    doc="The inverse of tanh.",
)  # fmt: skip
