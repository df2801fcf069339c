"""The multinomial distribution of counts of outcomes with probabilities `p`.

>>> vf.scipy.stats.multinomial.pmf(vf.numpy.array([1, 1]), 2, vf.numpy.array([0.5, 0.5])).round(4)
Array(0.5, dtype=float32)
"""

from __future__ import annotations

from typing import Any

import numpy as np

from volta_fn import dtypes
from volta_fn import numpy as vnp
from volta_fn.core.array import Array
from volta_fn.errors import DTypeError
from volta_fn.primitives.declare import promote_args
from volta_fn.scipy.special.gamma_family import composite, gammaln
from volta_fn.scipy.stats.declarations import log_power


def logpmf(x: Any, n: Any, p: Any) -> Array:
    """Return the log of the probability n! Π p^x / x!.

    Args:
        x: counts of the k outcomes, integers of shape (..., k). Where they are negative or do not sum to n, the probability is 0.
        n: the number of trials, an integer or integers of shape (...).
        p: the outcomes' probabilities, of shape (..., k); NaN if one is not between 0 and 1.

    Returns an array of shape (...), of p's dtype. Raises `DTypeError` for counts that are not integers.

    >>> vf.scipy.stats.multinomial.logpmf(vf.numpy.array([1, 1]), 2, vf.numpy.array([0.5, 0.5])).round(4)
    Array(-0.6931, dtype=float32)
    """
    counts, trials = promote_args("multinomial.logpmf", (x, n), dtypes.ALL)
    if counts.dtype not in dtypes.INTEGERS:
        raise DTypeError(f"multinomial.logpmf: x and n must be integers, got {counts.dtype.name}; convert them with astype")
    (probabilities,) = promote_args("multinomial.logpmf", (p,), dtypes.FLOATS)
    possible = vnp.all(counts >= 0, -1) & (vnp.sum(counts, -1) == trials)
    known = vnp.where(possible[..., None], counts, 0).astype(dtypes.accumulator(probabilities.dtype))
    return vnp.where(possible | vnp.any(_is_wrong(probabilities), -1), _log_mass(known, probabilities), -np.inf)


def _is_wrong(p: Array) -> Array:
    return ~((p >= 0) & (p <= 1))


@composite
def _log_mass(x: Any, p: Any) -> Array:
    out = gammaln(vnp.sum(x, -1) + 1.0) + vnp.sum(log_power(p, x) - gammaln(x + 1.0), -1)
    return vnp.where(vnp.any(_is_wrong(p), -1), np.nan, out)


def pmf(x: Any, n: Any, p: Any) -> Array:
    """Return the probability, of which `logpmf` is the log.

    >>> vf.scipy.stats.multinomial.pmf(vf.numpy.array([2, 0]), 2, vf.numpy.array([0.5, 0.5])).round(4)
    Array(0.25, dtype=float32)
    """
    return vnp.exp(logpmf(x, n, p))
