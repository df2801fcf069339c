"""Calls of `volta_fn.scipy.stats`: each function of each distribution, at the registry's points without extreme values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.catalogue.call import Call, Calls, at, each
from tests.catalogue.numpy_calls import COUNTS, V, X
from tests.scipy.stats.distributions import CONTINUOUS, DISCRETE, functions
from tests.scipy.stats.test_distributions import smooth_points

COUNTED = np.array([2, 1, 3], np.int32)
SHARES = np.array([0.2, 0.3, 0.5], np.float32)
COVARIANCE = np.array([[2.0, 0.5], [0.5, 1.0]], np.float32)


def univariate(name: str, function: str) -> Call:
    """Return the call of a distribution's function; counts are integers, which have no derivative."""
    points = [p.astype(np.float32) for p in smooth_points(name, function)]
    if name in DISCRETE and function != "ppf":
        points[0] = points[0].astype(np.int32)
    if name in ("binom", "betabinom"):
        points[1] = points[1].astype(np.int32)
    return Call(tuple(points), grad=(name, function) != ("bernoulli", "ppf"), alike=True, tolerance=1e-4)


UNIVARIATE: Calls = {f"{name}.{function}": univariate(name, function) for name, function in functions(CONTINUOUS | DISCRETE)}


def density(kernels: Any) -> Callable[..., Any]:
    """Return the density at points as a function of the data set."""
    return lambda data, points: kernels(data)(points)


OTHERS: Calls = (
    {"poisson.entropy": Call((np.float32([0.5, 3.0, 20.0]),))}
    | each("dirichlet.logpdf dirichlet.pdf", SHARES[:2], np.float32([2.0, 3.0, 1.5]), alike=True)
    | each("multinomial.logpmf multinomial.pmf", COUNTED, np.int32(6), SHARES, alike=True)
    | each("multivariate_normal.logpdf multivariate_normal.pdf", X[:, :2], np.zeros(2, np.float32), COVARIANCE, alike=True)
    | {"mode": Call((COUNTS,), {"axis": 1}, grad=False), "rankdata": Call((V,), grad=False), "sem": Call((X,))}
    | {"gaussian_kde": Call((V, X[0]), through=density)}
)

CALLS: Calls = at("scipy.stats", UNIVARIATE, OTHERS)
