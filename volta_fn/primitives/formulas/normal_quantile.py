"""The quantile of the standard normal distribution."""

from __future__ import annotations

import math

from volta_fn.primitives.formulas.logarithm import log
from volta_fn.primitives.formulas.precision import in_float64
from volta_fn.primitives.formulas.values import Values

# Coefficients of ndtri: Wichura, "Algorithm AS 241: the percentage points of the normal distribution", Applied Statistics 37, 1988.

_Rational = tuple[tuple[float, ...], tuple[float, ...]]

_CENTRE: _Rational = (
    (
        2.5090809287301226727e3, 3.3430575583588128105e4, 6.7265770927008700853e4, 4.5921953931549871457e4,
        1.3731693765509461125e4, 1.9715909503065514427e3, 1.3314166789178437745e2, 3.3871328727963666080,
    ),
    (
        5.2264952788528545610e3, 2.8729085735721942674e4, 3.9307895800092710610e4, 2.1213794301586595867e4,
        5.3941960214247511077e3, 6.8718700749205790830e2, 4.2313330701600911252e1, 1.0,
    ),
)  # fmt: skip
_TAIL: _Rational = (
    (
        7.74545014278341407640e-4, 2.27238449892691845833e-2, 2.41780725177450611770e-1, 1.27045825245236838258,
        3.64784832476320460504, 5.76949722146069140550, 4.63033784615654529590, 1.42343711074968357734,
    ),
    (
        1.05075007164441684324e-9, 5.47593808499534494600e-4, 1.51986665636164571966e-2, 1.48103976427480074590e-1,
        6.89767334985100004550e-1, 1.67638483018380384940, 2.05319162663775882187, 1.0,
    ),
)  # fmt: skip
_FAR_TAIL: _Rational = (
    (
        2.01033439929228813265e-7, 2.71155556874348757815e-5, 1.24266094738807843860e-3, 2.65321895265761230930e-2,
        2.96560571828504891230e-1, 1.78482653991729133580, 5.46378491116411436990, 6.65790464350110377720,
    ),
    (
        2.04426310338993978564e-15, 1.42151175831644588870e-7, 1.84631831751005468180e-5, 7.86869131145613259100e-4,
        1.48753612908506148525e-2, 1.36929880922735805310e-1, 5.99832206555887937690e-1, 1.0,
    ),
)  # fmt: skip


def _ratio(x: Values, coefficients: _Rational) -> Values:
    return x.polynomial(coefficients[0]) / x.polynomial(coefficients[1])


@in_float64
def ndtri(p: Values) -> Values:
    """Return the number that a standard normal one does not exceed with probability p."""
    centred = p - 0.5
    central = centred.abs().compare("ole", 0.425)
    centre = centred * _ratio(0.180625 - central.select(centred * centred, 0.0), _CENTRE)
    inside = ~central & p.above(0.0) & p.below(1.0)
    depth = (-log(inside.select(p.at_most(1.0 - p), 0.04))).sqrt()
    far = depth.above(5.0)
    reach = far.select(_ratio(far.select(depth - 5.0, 0.0), _FAR_TAIL), _ratio(depth - 1.6, _TAIL)).signed(centred)
    ends = p.equals(0.0).select(-math.inf, p.equals(1.0).select(math.inf, p.like(math.nan)))
    return central.select(centre, inside.select(reach, ends))
