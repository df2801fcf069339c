"""The incomplete gamma and beta functions with all derivatives."""

from __future__ import annotations

from typing import Any

from volta_fn import numpy as vnp
from volta_fn.core.array import Array
from volta_fn.primitives.elementwise import special
from volta_fn.scipy.special.arguments import composite

# ------------------------------------------------------------------------------
# The incomplete gamma functions (the gamma distribution function), derivatives.
# ------------------------------------------------------------------------------


@composite
def gammainc(a: Any, x: Any) -> Array:
    """Return the regularised lower incomplete gamma function.

    It is the probability that a gamma random number of shape `a` is at most x. NaN for a < 0 or x < 0.

    >>> vf.scipy.special.gammainc(1.0, vf.numpy.array([0.0, 1.0, 2.0])).round(4)
    Array([0.    , 0.6321, 0.8647], dtype=float32)
    """
    return special.igamma(*vnp.broadcast_arrays(a, x))


@composite
def gammaincc(a: Any, x: Any) -> Array:
    """Return the upper incomplete gamma function 1 - gammainc(a, x), precise if small.

    >>> vf.scipy.special.gammaincc(1.0, vf.numpy.array([0.0, 1.0, 2.0])).round(4)
    Array([1.    , 0.3679, 0.1353], dtype=float32)
    """
    return special.igammac(*vnp.broadcast_arrays(a, x))


#: Their names in `jax.lax`.
igamma, igammac = gammainc, gammaincc


@composite
def random_gamma_grad(a: Any, sample: Any) -> Array:
    """Return dx/da of a gamma number x at a fixed quantile (Figurnov et al. 2018).

    >>> vf.lax.random_gamma_grad(2.0, vf.numpy.array([1.0, 2.0])).round(3)
    Array([0.751, 1.086], dtype=float32)
    """
    return special.random_gamma_grad(*vnp.broadcast_arrays(a, sample))


@composite
def igamma_grad_a(a: Any, x: Any) -> Array:
    """Return the derivative of `lax.igamma` by its first argument.

    >>> vf.lax.igamma_grad_a(2.0, vf.numpy.array([1.0, 2.0])).round(3)
    Array([-0.276, -0.294], dtype=float32)
    """
    return special.igamma_grad_a(*vnp.broadcast_arrays(a, x))


# ------------------------------------------------------------------------------
# The incomplete beta function (the beta distribution function).
# ------------------------------------------------------------------------------


@composite
def betainc(a: Any, b: Any, x: Any) -> Array:
    """Return the regularised incomplete beta function of x with shape `a` and `b`.

    It is the probability that a beta random number is at most x. All arguments broadcast, and it is differentiable by each. NaN for
    negative a or b, if both are 0 or infinite, and unless 0 <= x <= 1.

    >>> vf.scipy.special.betainc(2.0, 3.0, vf.numpy.array([0.0, 0.5, 1.0])).round(4)
    Array([0.    , 0.6875, 1.    ], dtype=float32)
    """
    return special.regularized_incomplete_beta(*vnp.broadcast_arrays(a, b, x))
