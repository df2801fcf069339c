"""Incomplete gamma and beta functions."""

from __future__ import annotations

from volta_fn import dtypes
from volta_fn.core.array import Array
from volta_fn.primitives.declare import Domain, Elementwise, elementwise
from volta_fn.primitives.elementwise.exponential import log, log1p
from volta_fn.primitives.elementwise.gamma_quotients import digamma_rise
from volta_fn.primitives.elementwise.special import digamma, undefined
from volta_fn.primitives.formulas import incomplete_beta, incomplete_gamma

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

_SHARE = Domain(0.5, 4.0, operands={2: (0.05, 0.95)})

regularized_incomplete_beta: Elementwise = elementwise(
    "regularized_incomplete_beta", formula=incomplete_beta.betainc, operands=dtypes.FLOATS,
    derivatives=[
        lambda g, out, a, b, x: g * betainc_grad_a(a, b, x),
        lambda g, out, a, b, x: g * betainc_grad_b(a, b, x),
        lambda g, out, a, b, x: g * beta_density(a, b, x),
    ],
    domain=_SHARE, doc="The regularised incomplete beta function of x.",
)  # fmt: skip
regularized_incomplete_beta_complement: Elementwise = elementwise(
    "regularized_incomplete_beta_complement", formula=incomplete_beta.betaincc, operands=dtypes.FLOATS,
    derivatives=[
        lambda g, out, a, b, x: -g * betainc_grad_a(a, b, x),
        lambda g, out, a, b, x: -g * betainc_grad_b(a, b, x),
        lambda g, out, a, b, x: -g * beta_density(a, b, x),
    ],
    domain=_SHARE, doc="1 less the regularised incomplete beta function of x, precise if small.",
)  # fmt: skip


def _beta_density_by(g: Array, out: Array, log_x: Array, a: Array, b: Array) -> Array:
    return g * (out * (log_x + digamma_rise(a, b)))


beta_density: Elementwise = elementwise(
    "beta_density", formula=incomplete_beta.beta_density, operands=dtypes.FLOATS,
    derivatives=[
        lambda g, out, a, b, x: _beta_density_by(g, out, log(x), a, b),
        lambda g, out, a, b, x: _beta_density_by(g, out, log1p(-x), b, a),
        lambda g, out, a, b, x: g * (out * ((a - 1.0) / x - (b - 1.0) / (1.0 - x))),
    ],
    domain=_SHARE, doc="x^(a - 1) (1 - x)^(b - 1) / B(a, b), the derivative of the incomplete beta function by x.",
)  # fmt: skip
betainc_grad_a: Elementwise = elementwise(
    "betainc_grad_a", formula=incomplete_beta.betainc_grad_a, operands=dtypes.FLOATS,
    derivatives=[
        undefined("betainc_grad_a", "a"), undefined("betainc_grad_a", "b"),
        lambda g, out, a, b, x: _beta_density_by(g, beta_density(a, b, x), log(x), a, b),
    ],
    domain=_SHARE, doc="The derivative of the incomplete beta function by a.",
)  # fmt: skip
betainc_grad_b: Elementwise = elementwise(
    "betainc_grad_b", formula=incomplete_beta.betainc_grad_b, operands=dtypes.FLOATS,
    derivatives=[
        undefined("betainc_grad_b", "a"), undefined("betainc_grad_b", "b"),
        lambda g, out, a, b, x: _beta_density_by(g, beta_density(a, b, x), log1p(-x), b, a),
    ],
    domain=_SHARE, doc="The derivative of the incomplete beta function by b.",
)  # fmt: skip
