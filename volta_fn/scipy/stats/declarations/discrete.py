"""Distributions of integers, declared by formulas for `loc` 0."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Generic, ParamSpec

import numpy as np

from volta_fn import numpy as vnp
from volta_fn.core.array import Array
from volta_fn.scipy.stats.declarations.signatures import parameters, publish

P = ParamSpec("P")
Formula = Callable[..., Array]


def from_zero(*shapes: Array) -> tuple[Any, Any]:
    """Return the support of 0, 1, 2, …."""
    return 0.0, np.inf


class Discrete(Generic[P]):
    """A distribution of integers, whose methods make its public functions.

    Args:
        signature: the parameters: k, the shape parameters, and `loc` if it has one.
        support: a function of the shape parameters that returns the least and the largest integer.
        valid: a function of the shape parameters that tells where they are valid.
    """

    def __init__(self, signature: Callable[P, None], support: Callable[..., tuple[Any, Any]], valid: Callable[..., Any]) -> None:
        self._signature = signature
        self._support = support
        self._valid = valid
        self._module = sys._getframe(1).f_globals
        self._moves = parameters(signature)[-1] == "loc"
        self._formula: Formula

    def logpmf(self, formula: Formula) -> Callable[P, Array]:
        """Make the log of the probability function of its formula."""
        self._formula = formula
        return self._public("logpmf", self._log_mass)

    def pmf(self, formula: Formula | None = None) -> Callable[P, Array]:
        """Make the probability function of its formula, or of that of its log."""
        if formula is None:
            return self._public("pmf", lambda *args: vnp.exp(self._log_mass(*args)))
        return self._public("pmf", lambda *args: self._mass(formula, 0.0, *args))

    def cdf(self, formula: Formula) -> Callable[P, Array]:
        """Make the distribution function of its formula."""

        def evaluate(*args: Array) -> Array:
            k, shapes = self._moved(*args)
            low, high = self._support(*shapes)
            inside = (k >= low) & (k < high)
            value = formula(vnp.where(inside, vnp.floor(k), low), *shapes)
            return self._checked(k, shapes, vnp.where(inside, value, vnp.where(k < low, 0.0, 1.0)))

        return self._public("cdf", evaluate)

    def _public(self, name: str, evaluate: Formula) -> Callable[P, Array]:
        return publish(name, evaluate, self._signature, self._module)

    def _moved(self, *args: Array) -> tuple[Array, list[Array]]:
        """Return k without its offset, and the shape parameters."""
        k, *shapes = args
        return (k - shapes[-1], shapes[:-1]) if self._moves else (k, shapes)

    def _checked(self, k: Array, shapes: list[Array], value: Array) -> Array:
        return vnp.where(self._valid(*shapes) & ~vnp.isnan(k), value, np.nan)

    def _log_mass(self, *args: Array) -> Array:
        return self._mass(self._formula, -np.inf, *args)

    def _mass(self, formula: Formula, elsewhere: float, *args: Array) -> Array:
        k, shapes = self._moved(*args)
        low, high = self._support(*shapes)
        inside = (k >= low) & (k <= high) & (k == vnp.floor(k)) & vnp.isfinite(k)
        value = formula(vnp.where(inside, k, low), *shapes)
        return self._checked(k, shapes, vnp.where(inside, value, elsewhere))
