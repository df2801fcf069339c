"""Continuous distributions, declared by formulas in standard form.

A formula is a function of z = (x - loc) / scale inside the support, and of the shape parameters. `Continuous` makes SciPy's function of
it: x moved and stretched by `loc` and `scale`, the values outside the support, and NaN for parameters outside their domain.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, ParamSpec

import numpy as np

from volta_fn import numpy as vnp
from volta_fn.core.array import Array
from volta_fn.scipy.stats.declarations.logarithms import log_probability
from volta_fn.scipy.stats.declarations.signatures import parameters, publish

P = ParamSpec("P")
Q = ParamSpec("Q")
Formula = Callable[..., Array]


class Interval(NamedTuple):
    """A support, and a point inside.

    Formulas are evaluated at that point where z lies outside: a NaN there would spoil the derivatives.
    """

    low: Any
    high: Any
    point: Any


REAL = Interval(-np.inf, np.inf, 1.0)
POSITIVE = Interval(0.0, np.inf, 1.0)
UNIT = Interval(0.0, 1.0, 0.5)


class _Standard(NamedTuple):
    """Arguments in standard form."""

    z: Array
    shapes: Sequence[Array]
    loc: Any
    scale: Any
    support: Interval
    valid: Any

    def checked(self, value: Array) -> Array:
        """Return `value`, or NaN where the arguments are NaN or not valid."""
        return vnp.where(self.valid & ~vnp.isnan(self.z), value, np.nan)


class Continuous(Generic[P]):
    """A distribution, whose methods make its public functions.

    Args:
        signature: the parameters: x, the shape parameters, and `loc` and `scale` if it has them.
        support: an interval of z, or a function of the shape parameters that returns one.
        valid: a function of the shape parameters that tells where they are valid (default: everywhere).
    """

    def __init__(
        self,
        signature: Callable[P, None],
        support: Interval | Callable[..., Interval] = REAL,
        valid: Callable[..., Any] = lambda *shapes: True,
    ) -> None:
        self._signature = signature
        self._support: Callable[..., Interval] = (lambda *shapes: support) if isinstance(support, Interval) else support
        self._valid = valid
        self._module = sys._getframe(1).f_globals
        self._formulas: dict[str, Formula] = {}
        self._is_scaled = parameters(signature)[-2:] == ["loc", "scale"]

    def logpdf(self, formula: Formula) -> Callable[P, Array]:
        """Make the log density of its formula."""
        self._formulas["logpdf"] = formula
        return self._public("logpdf", self._log_density)

    def pdf(self, formula: Formula | None = None) -> Callable[P, Array]:
        """Make the density, of that of its log, or of its formula.

        That is a function of x, the shape parameters, and `loc` and `scale` if there are any: an exponential of a rounded logarithm, or
        of a rounded z, has an error of as many units as that is large.
        """
        if formula is None:
            return self._public("pdf", lambda *args: vnp.exp(self._log_density(*args)))
        return self._public("pdf", lambda *args: self._density(formula, *args))

    def cdf(self, formula: Formula) -> Callable[P, Array]:
        """Make the distribution function of its formula."""
        return self._cumulative("cdf", formula, 0.0, 1.0)

    def sf(self, formula: Formula) -> Callable[P, Array]:
        """Make the survival function of its formula."""
        return self._cumulative("sf", formula, 1.0, 0.0)

    def logcdf(self, formula: Formula | None = None) -> Callable[P, Array]:
        """Make the log of the distribution function, by default of `cdf` and `sf`."""
        return self._cumulative("logcdf", formula or self._log_of("cdf", "sf"), -np.inf, 0.0)

    def logsf(self, formula: Formula | None = None) -> Callable[P, Array]:
        """Make the log of the survival function, by default of `cdf` and `sf`."""
        return self._cumulative("logsf", formula or self._log_of("sf", "cdf"), 0.0, -np.inf)

    def ppf(self, formula: Formula, signature: Callable[Q, None]) -> Callable[Q, Array]:
        """Make the inverse of the distribution function of its formula."""
        return self._quantile("ppf", formula, signature, lambda support: (support.low, support.high))

    def isf(self, formula: Formula, signature: Callable[Q, None]) -> Callable[Q, Array]:
        """Make the inverse of the survival function of its formula."""
        return self._quantile("isf", formula, signature, lambda support: (support.high, support.low))

    def _public(self, name: str, evaluate: Formula) -> Callable[P, Array]:
        return publish(name, evaluate, self._signature, self._module)

    def _log_of(self, name: str, complement: str) -> Formula:
        return lambda z, *shapes: log_probability(self._formulas[name](z, *shapes), self._formulas[complement](z, *shapes))

    def _standardize(self, *args: Array) -> _Standard:
        x, *shapes = args
        loc, scale = (shapes[-2], shapes[-1]) if self._is_scaled else (0.0, 1.0)
        if not self._is_scaled:
            return _Standard(x, shapes, loc, scale, self._support(*shapes), self._valid(*shapes))
        shapes = shapes[:-2]
        return _Standard((x - loc) / scale, shapes, loc, scale, self._support(*shapes), self._valid(*shapes) & (scale > 0))

    def _log_density(self, *args: Array) -> Array:
        given = self._standardize(*args)
        z, (low, high, point) = given.z, given.support
        inside = (z >= low) & (z <= high) & vnp.isfinite(z)
        value = self._formulas["logpdf"](vnp.where(inside, z, point), *given.shapes)
        return given.checked(vnp.where(inside, value, -np.inf) - (vnp.log(given.scale) if self._is_scaled else 0.0))

    def _density(self, formula: Formula, *args: Array) -> Array:
        given = self._standardize(*args)
        z, (low, high, point) = given.z, given.support
        inside = (z >= low) & (z <= high) & vnp.isfinite(z)
        x = vnp.where(inside, args[0], point * given.scale + given.loc)
        return given.checked(vnp.where(inside, formula(x, *args[1:]), 0.0))

    def _cumulative(self, name: str, formula: Formula, below: float, above: float) -> Callable[P, Array]:
        def evaluate(*args: Array) -> Array:
            given = self._standardize(*args)
            z, (low, high, point) = given.z, given.support
            inside = (z > low) & (z < high)
            value = formula(vnp.where(inside, z, point), *given.shapes)
            return given.checked(vnp.where(inside, value, vnp.where(z <= low, below, above)))

        self._formulas[name] = formula
        return self._public(name, evaluate)

    def _quantile(
        self, name: str, formula: Formula, signature: Callable[Q, None], ends: Callable[[Interval], tuple[Any, Any]]
    ) -> Callable[Q, Array]:
        def evaluate(q: Array, *rest: Array) -> Array:
            given = self._standardize(q, *rest)
            inside = (q > 0) & (q < 1)
            first, last = ends(given.support)
            value = formula(vnp.where(inside, q, 0.5), *given.shapes)
            end = vnp.where(q == 0, first, vnp.where(q == 1, last, np.nan))
            return given.checked(vnp.where(inside, value, end) * given.scale + given.loc)

        return publish(name, evaluate, signature, self._module)
