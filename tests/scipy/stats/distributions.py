"""The registry of distributions: where each is tried, and by how much it may be off."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import scipy.stats

from volta_fn.scipy import stats

#: Both tails, and close to the centre.
TAILS = np.logspace(-4, 2.5, 14)
REAL = np.concatenate([-TAILS[::-1], [0.0], TAILS])
POSITIVE = np.logspace(-6, 3, 28)
UNIT = np.concatenate([np.logspace(-9, -1, 9), np.linspace(0.15, 0.85, 8), 1 - np.logspace(-5, -1, 5)])
COUNTS = np.array([0.0, 1, 2, 3, 7, 8, 20, 21, 150, 1000])


class Case(NamedTuple):
    """Values of x or k, and tuples of shape parameters."""

    points: np.ndarray
    shapes: Sequence[tuple[float, ...]] = ((),)


CONTINUOUS = {
    "beta": Case(UNIT, [(0.5, 0.5), (1, 1), (2, 3), (1, 4.5), (40, 3), (300, 200)]),
    "cauchy": Case(REAL),
    "chi2": Case(POSITIVE, [(0.5,), (1,), (2,), (7,), (500,)]),
    "expon": Case(POSITIVE[POSITIVE < 600]),
    "gamma": Case(POSITIVE, [(0.3,), (1,), (4.5,), (300,)]),
    "gennorm": Case(REAL, [(0.5,), (1,), (2,), (3.5,)]),
    "gumbel_l": Case(REAL),
    "gumbel_r": Case(REAL),
    "laplace": Case(REAL),
    "logistic": Case(REAL),
    "norm": Case(REAL),
    "pareto": Case(1 + POSITIVE[POSITIVE > 1e-3], [(0.5,), (3,)]),
    "t": Case(REAL, [(0.5,), (1,), (5,), (100,), (np.inf,)]),
    "truncnorm": Case(np.linspace(-9.5, 9.5, 39), [(-1, 2), (3, 5.2), (-9, -8), (-np.inf, 1), (2, np.inf), (-np.inf, np.inf), (-0.3, 0.8)]),
    "uniform": Case(UNIT),
    "vonmises": Case(np.linspace(-7, 7, 29), [(0,), (0.5,), (4,), (500,)]),
    "wrapcauchy": Case(np.linspace(0, 6.28, 15), [(0.1,), (0.5,), (0.95,)]),
}
DISCRETE = {
    "bernoulli": Case(COUNTS, [(0.0,), (0.25,), (1.0,)]),
    "betabinom": Case(COUNTS, [(0, 1, 1), (8, 0.5, 2), (21, 3, 4.5), (1000, 20, 30)]),
    "binom": Case(COUNTS, [(0, 0.5), (8, 0.0), (8, 0.3), (8, 1.0), (21, 1e-3), (1000, 0.15)]),
    "geom": Case(COUNTS, [(1e-3,), (0.4,), (1.0,)]),
    "nbinom": Case(COUNTS, [(0.5, 0.3), (3, 0.75), (3, 1.0), (200, 0.5)]),
    "poisson": Case(COUNTS, [(0.0,), (0.3,), (8,), (160,), (990,)]),
}
#: Shape parameters with smooth functions, without extreme values, on [0, 2]; the last ones by default.
SMOOTH = {
    "beta": (2, 3),
    "binom": (8, 0.3),
    "geom": (0.4,),
    "nbinom": (3, 0.75),
    "t": (5,),
    "truncnorm": (-1, 2),
    "gamma": (4.5,),
    "chi2": (7,),
}
SMOOTH |= {"bernoulli": (0.25,), "poisson": (8,), "vonmises": (4,), "betabinom": (21, 3, 4.5)}
QUANTILES = ("ppf", "isf")
FUNCTIONS = ("logpdf", "pdf", "cdf", "sf", "logcdf", "logsf", "logpmf", "pmf", *QUANTILES)
#: Distributions with logs of probabilities that are infinite in SciPy, where the probability underflows.
UNDERFLOWING = {"beta", "chi2", "gamma"}


def functions(cases: dict[str, Case]) -> Iterator[tuple[str, str]]:
    """Yield every distribution with the names of its functions."""
    for name in cases:
        yield from ((name, function) for function in FUNCTIONS if hasattr(getattr(stats, name), function))


def ours(name: str, function: str) -> Callable:
    return getattr(getattr(stats, name), function)


def scipys(name: str, function: str) -> Callable[..., np.ndarray]:
    """Return SciPy's function, without warnings of overflow and of logarithms of 0."""

    def quiet(*args: float | np.ndarray, **options: float | np.ndarray) -> np.ndarray:
        with np.errstate(all="ignore"):
            return getattr(getattr(scipy.stats, name), function)(*args, **options)

    return quiet


def arguments(case: Case, function: str, shape: tuple[float, ...], dtype: type) -> list[np.ndarray]:
    """Return points or probabilities, and shape parameters, all exact in float32."""
    points = UNIT if function in QUANTILES else case.points
    return [points.astype(np.float32).astype(dtype), *[np.array(s, np.float32).astype(dtype) for s in shape]]


def bound(function: Callable[..., np.ndarray], args: list[np.ndarray], is_log: bool, eps: float) -> np.ndarray:
    """Return by how much one rounding of the result and of each argument change it.

    Densities are exponentials of their logs: an absolute error of the log is a relative one of the density.
    """
    wide = [a.astype(float) for a in args]
    value = function(*wide)
    with np.errstate(all="ignore"):
        rounding = np.maximum(1.0, np.abs(value)) if is_log else np.abs(value) * (1 + np.abs(np.log(np.abs(value))))
        moved = [function(*wide[:i], a * (1 + sign * eps), *wide[i + 1 :]) - value for i, a in enumerate(wide) for sign in (1, -1)]
    return eps * np.nan_to_num(rounding, posinf=0) + np.nan_to_num(np.abs(moved), posinf=0).max(0)
