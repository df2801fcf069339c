"""Incomplete gamma functions, as elementwise primitives of two arguments."""

from __future__ import annotations

from volta_fn import dtypes
from volta_fn.core.array import Array
from volta_fn.primitives.declare import Domain, Elementwise, elementwise
from volta_fn.primitives.elementwise.exponential import log
from volta_fn.primitives.elementwise.special import digamma, undefined
from volta_fn.primitives.formulas import incomplete_gamma

_SHAPE = Domain(0.5, 4.0)

igamma: Elementwise = elementwise(
    "igamma", formula=incomplete_gamma.gammainc, operands=dtypes.FLOATS,
    derivatives=[lambda g, out, a, x: g * igamma_grad_a(a, x), lambda g, out, a, x: g * gamma_density(a, x)],
    domain=_SHAPE, doc="The regularised lower incomplete gamma function.",
)  # fmt: skip
igammac: Elementwise = elementwise(
    "igammac", formula=incomplete_gamma.gammaincc, operands=dtypes.FLOATS,
    derivatives=[lambda g, out, a, x: -g * igamma_grad_a(a, x), lambda g, out, a, x: -g * gamma_density(a, x)],
    domain=_SHAPE, doc="The regularised upper incomplete gamma function.",
)  # fmt: skip


def _density_by_a(g: Array, out: Array, a: Array, x: Array) -> Array:
    return g * (out * (log(x) - digamma(a)))


gamma_density: Elementwise = elementwise(
    "gamma_density", formula=incomplete_gamma.gamma_density, operands=dtypes.FLOATS,
    derivatives=[_density_by_a, lambda g, out, a, x: g * (out * ((a - 1.0) / x - 1.0))],
    domain=_SHAPE, doc="x^(a - 1) exp(-x) / gamma(a), the derivative of igamma by x.",
)  # fmt: skip
igamma_grad_a: Elementwise = elementwise(
    "igamma_grad_a", formula=incomplete_gamma.gammainc_grad_a, operands=dtypes.FLOATS,
    derivatives=[undefined("igamma_grad_a", "a"), lambda g, out, a, x: _density_by_a(g, gamma_density(a, x), a, x)],
    domain=_SHAPE, doc="The derivative of igamma by a.",
)  # fmt: skip
random_gamma_grad: Elementwise = elementwise(
    "random_gamma_grad", formula=incomplete_gamma.random_gamma_grad, operands=dtypes.FLOATS,
    derivatives=[undefined("random_gamma_grad", "a"), undefined("random_gamma_grad", "the sample")],
    domain=_SHAPE, doc="The derivative of a gamma number by a at a fixed quantile.",
)  # fmt: skip
