"""Quotients of gamma functions."""

from __future__ import annotations

from volta_fn import dtypes
from volta_fn.primitives.declare import Domain, Elementwise, elementwise
from volta_fn.primitives.elementwise.special import digamma, polygamma, scaled_slope
from volta_fn.primitives.formulas import gamma_quotients

_POSITIVE = Domain(0.2, 4.0)


digamma_rise: Elementwise = elementwise(
    "digamma_rise", formula=gamma_quotients.digamma_rise, operands=dtypes.FLOATS,
    derivatives=[
        lambda g, out, a, b: g * (polygamma(1.0, a + b) - polygamma(1.0, a)),
        lambda g, out, a, b: g * polygamma(1.0, a + b),
    ],
    domain=_POSITIVE, doc="digamma(a + b) - digamma(a).",
)  # fmt: skip
betaln: Elementwise = elementwise(
    "betaln", formula=gamma_quotients.betaln, operands=dtypes.FLOATS,
    derivatives=[lambda g, out, a, b: g * -digamma_rise(a, b), lambda g, out, a, b: g * -digamma_rise(b, a)],
    domain=_POSITIVE, doc="log |beta(a, b)|.",
)  # fmt: skip
beta: Elementwise = elementwise(
    "beta", formula=gamma_quotients.beta, operands=dtypes.FLOATS,
    derivatives=[
        lambda g, out, a, b: scaled_slope(g, out, -digamma_rise(a, b)),
        lambda g, out, a, b: scaled_slope(g, out, -digamma_rise(b, a)),
    ],
    domain=_POSITIVE, doc="gamma(a) gamma(b) / gamma(a + b).",
)  # fmt: skip
comb: Elementwise = elementwise(
    "comb", formula=gamma_quotients.comb, operands=dtypes.FLOATS,
    derivatives=[
        lambda g, out, n, k: scaled_slope(g, out, digamma_rise(n - k + 1.0, k)),
        lambda g, out, n, k: scaled_slope(g, out, digamma_rise(k + 1.0, n - 2.0 * k)),
    ],
    domain=Domain(0.2, 1.9, operands={0: (2.0, 4.0)}), doc="gamma(n + 1) / (gamma(k + 1) gamma(n - k + 1)) for 0 <= k <= n, else 0.",
)  # fmt: skip
poch: Elementwise = elementwise(
    "poch", formula=gamma_quotients.poch, operands=dtypes.FLOATS,
    derivatives=[
        lambda g, out, z, m: scaled_slope(g, out, digamma_rise(z, m)),
        lambda g, out, z, m: scaled_slope(g, out, digamma(z + m)),
    ],
    domain=_POSITIVE, doc="gamma(z + m) / gamma(z).",
)  # fmt: skip
factorial: Elementwise = elementwise(
    "factorial", formula=gamma_quotients.factorial, operands=dtypes.FLOATS,
    derivatives=[lambda g, out, n: scaled_slope(g, out, digamma(n + 1.0))],
    domain=_POSITIVE, doc="gamma(n + 1) for n >= 0, else 0.",
)  # fmt: skip
