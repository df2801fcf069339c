"""One manifest for all sizes, from manifests for some.

A function is traced for several sizes of each symbolic axis. Its programs must be the same but for numbers, and each number that differs
is a polynomial of the sizes: the one through its values at some of the samples, if it has the right values at the others too. A file
holds the polynomials, and reading it for sizes checks the types of the program that results.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from volta_fn.core.dimension import Dimension, Monomial, value_of
from volta_fn.dtypes import FLOATS, as_dtype
from volta_fn.errors import ExportError

#: The highest power of a size in the sizes of a program.
_DEGREE = 2
#: Samples beyond those that determine a polynomial.
_CHECKS = 3

Sizes = Mapping[str, int]


def monomials(names: Sequence[str]) -> list[Monomial]:
    """List the products of variables up to a degree, the constant first."""
    found: list[Monomial] = []
    for degree in range(_DEGREE + 1):
        for chosen in itertools.combinations_with_replacement(sorted(names), degree):
            found.append(tuple([(name, chosen.count(name)) for name in sorted(set(chosen))]))
    return found


def sample_count(names: Sequence[str]) -> int:
    """Return the number of assignments of sizes to trace for."""
    return len(monomials(names)) + _CHECKS


class Generalizer:
    """Merges manifests that were made for samples of sizes."""

    def __init__(self, samples: Sequence[Sizes]) -> None:
        self._samples = samples
        self._monomials = monomials([*samples[0]])
        self._known: dict[tuple[int, ...], Any] = {}

    def merge(self, values: Sequence[Any], where: str = "") -> Any:
        """Return the JSON that has each of `values` at its sample's sizes."""
        first = values[0]
        if isinstance(first, list) and all(isinstance(v, list) and len(v) == len(first) for v in values):
            if len(first) == 4 and isinstance(first[0], str):
                where = first[0]
            return [self.merge(column, where) for column in zip(*values, strict=True)]
        if isinstance(first, dict) and all(isinstance(v, dict) and v.keys() == first.keys() for v in values):
            return self._merged_objects(values, where)
        if all(v == first and type(v) is type(first) for v in values):
            return first
        if all(type(v) is int for v in values):
            return self._size(tuple(values), where)
        raise ExportError(
            f"the program is not the same for all sizes (near {where or 'its inputs'}): for sizes {dict(self._samples[0])} and "
            f"{dict(self._samples[-1])} it has {str(first)[:60]} and {str(values[-1])[:60]}. Export it for each size, or add constraints"
        )

    def _merged_objects(self, values: Sequence[dict[str, Any]], where: str) -> dict[str, Any]:
        if values[0].keys() == {"literal"} and any(v != values[0] for v in values):
            return {"literal": self._literal([v["literal"] for v in values], where)}
        return {key: self.merge([v[key] for v in values], where) for key in values[0]}

    def _size(self, values: tuple[int, ...], where: str) -> Any:
        if values not in self._known:
            found = self._polynomial([Fraction(v) for v in values])
            if found is None:
                raise ExportError(
                    f"a size near {where} is {list(values)} for the sizes {[dict(s) for s in self._samples]}, which is no polynomial of "
                    "degree 2; add a constraint such as 'mod(b, 8) == 0', or export the function for each size"
                )
            self._known[values] = {"dim": terms_of(found)}
        return self._known[values]

    def _polynomial(self, values: Sequence[Fraction]) -> Dimension | None:
        """Return the polynomial of these values at the samples, if there is one."""
        rows = [[Fraction(value_of(m, s)) for m in self._monomials] for s in self._samples]
        solved = _solve(rows, list(values))
        if solved is None:
            return None
        found = Dimension(dict(zip(self._monomials, solved, strict=True)))
        return found if all(found.evaluate(s) == v for s, v in zip(self._samples, values, strict=True)) else None

    def _literal(self, literals: Sequence[Any], where: str) -> list[Any]:
        """Return a literal of a size, or of a number divided by one."""
        kind = literals[0][0]
        dtype = as_dtype(kind[0])
        if all(lit[0] == kind for lit in literals):
            numbers = [np.frombuffer(bytes.fromhex(digits), dtype)[0] for _, digits in literals]
            for form in ("times", "over"):
                terms = self._factor(numbers, form, dtype)
                if terms is not None:
                    return [kind, {form: terms}]
        raise ExportError(
            f"a number in {where} depends on the sizes, but is neither a size nor a number divided by one; make it an argument"
        )

    def _factor(self, numbers: Sequence[Any], form: str, dtype: np.dtype) -> list[Any] | None:
        """Find a factor f and sizes n with f * n, or f / n, equal to the numbers."""
        for name_or_one in [*self._monomials[1:]]:
            sizes = [value_of(name_or_one, s) for s in self._samples]
            for factor in _factors(numbers[0], sizes[0], form):
                made = [dtype.type(factor * n if form == "times" else factor / n) for n in sizes]
                if all(a == b for a, b in zip(made, numbers, strict=True)):
                    return [float(factor).hex(), terms_of(Dimension({name_or_one: Fraction(1)}))]
        if form == "times" or dtype in FLOATS:
            return self._polynomial_number(numbers, form)
        return None

    def _polynomial_number(self, numbers: Sequence[Any], form: str) -> list[Any] | None:
        """Find a polynomial equal to the numbers, or to their rounded reciprocals."""
        values = [float(x) if form == "times" else 1.0 / float(x) if x else 0.0 for x in numbers]
        rounded = [round(v) for v in values]
        if any(abs(v - r) > 1e-3 * max(1.0, abs(v)) for v, r in zip(values, rounded, strict=True)):
            return None
        found = self._polynomial([Fraction(r) for r in rounded])
        if found is None or (form == "times" and any(r != v for r, v in zip(rounded, values, strict=True))):
            return None
        made = [np.asarray(x).dtype.type(1.0 / r) for x, r in zip(numbers, rounded, strict=True)] if form == "over" else numbers
        return [(1.0).hex(), terms_of(found)] if all(a == b for a, b in zip(made, numbers, strict=True)) else None


def _factors(number: Any, size: int, form: str) -> list[float]:
    """Return numbers that may have been multiplied with, or divided by, a size."""
    exact = float(number) / size if form == "times" else float(number) * size
    near = {exact, float(round(exact)), float(np.float32(exact)), float(f"{exact:.6g}"), float(f"{exact:.4g}")}
    return sorted(near, key=lambda x: abs(x - exact))


def _solve(rows: list[list[Fraction]], values: list[Fraction]) -> list[Fraction] | None:
    """Solve linear equations, more of them than unknowns; None without a solution."""
    table = [[*row, value] for row, value in zip(rows, values, strict=True)]
    width, pivots, done = len(rows[0]), [], 0
    for column in range(width):
        chosen = next((i for i in range(done, len(table)) if table[i][column]), None)
        if chosen is None:
            continue
        table[done], table[chosen] = table[chosen], table[done]
        head = [x / table[done][column] for x in table[done]]
        table = [row if i == done or not row[column] else [x - row[column] * h for x, h in zip(row, head, strict=True)]
                 for i, row in enumerate(table)]  # fmt: skip
        table[done] = head
        pivots.append(column)
        done += 1
    if any(row[-1] for row in table[done:]):
        return None
    solution = [Fraction(0)] * width
    for i, column in enumerate(pivots):
        solution[column] = table[i][-1]
    return solution


def terms_of(dimension: Dimension) -> list[Any]:
    """Return the JSON of a polynomial."""
    return [[str(c), [[name, exponent] for name, exponent in monomial]] for monomial, c in dimension.terms.items()]
