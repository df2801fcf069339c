"""The approximations by the names of the primitives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from volta_fn.codegen.scalars.functions import (
    bessel,
    error,
    exponential,
    gamma,
    hyperbolic,
    logarithm,
    normal,
    powers,
    remainder,
    trigonometric,
)

APPROXIMATE: dict[str, Callable[..., Any]] = {
    "exp": exponential.exp,
    "exp2": exponential.exp2,
    "expm1": exponential.expm1,
    "logistic": exponential.logistic,
    "tanh": exponential.tanh,
    "sinh": exponential.sinh,
    "cosh": exponential.cosh,
    "log": logarithm.log,
    "log2": logarithm.log2,
    "log1p": logarithm.log1p,
    "logaddexp": logarithm.logaddexp,
    "sin": trigonometric.sin,
    "cos": trigonometric.cos,
    "tan": trigonometric.tan,
    "asin": trigonometric.asin,
    "acos": trigonometric.acos,
    "atan": trigonometric.atan,
    "atan2": trigonometric.atan2,
    "asinh": hyperbolic.asinh,
    "acosh": hyperbolic.acosh,
    "atanh": hyperbolic.atanh,
    "pow": powers.pow,
    "cbrt": powers.cbrt,
    "rem": remainder.rem,
    "erf": error.erf,
    "erfc": error.erfc,
    "erf_inv": error.erf_inv,
    "ndtr": normal.ndtr,
    "gelu": normal.gelu,
    "lgamma": gamma.lgamma,
    "digamma": gamma.digamma,
    "bessel_i0e": bessel.bessel_i0e,
    "bessel_i1e": bessel.bessel_i1e,
}
