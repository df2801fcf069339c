"""Elementwise exponentials, logarithms and roots."""

from __future__ import annotations

import math

import numpy as np

from volta_fn import dtypes
from volta_fn.core.array import Array, as_value
from volta_fn.primitives.declare import Domain, Elementwise, elementwise
from volta_fn.primitives.elementwise import comparison
from volta_fn.primitives.elementwise.selection import select
from volta_fn.primitives.formulas import exponential, logarithm, powers
from volta_fn.primitives.formulas import numpy_rules as rules

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
    "log", np.log, formula=logarithm.log, operands=dtypes.INEXACT, derivatives=[lambda g, out, x: g / x], domain=_POSITIVE,
    doc="Natural logarithm.",
)  # fmt: skip
log2: Elementwise = elementwise(
    "log2", np.log2, formula=logarithm.log2, operands=dtypes.INEXACT, derivatives=[lambda g, out, x: g / (x * math.log(2.0))],
    domain=_POSITIVE, doc="Logarithm to base 2.",
)  # fmt: skip
log1p: Elementwise = elementwise(
    "log1p", rules.log1p, formula=logarithm.log1p, operands=dtypes.INEXACT, derivatives=[lambda g, out, x: g / (x + 1.0)],
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
    "cbrt", np.cbrt, formula=powers.cbrt, operands=dtypes.FLOATS, derivatives=[lambda g, out, x: g / (3.0 * out * out)], domain=_POSITIVE,
    doc="Cube root.",
)  # fmt: skip
logistic: Elementwise = elementwise(
    "logistic", rules.logistic, formula=exponential.logistic, operands=dtypes.INEXACT,
    derivatives=[lambda g, out, x: g * (out * (1.0 - out))], doc="1 / (1 + exp(-x)).",
)  # fmt: skip


def gap(x: Array, y: Array) -> Array:
    """Return x - y, and 0 for equal infinities, whose difference is NaN."""
    same = comparison.bitwise_and(comparison.eq(x, y), comparison.bitwise_not(comparison.is_finite(x)))
    return select(same, as_value(np.zeros((), x.dtype)), x - y)


logaddexp: Elementwise = elementwise(
    "logaddexp", np.logaddexp, formula=logarithm.logaddexp, operands=dtypes.FLOATS,
    derivatives=[lambda g, out, x, y: g * logistic(gap(x, y)), lambda g, out, x, y: g * logistic(gap(y, x))],
    doc="log(exp(x) + exp(y)), without overflow.",
)  # fmt: skip
