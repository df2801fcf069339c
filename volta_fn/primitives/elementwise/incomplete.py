"""Incomplete gamma and beta functions, and densities of distributions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from volta_fn import dtypes
from volta_fn.core.array import Array, as_value
from volta_fn.primitives.declare import Domain, Elementwise, elementwise
from volta_fn.primitives.elementwise.arithmetic import sign
from volta_fn.primitives.elementwise.comparison import bitwise_and, eq, gt, lt
from volta_fn.primitives.elementwise.exponential import log, log1p, sqrt
from volta_fn.primitives.elementwise.gamma_quotients import digamma_rise
from volta_fn.primitives.elementwise.selection import select
from volta_fn.primitives.elementwise.special import digamma, scaled_slope, undefined
from volta_fn.primitives.elementwise.trigonometric import tanh
from volta_fn.primitives.formulas import incomplete_beta, incomplete_gamma, stirling

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
    return scaled_slope(g, out, _log(x) - digamma(a))


def _log(x: Array) -> Array:
    """Return log(x), and 0 at 0.

    There densities are 0 or infinite, or leap with their shapes.
    """
    return log(select(eq(x, 0.0), _number(1.0, x), x))


def _quotient(top: Array, bottom: Array) -> Array:
    """Return top / bottom, and 0 where the former is 0."""
    none = eq(top, 0.0)
    return select(none, top, top / select(none, _number(1.0, top), bottom))


def _number(value: float, model: Array) -> Array:
    return as_value(np.asarray(value, model.dtype))


def _score_of_gamma(out: Array, a: Array, x: Array) -> Array:
    """Return the derivative of the gamma density by x.

    At 0 it is 1 for a = 2, and infinite for 1 < a < 2.
    """
    at_zero = select(eq(a, 2.0), _number(1.0, out), select(lt(a, 2.0), _number(math.inf, out), out))
    rising = bitwise_and(eq(x, 0.0), gt(a, 1.0))
    return select(rising, at_zero, scaled_slope(_number(1.0, out), out, _quotient(a - 1.0, x) - 1.0))


gamma_density: Elementwise = elementwise(
    "gamma_density", formula=incomplete_gamma.gamma_density, operands=dtypes.FLOATS,
    derivatives=[_density_by_a, lambda g, out, a, x: g * _score_of_gamma(out, a, x)],
    domain=_SHAPE, doc="x^(a - 1) exp(-x) / gamma(a), the derivative of igamma by x.",
)  # fmt: skip
igamma_grad_a: Elementwise = elementwise(
    "igamma_grad_a", formula=incomplete_gamma.gammainc_grad_a, operands=dtypes.FLOATS,
    derivatives=[undefined("igamma_grad_a", "a"), lambda g, out, a, x: _density_by_a(g, gamma_density(a, x), a, x)],
    domain=_SHAPE, doc="The derivative of igamma by a.",
)  # fmt: skip
gamma_pdf: Elementwise = elementwise(
    "gamma_pdf", formula=incomplete_gamma.gamma_pdf, operands=dtypes.FLOATS,
    derivatives=[
        lambda g, out, x, a, loc, scale: g * (_score_of_gamma(out * scale, a, (x - loc) / scale) / scale / scale),
        lambda g, out, x, a, loc, scale: _density_by_a(g, out, a, (x - loc) / scale),
        lambda g, out, x, a, loc, scale: g * (-_score_of_gamma(out * scale, a, (x - loc) / scale) / scale / scale),
        lambda g, out, x, a, loc, scale: scaled_slope(g, out, ((x - loc) / scale - a) / scale),
    ],
    domain=Domain(0.5, 4.0, operands={2: (-1.0, 0.4)}), doc="The density of the gamma distribution at x.",
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
    return scaled_slope(g, out, log_x + digamma_rise(a, b))


def _score_of_beta(a: Array, b: Array, x: Array) -> Array:
    return _quotient(a - 1.0, x) - _quotient(b - 1.0, 1.0 - x)


beta_density: Elementwise = elementwise(
    "beta_density", formula=incomplete_beta.beta_density, operands=dtypes.FLOATS,
    derivatives=[
        lambda g, out, a, b, x: _beta_density_by(g, out, _log(x), a, b),
        lambda g, out, a, b, x: _beta_density_by(g, out, _log(1.0 - x), b, a),
        lambda g, out, a, b, x: scaled_slope(g, out, _score_of_beta(a, b, x)),
    ],
    domain=_SHARE, doc="x^(a - 1) (1 - x)^(b - 1) / B(a, b), the derivative of the incomplete beta function by x.",
)  # fmt: skip
beta_pdf: Elementwise = elementwise(
    "beta_pdf", formula=incomplete_beta.beta_pdf, operands=dtypes.FLOATS,
    derivatives=[
        lambda g, out, x, a, b, loc, scale: scaled_slope(g, out, _score_of_beta(a, b, (x - loc) / scale) / scale),
        lambda g, out, x, a, b, loc, scale: _beta_density_by(g, out, _log((x - loc) / scale), a, b),
        lambda g, out, x, a, b, loc, scale: _beta_density_by(g, out, _log(1.0 - (x - loc) / scale), b, a),
        lambda g, out, x, a, b, loc, scale: scaled_slope(g, out, -_score_of_beta(a, b, (x - loc) / scale) / scale),
        lambda g, out, x, a, b, loc, scale: scaled_slope(g, out, -_elasticity_of_beta(a, b, (x - loc) / scale) / scale),
    ],
    domain=Domain(0.5, 4.0, operands={0: (0.4, 0.9), 3: (-0.1, 0.1), 4: (1.2, 1.5)}), doc="The density of the beta distribution at x.",
)  # fmt: skip

nbinom_pmf: Elementwise = elementwise(
    "nbinom_pmf", formula=incomplete_beta.nbinom_pmf, operands=dtypes.FLOATS,
    derivatives=[
        lambda g, out, k, n, p: scaled_slope(g, out, _log(1.0 - p) + digamma(k + n) - digamma(k + 1.0)),
        lambda g, out, k, n, p: scaled_slope(g, out, _log(p) + digamma_rise(n, k)),
        lambda g, out, k, n, p: scaled_slope(g, out, n / p - _quotient(k, 1.0 - p)),
    ],
    domain=_SHARE, doc="The probability of k failures before the n-th success.",
)  # fmt: skip


def _elasticity_of_beta(a: Array, b: Array, x: Array) -> Array:
    return a - x * _quotient(b - 1.0, 1.0 - x)


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

# densities without shape, and that of Student's t distribution


def _located(name: str, formula: Any, score: Callable[[Array], Array], doc: str) -> Elementwise:
    """Declare the density of a distribution without shape parameters.

    `score` is the derivative of its log by z.
    """

    def by_x(g: Array, out: Array, x: Array, loc: Array, scale: Array) -> Array:
        return scaled_slope(g, out, score((x - loc) / scale) / scale)

    def by_loc(g: Array, out: Array, x: Array, loc: Array, scale: Array) -> Array:
        return scaled_slope(g, out, -score((x - loc) / scale) / scale)

    def by_scale(g: Array, out: Array, x: Array, loc: Array, scale: Array) -> Array:
        z = (x - loc) / scale
        return scaled_slope(g, out, -(1.0 + z * score(z)) / scale)

    domain = Domain(-2.0, 2.0, operands={1: (2.5, 3.0), 2: (0.5, 2.0)})
    return elementwise(name, formula=formula, operands=dtypes.FLOATS, derivatives=[by_x, by_loc, by_scale], domain=domain, doc=doc)


exponential_pdf = _located("exponential_pdf", stirling.exponential_pdf, lambda z: -sign(z), "exp(-|x - loc| / scale) / scale.")
logistic_pdf = _located("logistic_pdf", stirling.logistic_pdf, lambda z: -tanh(0.5 * z), "The density of the logistic distribution at x.")
cauchy_pdf = _located(
    "cauchy_pdf", stirling.cauchy_pdf, lambda z: _score_of_t(_number(1.0, z), z), "The density of Cauchy's distribution at x."
)


def _score_of_t(df: Array, z: Array) -> Array:
    """Return the derivative of the log density by z: -(df + 1) z / (df + z^2)."""
    large, infinite = gt(z * z, 1.0), eq(df, math.inf)
    degrees, far = select(infinite, _number(1.0, df), df), select(large, z, _number(1.0, z))
    near = select(large, _number(0.0, z), z)
    inner = (1.0 + 1.0 / df) * near / (1.0 + near * near / df)
    return -select(infinite, z, select(large, (degrees + 1.0) / (far + degrees / far), inner))


def _log_slope_of_t(df: Array, z: Array) -> Array:
    """Return the derivative of the log density by df."""
    infinite = eq(df, math.inf)
    degrees = select(infinite, _number(1.0, df), df)
    ratio = z / sqrt(degrees)
    inverse = -_score_of_t(degrees, z) * z / degrees
    growth = digamma_rise(0.5 * degrees, _number(0.5, df)) - 1.0 / degrees
    return select(infinite, _number(0.0, df), 0.5 * (growth - _log1p_square(ratio) + inverse))


def _log1p_square(x: Array) -> Array:
    large = gt(x * x, 1.0)
    near, far = select(large, _number(0.0, x), x), select(large, x, _number(1.0, x))
    return select(large, log(far * sign(far)) * 2.0 + log1p(1.0 / far / far), log1p(near * near))


t_pdf: Elementwise = elementwise(
    "t_pdf", formula=stirling.t_pdf, operands=dtypes.FLOATS,
    derivatives=[
        lambda g, out, x, df, loc, scale: scaled_slope(g, out, _score_of_t(df, (x - loc) / scale) / scale),
        lambda g, out, x, df, loc, scale: scaled_slope(g, out, _log_slope_of_t(df, (x - loc) / scale)),
        lambda g, out, x, df, loc, scale: scaled_slope(g, out, -_score_of_t(df, (x - loc) / scale) / scale),
        lambda g, out, x, df, loc, scale: scaled_slope(
            g, out, -(1.0 + (x - loc) / scale * _score_of_t(df, (x - loc) / scale)) / scale
        ),
    ],
    domain=Domain(-2.0, 2.0, operands={1: (0.5, 4.0), 3: (0.5, 2.0)}), doc="The density of Student's t distribution at x.",
)  # fmt: skip
