"""Symbolic sizes: polynomials of variables that stand for the sizes of axes.

Programs have sizes that are numbers. Only descriptions of arrays hold symbolic ones, for `volta_fn.export`, which finds the program for
every size of a variable.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from volta_fn.errors import ConcretizationError
from volta_fn.lazy_imports import deferred

if TYPE_CHECKING:
    from fractions import Fraction

#: Loaded on first use: few programs have symbolic sizes.
_fractions = deferred("fractions")

#: The variables of a product with their exponents, sorted by name; () is the constant term.
Monomial = tuple[tuple[str, int], ...]


class Dimension:
    """A polynomial with rational coefficients, immutable and comparable.

    >>> b = Dimension.variable("b")
    >>> 2 * b + 1, (2 * b + 1).evaluate({"b": 3})
    (2*b + 1, Fraction(7, 1))
    """

    __slots__ = ("scope", "terms")

    def __init__(self, terms: Mapping[Monomial, Fraction], scope: Any = None) -> None:
        #: The constraints on the variables: a `SymbolicScope`, or None.
        self.scope = scope
        self.terms = {monomial: _fractions.Fraction(c) for monomial, c in sorted(terms.items()) if c}

    @classmethod
    def variable(cls, name: str, scope: Any = None) -> Dimension:
        """Return the polynomial that is a variable."""
        return cls({((name, 1),): _fractions.Fraction(1)}, scope)

    @property
    def variables(self) -> frozenset[str]:
        """The names of the variables."""
        return frozenset([name for monomial in self.terms for name, _ in monomial])

    def evaluate(self, sizes: Mapping[str, int]) -> Fraction:
        """Evaluate the polynomial at sizes of all variables."""
        total = _fractions.Fraction(0)
        for monomial, coefficient in self.terms.items():
            total += coefficient * value_of(monomial, sizes)
        return total

    def __add__(self, other: Dimension | int) -> Dimension:
        terms = dict(self.terms)
        for monomial, coefficient in _as_dimension(other).terms.items():
            terms[monomial] = terms.get(monomial, _fractions.Fraction(0)) + coefficient
        return Dimension(terms, self.scope or getattr(other, "scope", None))

    def __mul__(self, other: Dimension | int) -> Dimension:
        terms: dict[Monomial, Fraction] = {}
        for left, a in self.terms.items():
            for right, b in _as_dimension(other).terms.items():
                monomial = _times(left, right)
                terms[monomial] = terms.get(monomial, _fractions.Fraction(0)) + a * b
        return Dimension(terms, self.scope or getattr(other, "scope", None))

    __radd__, __rmul__ = __add__, __mul__

    def __neg__(self) -> Dimension:
        return self * -1

    def __sub__(self, other: Dimension | int) -> Dimension:
        return self + _as_dimension(other) * -1

    def __rsub__(self, other: int) -> Dimension:
        return -self + other

    def __pow__(self, exponent: int) -> Dimension:
        result = _as_dimension(1)
        for _ in range(exponent):
            result = result * self
        return result

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Dimension | int) and self.terms == _as_dimension(other).terms

    def __hash__(self) -> int:
        return hash(tuple(self.terms.items()))

    def __index__(self) -> NoReturn:
        raise ConcretizationError(f"the size {self} is symbolic: only volta_fn.export.export takes arguments of symbolic sizes")

    __int__ = __bool__ = __index__

    def __repr__(self) -> str:
        ordered = sorted(self.terms.items(), key=lambda term: (-sum([n for _, n in term[0]]), term[0]))
        return " + ".join([_term(monomial, c) for monomial, c in ordered]).replace("+ -", "- ") or "0"


def _as_dimension(value: Dimension | int) -> Dimension:
    return value if isinstance(value, Dimension) else Dimension({(): _fractions.Fraction(value)})


def value_of(monomial: Monomial, sizes: Mapping[str, int]) -> int:
    """Evaluate a monomial at sizes of its variables."""
    product = 1
    for name, exponent in monomial:
        product *= sizes[name] ** exponent
    return product


def _times(left: Monomial, right: Monomial) -> Monomial:
    exponents = dict(left)
    for name, exponent in right:
        exponents[name] = exponents.get(name, 0) + exponent
    return tuple(sorted(exponents.items()))


def _term(monomial: Monomial, coefficient: Fraction) -> str:
    factors = [name if n == 1 else f"{name}^{n}" for name, n in monomial]
    number = [] if coefficient == 1 and factors else [str(coefficient)]
    return "*".join([*number, *factors]).replace("-1*", "-", 1)


def is_symbolic_dim(p: Any) -> bool:
    """Return True if a size is symbolic, and not a number.

    >>> is_symbolic_dim(Dimension.variable("b")), is_symbolic_dim(3)
    (True, False)
    """
    return isinstance(p, Dimension)
