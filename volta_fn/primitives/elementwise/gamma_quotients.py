"""Quotients of gamma functions."""

from __future__ import annotations

import numpy as np

from volta_fn import dtypes
from volta_fn.core.array import Array, as_value
from volta_fn.primitives.declare import Domain, Elementwise, elementwise
from volta_fn.primitives.elementwise.comparison import eq
from volta_fn.primitives.elementwise.selection import select
from volta_fn.primitives.elementwise.special import digamma
from volta_fn.primitives.formulas import gamma_quotients

_POSITIVE = Domain(0.2, 4.0)


def _scaled(g: Array, out: Array, slope: Array) -> Array:
    """Return g out slope, and 0 where out is 0: digamma may be infinite or NaN there."""
    zero = eq(out, 0.0)
    return g * select(zero, out, out * select(zero, as_value(np.zeros((), out.dtype)), slope))


betaln: Elementwise = elementwise(
    "betaln", formula=gamma_quotients.betaln, operands=dtypes.FLOATS,
    derivatives=[lambda g, out, a, b: g * (digamma(a) - digamma(a + b)), lambda g, out, a, b: g * (digamma(b) - digamma(a + b))],
    domain=_POSITIVE, doc="log |beta(a, b)|.",
)  # fmt: skip
beta: Elementwise = elementwise(
    "beta", formula=gamma_quotients.beta, operands=dtypes.FLOATS,
    derivatives=[
        lambda g, out, a, b: _scaled(g, out, digamma(a) - digamma(a + b)),
        lambda g, out, a, b: _scaled(g, out, digamma(b) - digamma(a + b)),
    ],
    domain=_POSITIVE, doc="gamma(a) gamma(b) / gamma(a + b).",
)  # fmt: skip
comb: Elementwise = elementwise(
    "comb", formula=gamma_quotients.comb, operands=dtypes.FLOATS,
    derivatives=[
        lambda g, out, n, k: _scaled(g, out, digamma(n + 1.0) - digamma(n - k + 1.0)),
        lambda g, out, n, k: _scaled(g, out, digamma(n - k + 1.0) - digamma(k + 1.0)),
    ],
    domain=Domain(0.2, 1.9, operands={0: (2.0, 4.0)}), doc="gamma(n + 1) / (gamma(k + 1) gamma(n - k + 1)) for 0 <= k <= n, else 0.",
)  # fmt: skip
poch: Elementwise = elementwise(
    "poch", formula=gamma_quotients.poch, operands=dtypes.FLOATS,
    derivatives=[
        lambda g, out, z, m: _scaled(g, out, digamma(z + m) - digamma(z)),
        lambda g, out, z, m: _scaled(g, out, digamma(z + m)),
    ],
    domain=_POSITIVE, doc="gamma(z + m) / gamma(z).",
)  # fmt: skip
factorial: Elementwise = elementwise(
    "factorial", formula=gamma_quotients.factorial, operands=dtypes.FLOATS,
    derivatives=[lambda g, out, n: _scaled(g, out, digamma(n + 1.0))],
    domain=_POSITIVE, doc="gamma(n + 1) for n >= 0, else 0.",
)  # fmt: skip
