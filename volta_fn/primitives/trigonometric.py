"""Elementwise trigonometric and hyperbolic functions with their inverses."""

from __future__ import annotations

import numpy as np

from volta_fn import dtypes
from volta_fn.primitives.declare import Domain, elementwise
from volta_fn.primitives.exponential import rsqrt, sqrt

_UNIT = Domain(-0.9, 0.9)

sin = elementwise("sin", np.sin, operands=dtypes.INEXACT, derivatives=[lambda g, out, x: g * cos(x)], doc="Sine of x in radians.")
cos = elementwise("cos", np.cos, operands=dtypes.INEXACT, derivatives=[lambda g, out, x: -(g * sin(x))], doc="Cosine of x in radians.")
tan = elementwise(
    "tan", np.tan, operands=dtypes.INEXACT, derivatives=[lambda g, out, x: g * (1.0 + out * out)], domain=Domain(-1.2, 1.2),
    doc="Tangent of x in radians.",
)  # fmt: skip
asin = elementwise(
    "asin", np.arcsin, operands=dtypes.INEXACT, derivatives=[lambda g, out, x: g * rsqrt(1.0 - x * x)], domain=_UNIT,
    doc="The angle in [-pi/2, pi/2] whose sine is x.",
)  # fmt: skip
acos = elementwise(
    "acos", np.arccos, operands=dtypes.INEXACT, derivatives=[lambda g, out, x: -(g * rsqrt(1.0 - x * x))], domain=_UNIT,
    doc="The angle in [0, pi] whose cosine is x.",
)  # fmt: skip
atan = elementwise(
    "atan", np.arctan, operands=dtypes.INEXACT, derivatives=[lambda g, out, x: g / (1.0 + x * x)], doc="The angle in [-pi/2, pi/2] whose tangent is x."
)
atan2 = elementwise(
    "atan2", np.arctan2, operands=dtypes.FLOATS, domain=Domain(avoid=(0.0,), margin=0.3),
    derivatives=[lambda g, out, y, x: g * (x / (x * x + y * y)), lambda g, out, y, x: g * (-y / (x * x + y * y))],
    doc="The angle in [-pi, pi] of the point (x, y), given as (y, x).",
)  # fmt: skip
sinh = elementwise("sinh", np.sinh, operands=dtypes.INEXACT, derivatives=[lambda g, out, x: g * cosh(x)], doc="Hyperbolic sine.")
cosh = elementwise("cosh", np.cosh, operands=dtypes.INEXACT, derivatives=[lambda g, out, x: g * sinh(x)], doc="Hyperbolic cosine.")
tanh = elementwise("tanh", np.tanh, operands=dtypes.INEXACT, derivatives=[lambda g, out, x: g * (1.0 - out * out)], doc="Hyperbolic tangent.")
asinh = elementwise(
    "asinh", np.arcsinh, operands=dtypes.INEXACT, derivatives=[lambda g, out, x: g * rsqrt(x * x + 1.0)], doc="The inverse of sinh."
)
acosh = elementwise(
    "acosh", np.arccosh, operands=dtypes.INEXACT, domain=Domain(1.2, 4.0),
    derivatives=[lambda g, out, x: g / (sqrt(x - 1.0) * sqrt(x + 1.0))], doc="The inverse of cosh.",
)  # fmt: skip
atanh = elementwise(
    "atanh", np.arctanh, operands=dtypes.INEXACT, derivatives=[lambda g, out, x: g / (1.0 - x * x)], domain=_UNIT, doc="The inverse of tanh."
)
