"""Elementwise trigonometric and hyperbolic functions with their inverses."""

from __future__ import annotations

import numpy as np

from volta_fn import dtypes
from volta_fn.core.array import Array
from volta_fn.primitives.declare import Domain, Elementwise, elementwise
from volta_fn.primitives.elementwise import arithmetic
from volta_fn.primitives.elementwise.exponential import rsqrt, sqrt
from volta_fn.primitives.formulas import exponential, logarithm, trigonometric
from volta_fn.primitives.formulas import numpy_rules as rules

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
    "asinh", np.arcsinh, formula=logarithm.asinh, operands=dtypes.INEXACT, derivatives=[lambda g, out, x: g * rsqrt(x * x + 1.0)],
    doc="The inverse of sinh.",
)  # fmt: skip
acosh: Elementwise = elementwise(
    "acosh", np.arccosh, formula=logarithm.acosh, operands=dtypes.INEXACT, domain=Domain(1.2, 4.0),
    derivatives=[lambda g, out, x: g / (sqrt(x - 1.0) * sqrt(x + 1.0))], doc="The inverse of cosh.",
)  # fmt: skip
atanh: Elementwise = elementwise(
    "atanh", np.arctanh, formula=logarithm.atanh, operands=dtypes.INEXACT, derivatives=[lambda g, out, x: g / (1.0 - x * x)], domain=_UNIT,
    doc="The inverse of tanh.",
)  # fmt: skip
