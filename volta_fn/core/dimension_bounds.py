"""Bounds of symbolic sizes, by which comparisons are decided.

A size is a linear combination of *terms*, products of variables and operations. What is known are inequalities ``c >= 0`` between terms:
those of the scope, and those that hold for every term, such as ``b >= 1`` of a variable and ``0 <= mod(a, 3) <= 2``. Where a combination
and an inequality share a term, a multiple of one added to the other eliminates the term (Fourier and Motzkin's method), and bounds of the
rest are bounds of the combination. The search is limited: where it ends without an answer a comparison is inconclusive.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any

from volta_fn.core.dimension import Dimension, Monomial, Operation

Bounds = tuple[float, float]
#: The coefficients of terms; () is the constant. They are integers, but for the polynomials with fractions that exported functions have.
Combination = dict[Monomial, Any]

_UNBOUNDED: Bounds = (-math.inf, math.inf)
#: How many terms are eliminated one after another, and how many combinations are looked at for a comparison.
_DEEPEST, _MOST = 4, 3000


def bounds(size: Any) -> Bounds:
    """Return numbers between which a size lies; infinities where it has no bound.

    >>> b = Dimension.variable("b")
    >>> bounds(b + b % 3), bounds(3 - b)
    ((1, inf), (-inf, 2))
    """
    if not isinstance(size, Dimension):
        return int(size), int(size)
    scope = size.scope
    if scope is None:
        return _Solver(()).bounds(size)
    result: Bounds | None = scope.bounds.get(size)
    if result is None:
        result = scope.bounds[size] = _Solver(scope.inequalities).bounds(size)
    return result


class _Solver:
    """The inequalities between the terms of a query."""

    def __init__(self, inequalities: tuple[Dimension, ...]) -> None:
        self._simple: dict[Monomial, Bounds] = {}
        self._joint: list[Combination] = []
        self._seen: set[Monomial] = set()
        self._explicit = inequalities
        self._budget = _MOST
        for inequality in inequalities:
            self._add(_combination(inequality))
        for inequality in inequalities:
            self._describe(inequality)

    def bounds(self, size: Any) -> Bounds:
        """Return bounds of a size."""
        if not isinstance(size, Dimension):
            return size, size
        self._describe(size)
        return self._search(_combination(size), _DEEPEST)

    # What holds for every term.

    def _describe(self, size: Any) -> None:
        for monomial in size.terms if isinstance(size, Dimension) else ():
            if monomial and monomial not in self._seen:
                self._seen.add(monomial)
                self._describe_term(monomial)

    def _describe_term(self, monomial: Monomial) -> None:
        (factor, exponent), *others = monomial
        if others or exponent > 1:
            limits = []
            for each, power in monomial:
                size = Dimension({((each, 1),): 1})
                lower, upper = self.bounds(size)
                limits.append((lower**power, upper**power) if lower >= 0 or power % 2 else (0, max(lower**power, upper**power)))
            corners = [_product(corner) for corner in itertools.product(*limits)]
            self._narrow(monomial, min(corners), max(corners))
        elif isinstance(factor, Operation):
            left, right = factor.operands
            self._describe(left)
            self._describe(right)
            getattr(self, f"_describe_{factor.name}")(monomial, left, right)
        else:
            self._narrow(monomial, 1, math.inf)

    def _describe_mod(self, monomial: Monomial, left: Any, right: Any) -> None:
        lower, upper = self.bounds(right)
        if lower > 0:
            self._narrow(monomial, 0, upper - 1)
            self._add(_sum(_combination(right - 1), 1, {monomial: 1}, -1))
            if self.bounds(left)[0] >= 0:
                self._add(_sum(_combination(left), 1, {monomial: 1}, -1))
        elif upper < 0:
            self._narrow(monomial, lower + 1, 0)
            self._add(_sum({monomial: 1}, 1, _combination(right + 1), -1))

    def _describe_floordiv(self, monomial: Monomial, left: Any, right: Any) -> None:
        if not isinstance(right, Dimension):
            rest = _sum(_combination(left), 1, {monomial: right}, -1)  # the remainder
            sign = 1 if right > 0 else -1
            self._add(_sum(rest, sign, {}, 0))
            self._add(_sum({(): abs(right) - 1}, 1, rest, -sign))
        lower, upper = self.bounds(right)
        if lower > 0 or upper < 0:
            corners = [_quotient(a, b) for a in self.bounds(left) for b in (lower, upper)]
            self._narrow(monomial, min(corners), max(corners))

    def _describe_max(self, monomial: Monomial, left: Any, right: Any) -> None:
        self._describe_selection(monomial, left, right, max, 1)

    def _describe_min(self, monomial: Monomial, left: Any, right: Any) -> None:
        self._describe_selection(monomial, left, right, min, -1)

    def _describe_selection(self, monomial: Monomial, left: Any, right: Any, choose: Any, sign: int) -> None:
        limits = (self.bounds(left), self.bounds(right))
        self._narrow(monomial, choose(b[0] for b in limits), choose(b[1] for b in limits))
        for operand in (left, right):
            self._add(_sum({monomial: sign}, 1, _combination(operand), -sign))

    # Inequalities.

    def _narrow(self, monomial: Monomial, lower: float, upper: float) -> None:
        low, high = self._simple.get(monomial, _UNBOUNDED)
        self._simple[monomial] = (max(low, lower), min(high, upper))

    def _add(self, inequality: Combination) -> None:
        terms = [m for m in inequality if m]
        if len(terms) > 1:
            if inequality not in self._joint:
                self._joint.append(inequality)
        elif terms:
            coefficient, constant = inequality[terms[0]], inequality.get((), 0)
            limit = -constant / coefficient
            self._narrow(terms[0], *((math.ceil(limit), math.inf) if coefficient > 0 else (-math.inf, math.floor(limit))))

    # The search.

    def _search(self, combination: Combination, depth: int) -> Bounds:
        self._budget -= 1
        lower, upper = self._direct(combination)
        if not depth or self._budget < 0 or _is_decided(lower, upper, depth):
            return lower, upper
        is_integral = all(isinstance(c, int) for c in combination.values())  # and so is its value, whose bounds are rounded
        for monomial in [m for m in reversed(combination) if m]:
            coefficient = combination[monomial]
            for inequality in self._joint:
                shared = inequality.get(monomial)
                if shared is None:
                    continue
                # |shared| * combination = ±|coefficient| * inequality + rest, where the inequality is at least 0
                sign = 1 if (coefficient > 0) == (shared > 0) else -1
                rest = _sum(combination, abs(shared), inequality, -sign * abs(coefficient))
                low, high = self._search(rest, depth - 1)
                if sign > 0 and low > -math.inf:
                    limit = low / abs(shared)
                    lower = max(lower, math.ceil(limit) if is_integral else limit)
                elif sign < 0 and high < math.inf:
                    limit = high / abs(shared)
                    upper = min(upper, math.floor(limit) if is_integral else limit)
                if self._budget < 0 or _is_decided(lower, upper, depth):
                    return lower, upper
            cases = self._cases(combination, monomial, depth)
            lower, upper = max(lower, cases[0]), min(upper, cases[1])
        return lower, upper

    def _cases(self, combination: Combination, monomial: Monomial, depth: int) -> Bounds:
        """Bound a combination with a maximum or a minimum by those with its operands."""
        factor = monomial[0][0]
        if len(monomial) > 1 or monomial[0][1] > 1 or not isinstance(factor, Operation) or factor.name not in ("max", "min"):
            return _UNBOUNDED
        coefficient = combination[monomial]
        rest = {m: c for m, c in combination.items() if m != monomial}
        limits = [self._search(_sum(rest, 1, _combination(operand), coefficient), depth - 1) for operand in factor.operands]
        choose = max if (coefficient > 0) == (factor.name == "max") else min
        return choose(b[0] for b in limits), choose(b[1] for b in limits)

    def _direct(self, combination: Combination) -> Bounds:
        """Bound every term by itself."""
        lower: float = 0
        upper: float = 0
        for monomial, coefficient in combination.items():
            low, high = self._simple.get(monomial, _UNBOUNDED) if monomial else (1, 1)
            limits = (coefficient * low, coefficient * high)
            lower, upper = lower + min(limits), upper + max(limits)
        return lower, upper


def _is_decided(lower: float, upper: float, depth: int) -> bool:
    """Return True if the bounds of the whole size answer a comparison with 0."""
    return depth == _DEEPEST and (lower >= 0 or upper < 0)


def _combination(size: Any) -> Combination:
    if not isinstance(size, Dimension):
        return {(): size} if size else {}
    return {monomial: int(c) if c.denominator == 1 else c for monomial, c in size.terms.items()}


def _sum(left: Mapping[Monomial, Any], a: Any, right: Mapping[Monomial, Any], b: Any) -> Combination:
    total = {monomial: a * c for monomial, c in left.items()}
    for monomial, c in right.items():
        total[monomial] = total.get(monomial, 0) + b * c
    return {monomial: c for monomial, c in total.items() if c}


def _product(factors: tuple[float, ...]) -> float:
    """Multiply limits; nothing times infinity is nothing."""
    return 0 if 0 in factors else math.prod(factors)


def _quotient(dividend: float, divisor: float) -> float:
    """Return the limit of floor quotients."""
    if math.isinf(divisor):
        sign = math.copysign(1, dividend) * math.copysign(1, divisor) if dividend else 1
        return (math.inf if sign > 0 else -math.inf) if math.isinf(dividend) else (0 if sign > 0 else -1)
    return math.floor(dividend / divisor) if not math.isinf(dividend) else dividend * math.copysign(1, divisor)
