"""Owen's T function."""

from __future__ import annotations

import math

from volta_fn.primitives.formulas.error import exp_minus_square, ndtr
from volta_fn.primitives.formulas.exponential import exp
from volta_fn.primitives.formulas.precision import in_float64
from volta_fn.primitives.formulas.values import Values

#: The squares of the positive nodes, and the weights, of Gauss-Legendre quadrature with 40 nodes.
_SQUARES = (
    0.0015033003592635162, 0.013475511464537647, 0.03713235760816143, 0.0719055943241644, 0.11695995815973713, 0.17121322997039845,
    0.23336223017474425, 0.3019141215603053, 0.3752222677473721, 0.45152578599767995, 0.5289918443325199, 0.6057596870424587,
    0.6799853312398909, 0.7498858612036233, 0.8137822575346664, 0.870139735288751, 0.917604632532668, 0.955037009842289,
    0.9815384800475735, 0.9964785250881827,
)  # fmt: skip

_WEIGHTS = (
    0.0775059479784248, 0.07703981816424797, 0.07611036190062624, 0.07472316905796826, 0.07288658239580406, 0.07061164739128678,
    0.0679120458152339, 0.06480401345660104, 0.06130624249292894, 0.05743976909939155, 0.05322784698393682, 0.04869580763507223,
    0.04387090818567327, 0.038782167974472016, 0.033460195282547844, 0.0279370069800234, 0.02224584919416696, 0.01642105838190789,
    0.010498284531152813, 0.004521277098533191,
)  # fmt: skip

#: From this h on the function is 0 in float64.
_ZERO_FROM = 40.0
#: Of h t: beyond it the integrand is less than 2^-57 of what it is at 0.
_REACH = 9.0
#: The largest finite numbers, by width.
_LARGEST = {32: 3.4028234e38, 64: 1.7976931348623157e308}


@in_float64
def owens_t(h: Values, a: Values) -> Values:
    """Return the integral of exp(-h^2 (1 + t^2) / 2) / (1 + t^2) / (2 pi) from 0 to a.

    Beyond a = 1 it follows from T(a h, 1/a) (Owen 1956); up to 1 it is computed by quadrature (method T5 of Patefield and Tandy, "Fast and
    accurate calculation of Owen's T function", 2000, with as many nodes as make it exact everywhere).
    """
    size, slope = h.abs(), a.abs().capped(_LARGEST[a.bits])
    beyond = slope.above(1.0)
    scaled = size.capped(_LARGEST[a.bits]) * slope
    inner = _quadrature(beyond.select(scaled, size), beyond.select(1.0 / beyond.select(slope, 1.0), slope))
    first, second = ndtr(-size), ndtr(-scaled)
    out = beyond.select((first + second) * 0.5 - first * second - inner, inner)
    return (h.is_nan() | a.is_nan()).select(math.nan, out).signed(a)


def _quadrature(h: Values, a: Values) -> Values:
    """Return T(h, a) for h >= 0 and 0 <= a <= 1; the integral ends where h t = 9."""
    bounded = h.capped(_ZERO_FROM)
    product = (bounded * a).capped(_REACH)
    end = (bounded * a).above(_REACH).select(_REACH / bounded.floored(1.0), a)
    exponent, square = product * product * -0.5, end * end
    total = h.like(0.0)
    for node, weight in zip(_SQUARES, _WEIGHTS, strict=True):
        total = total + weight * exp(exponent * node) / square.mad(node, 1.0)
    return h.above(_ZERO_FROM).select(0.0, total * exp_minus_square(bounded, 0.5) * end * (0.5 / math.pi))
