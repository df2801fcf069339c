"""Symbolic sizes: polynomials of variables that stand for the sizes of axes.

Factors may also be quotients, remainders, maxima and minima of such polynomials.

Arrays have sizes that are numbers. Descriptions of arrays, and the values of functions that are traced for them, may have symbolic ones:
`eval_shape`, `make_jaxpr` and `jit(f).trace` take them, and `volta_fn.export` finds the program for every size of a variable. Nothing that
depends on a symbolic size runs.

The notation, the normal forms and the order of terms are those of `jax.export`. Bounds of sizes decide comparisons, where they do.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from volta_fn.errors import ArgumentError, ArgumentTypeError, InconclusiveDimensionOperation
from volta_fn.lazy_imports import deferred

if TYPE_CHECKING:
    from fractions import Fraction

#: Loaded on first use: few programs have symbolic sizes.
_fractions = deferred("fractions")

#: A variable or an operation.
Factor = Any
#: The factors of a product with their exponents, sorted; () is the constant term.
Monomial = tuple[tuple[Factor, int], ...]

#: The operations that make factors, as in Python: a remainder has the sign of its divisor.
OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {"floordiv": operator.floordiv, "mod": operator.mod, "max": max, "min": min}


class Operation:
    """A factor that is no variable: an operation of two sizes.

    >>> Operation("mod", Dimension.variable("b"), 3)
    mod(b, 3)
    """

    __slots__ = ("_text", "complexity", "name", "operands")

    def __init__(self, name: str, left: Dimension | int, right: Dimension | int) -> None:
        self.name = name
        self.operands = (left, right)
        self._text = f"{name}({left}, {right})"
        #: The number of symbols, by which factors are ordered.
        self.complexity: int = 1 + sum([_as_dimension(x).complexity for x in self.operands])

    def evaluate(self, sizes: Mapping[str, int]) -> Any:
        """Return the number for sizes of all variables."""
        return OPERATIONS[self.name](*[_as_dimension(x).evaluate(sizes) for x in self.operands])

    def substitute(self, sizes: Mapping[str, Any]) -> Any:
        """Return the size for sizes of all variables, which may be symbolic."""
        left, right = [_as_dimension(x).substitute(sizes) for x in self.operands]
        if self.name in ("max", "min"):
            return _extremum(self.name, left, right)
        return divided(left, right)[0 if self.name == "floordiv" else 1]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Operation) and (self.name, self.operands) == (other.name, other.operands)

    def __hash__(self) -> int:
        return hash(self._text)

    def __repr__(self) -> str:
        return self._text


class Dimension:
    """A polynomial with rational coefficients, immutable and comparable.

    Operators give another one, or an int where nothing symbolic is left. ``//`` and ``%`` divide polynomials where the quotient is one, and
    else are factors of their own. ``<``, ``<=``, ``>`` and ``>=`` raise `InconclusiveDimensionOperation` where the answer depends on the
    variables, each of which is at least 1; ``==`` is true of sizes that are always equal. With floats and arrays a size is an array.

    >>> b = Dimension.variable("b")
    >>> 2 * b + 1, (2 * b + 1).evaluate({"b": 3})
    (2*b + 1, Fraction(7, 1))
    >>> (4 * b) // 2, (b + 1) // 2, (b + 1) % 2, b - b
    (2*b, floordiv(b + 1, 2), mod(b + 1, 2), 0)
    >>> b >= 1
    True
    """

    __slots__ = ("complexity", "scope", "terms")
    #: NumPy's arrays leave operators with sizes to them.
    __array_priority__ = 1000
    __array_ufunc__ = None
    #: From a size to a traced scalar (`volta_fn.primitives.data_movement.movement` sets it).
    as_array: ClassVar[Callable[[Dimension], Any]]

    def __init__(self, terms: Mapping[Monomial, Fraction | int], scope: Any = None) -> None:
        #: The constraints on the variables: a `SymbolicScope`, or None.
        self.scope = scope
        ordered = sorted([(m, c) for m, c in terms.items() if c], key=_term_key)
        self.terms = {monomial: _fractions.Fraction(c) for monomial, c in ordered}
        self.complexity = sum([1 + int(abs(c) * _complexity(monomial)) for monomial, c in self.terms.items()])

    @classmethod
    def variable(cls, name: str, scope: Any = None) -> Dimension:
        """Return the polynomial that is a variable."""
        return cls({((name, 1),): 1}, scope)

    @property
    def variables(self) -> frozenset[str]:
        """The names of the variables."""
        names: set[str] = set()
        for monomial in self.terms:
            for factor, _ in monomial:
                names |= {factor} if isinstance(factor, str) else frozenset().union(*[_variables(x) for x in factor.operands])
        return frozenset(names)

    def evaluate(self, sizes: Mapping[str, int]) -> Fraction:
        """Evaluate the polynomial at sizes of all variables."""
        total = _fractions.Fraction(0)
        for monomial, coefficient in self.terms.items():
            total += coefficient * value_of(monomial, sizes)
        return total

    def substitute(self, sizes: Mapping[str, Any]) -> Any:
        """Return the size for sizes of all variables, which may be symbolic.

        Raises `InconclusiveDimensionOperation` where it is no integer for some of their values.

        >>> b, c = Dimension.variable("b"), Dimension.variable("c")
        >>> (2 * b + b // 3).substitute({"b": c + 1}), (b + 1).substitute({"b": 4})
        (floordiv(c + 1, 3) + 2*c + 2, 5)
        """
        denominator = math.lcm(*[c.denominator for c in self.terms.values()])
        total: Any = 0
        for monomial, coefficient in self.terms.items():
            term: Any = int(coefficient * denominator)
            for factor, exponent in monomial:
                term *= (sizes[factor] if isinstance(factor, str) else factor.substitute(sizes)) ** exponent
            total += term
        size, remainder = divided(total, denominator)
        if remainder != 0:
            raise InconclusiveDimensionOperation(f"the size {self} for {dict(sizes)} may be no integer: {total} / {denominator}")
        return size

    def leading(self) -> tuple[Monomial, Fraction]:
        """Return the most complex term and its coefficient."""
        return next(reversed(self.terms.items()))

    def __add__(self, other: Any) -> Any:
        size = _operand(other)
        if size is None:
            return self.__jax_array__() + other
        terms = dict(self.terms)
        for monomial, coefficient in size.terms.items():
            terms[monomial] = terms.get(monomial, 0) + coefficient
        return simplified(terms, self._common_scope(size))

    def __radd__(self, other: Any) -> Any:
        return self + other if _operand(other) is not None else other + self.__jax_array__()

    def __mul__(self, other: Any) -> Any:
        size = _operand(other)
        if size is None:
            return self.__jax_array__() * other
        terms: dict[Monomial, Fraction] = {}
        for left, a in self.terms.items():
            for right, b in size.terms.items():
                monomial = product(left, right)
                terms[monomial] = terms.get(monomial, 0) + a * b
        return simplified(terms, self._common_scope(size))

    def __rmul__(self, other: Any) -> Any:
        return self * other if _operand(other) is not None else other * self.__jax_array__()

    def __neg__(self) -> Any:
        return self * -1

    def __sub__(self, other: Any) -> Any:
        size = _operand(other)
        if size is None:
            return self.__jax_array__() - other
        return self + Dimension({m: -c for m, c in size.terms.items()}, size.scope)

    def __rsub__(self, other: Any) -> Any:
        return self * -1 + other if _operand(other) is not None else other - self.__jax_array__()

    def __pow__(self, exponent: Any) -> Any:
        if not _is_integer(exponent) or exponent < 0:
            raise ArgumentError(f"the symbolic size {self} can be raised to the powers 0, 1, 2, …, not {exponent}")
        result: Any = 1
        for _ in range(operator.index(exponent)):
            result = self * result
        return result

    def __rpow__(self, base: Any) -> Any:
        return base ** self.__jax_array__()

    def __floordiv__(self, divisor: Any) -> Any:
        return self.__jax_array__() // divisor if _operand(divisor) is None else divided(self, divisor)[0]

    def __rfloordiv__(self, dividend: Any) -> Any:
        return dividend // self.__jax_array__() if _operand(dividend) is None else divided(dividend, self)[0]

    def __mod__(self, divisor: Any) -> Any:
        return self.__jax_array__() % divisor if _operand(divisor) is None else divided(self, divisor)[1]

    def __rmod__(self, dividend: Any) -> Any:
        return dividend % self.__jax_array__() if _operand(dividend) is None else divided(dividend, self)[1]

    def __divmod__(self, divisor: Any) -> tuple[Any, Any]:
        return divided(self, divisor)

    def __rdivmod__(self, dividend: Any) -> tuple[Any, Any]:
        return divided(dividend, self)

    def __truediv__(self, divisor: Any) -> Any:
        return self.__jax_array__() / divisor

    def __rtruediv__(self, dividend: Any) -> Any:
        return dividend / self.__jax_array__()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Dimension):
            return self.terms.keys() <= {()} and isinstance(other, int) and self.terms.get((), 0) == other
        if self.scope is not other.scope and self.scope is not None and other.scope is not None:
            return False
        return self.terms == other.terms

    def __hash__(self) -> int:
        return hash(tuple(self.terms.items()))

    def __ge__(self, other: Any) -> bool:
        return _is_at_least(self, other, ">=")

    def __le__(self, other: Any) -> bool:
        return _is_at_least(other, self, "<=")

    def __gt__(self, other: Any) -> bool:
        return not _is_at_least(other, self, ">")

    def __lt__(self, other: Any) -> bool:
        return not _is_at_least(self, other, "<")

    def max(self, other: Any) -> Any:
        """Return the larger one of two sizes."""
        return max_dim(self, other)

    def min(self, other: Any) -> Any:
        """Return the smaller one of two sizes."""
        return min_dim(self, other)

    def __jax_array__(self) -> Any:
        return type(self).as_array(self)

    #: JAX's name for it.
    dimension_as_value = __jax_array__

    def __index__(self) -> NoReturn:
        raise InconclusiveDimensionOperation(
            f"the size {self} is symbolic, but Python needs a number: compute with the size itself, or export the function for one size"
        )

    __int__ = __index__

    def __bool__(self) -> bool:
        return True  # as in JAX: sizes are compared by operators

    def __copy__(self) -> Dimension:
        return self

    def __deepcopy__(self, memo: Any) -> Dimension:
        return self

    def __reduce__(self) -> NoReturn:
        raise ArgumentTypeError(f"the symbolic size {self} cannot be pickled; keep its text, for volta_fn.export.symbolic_shape")

    def __repr__(self) -> str:
        terms = "".join([_term(monomial, c) for monomial, c in reversed(self.terms.items())])
        return terms.strip().removeprefix("+ ") or "0"

    def _common_scope(self, other: Dimension) -> Any:
        if self.scope is not other.scope and self.scope is not None and other.scope is not None:
            raise ArgumentError(
                f"invalid mixing of symbolic scopes: {self} and {other} are of different calls of symbolic_shape; give the later one "
                "scope=, the scope of the first one"
            )
        return other.scope if self.scope is None else self.scope


Size = int | Dimension


def is_symbolic_dim(p: Any) -> bool:
    """Return True if a size is symbolic, and not a number.

    >>> is_symbolic_dim(Dimension.variable("b")), is_symbolic_dim(3)
    (True, False)
    """
    return isinstance(p, Dimension)


def is_symbolic(sizes: Iterable[Any]) -> bool:
    """Return True if one of the sizes is symbolic."""
    return any(isinstance(size, Dimension) for size in sizes)


def max_dim(d1: Any, d2: Any) -> Any:
    """Return the larger one of two sizes, which may be symbolic.

    >>> max_dim(Dimension.variable("b"), 3)
    max(b, 3)
    """
    return _extremum("max", d1, d2)


def min_dim(d1: Any, d2: Any) -> Any:
    """Return the smaller one of two sizes, which may be symbolic.

    >>> min_dim(Dimension.variable("b"), 1)
    1
    """
    return _extremum("min", d1, d2)


def fits(size: Any, limit: int) -> bool:
    """Return True if a size is at most `limit`, as symbolic ones are taken to be."""
    return isinstance(size, Dimension) or bool(size <= limit)


def surely_less(left: Any, right: Any) -> bool:
    """Return True if a size is less than another one for all values of the variables.

    >>> b = Dimension.variable("b")
    >>> surely_less(b, b + 1), surely_less(b, 2), surely_less(1, 2)
    (True, False, True)
    """
    if not isinstance(left, Dimension) and not isinstance(right, Dimension):
        return bool(left < right)
    return bool(bounds(right - left)[0] > 0)


def span(item: slice, size: Any) -> tuple[Any, Any, int, Any]:
    """Return start, stop, step and length of a slice of an axis of a size.

    Raises as `slice.indices` does; with symbolic sizes `InconclusiveDimensionOperation` where a bound may lie on either side.

    >>> b = Dimension.variable("b")
    >>> span(slice(1, 9, 2), 6), span(slice(None, -1), b), span(slice(3), b)
    ((1, 6, 2, 3), (0, b - 1, 1, b - 1), (0, min(b, 3), 1, min(b, 3)))
    """
    if not is_symbolic((size, item.start, item.stop, item.step)):
        indices = item.indices(size)
        return (*indices, len(range(*indices)))
    step: Any = 1 if item.step is None else item.step if isinstance(item.step, Dimension) else operator.index(item.step)
    if step == 0:
        raise ValueError("slice step cannot be zero")
    forwards = step > 0
    first, last = (0, size) if forwards else (size - 1, -1)
    start = first if item.start is None else _clamped(item.start, size, forwards)
    stop = last if item.stop is None else _clamped(item.stop, size, forwards)
    distance, stride = (stop - start, step) if forwards else (start - stop, -step)
    length = max_dim(distance, 0) if stride == 1 else max_dim(divided(distance + stride - 1, stride)[0], 0)
    return start, stop, step, length


def _clamped(bound: Any, size: Any, forwards: bool) -> Any:
    """Return a bound of a slice, counted from the front and moved into the axis."""
    position = bound if isinstance(bound, Dimension) else operator.index(bound)
    position = position + size if position < 0 else position
    lowest, highest = (0, size) if forwards else (-1, size - 1)
    return min_dim(highest, max_dim(position, lowest))


def _extremum(name: str, left: Any, right: Any) -> Any:
    if not isinstance(left, Dimension) and not isinstance(right, Dimension):
        return OPERATIONS[name](left, right)
    difference = left - right
    lower, upper = bounds(difference)
    if lower >= 0 or upper <= 0:
        return left if (lower >= 0) == (name == "max") else right
    return simplified({((Operation(name, left, right), 1),): 1}, difference.scope)


def _is_at_least(left: Any, right: Any, comparison: str) -> bool:
    if _operand(left) is None or _operand(right) is None:
        as_arrays = [x.__jax_array__() if isinstance(x, Dimension) else x for x in (left, right)]
        return as_arrays[0] >= as_arrays[1]
    difference = left - right
    lower, upper = bounds(difference)
    if lower >= 0:
        return True
    if upper < 0:
        return False
    first, second = (left, right) if comparison in (">=", "<") else (right, left)
    constraints = getattr(getattr(difference, "scope", None), "constraints", ())
    raise InconclusiveDimensionOperation(
        f"the comparison '{first}' {comparison} '{second}' of symbolic sizes is inconclusive"
        + (f" under the constraints {list(constraints)}" if constraints else "")
        + ": it depends on the variables. Add a constraint, as in symbolic_shape('b', constraints=['b >= 4']), or use max_dim and min_dim"
    )


def divided(dividend: Any, divisor: Any) -> tuple[Any, Any]:
    """Return quotient and remainder of two sizes.

    They are polynomials where the division comes out even, or leaves a number less than a divisor that is one.
    """
    if not isinstance(divisor, Dimension) and divisor == 0:
        raise ArgumentError(f"the size {dividend} is divided by zero")
    if not isinstance(dividend, Dimension) and not isinstance(divisor, Dimension):
        return divmod(dividend, divisor)
    exact = _polynomial_quotient(dividend, divisor)
    if exact is not None:
        return exact
    scope = _as_dimension(dividend)._common_scope(_as_dimension(divisor))
    quotient, remainder = [simplified({((Operation(name, dividend, divisor), 1),): 1}, scope) for name in ("floordiv", "mod")]
    return quotient, remainder


def _polynomial_quotient(dividend: Any, divisor: Any) -> tuple[Any, Any] | None:
    quotient: Any = 0
    lead, factor = divisor.leading() if isinstance(divisor, Dimension) else ((), divisor)
    while isinstance(dividend, Dimension):
        monomial, coefficient = dividend.leading()
        ratio = _ratio(monomial, lead)
        if ratio is None or coefficient % factor:
            return None
        step = simplified({ratio: coefficient // factor}, dividend.scope)
        quotient, dividend = quotient + step, dividend - step * divisor
    if isinstance(divisor, Dimension):
        return (quotient, 0) if dividend == 0 else None
    whole, remainder = divmod(dividend, divisor)
    return quotient + whole, remainder


def _ratio(monomial: Monomial, divisor: Monomial) -> Monomial | None:
    exponents = dict(monomial)
    for factor, exponent in divisor:
        exponents[factor] = exponents.get(factor, 0) - exponent
        if exponents[factor] < 0:
            return None
    return _monomial(exponents)


def product(left: Monomial, right: Monomial) -> Monomial:
    """Return the product of two monomials."""
    exponents = dict(left)
    for factor, exponent in right:
        exponents[factor] = exponents.get(factor, 0) + exponent
    return _monomial(exponents)


def _monomial(exponents: Mapping[Factor, int]) -> Monomial:
    return tuple(sorted([(f, n) for f, n in exponents.items() if n], key=_factor_key))


def simplified(terms: Mapping[Monomial, Any], scope: Any = None) -> Any:
    """Return a polynomial by the equations of its scope, or the int that it is."""
    rules = scope.rules if scope is not None else {}
    for _ in range(len(rules) + 1):
        rewritten = _rewritten(terms, rules) if rules else None
        if rewritten is None:
            break
        terms = rewritten
    result = Dimension(terms, scope)
    if result.terms.keys() <= {()}:
        constant = result.terms.get((), 0)
        if constant == int(constant):
            return int(constant)
    return result


def _rewritten(terms: Mapping[Monomial, Any], rules: Mapping[Monomial, tuple[int, Any]]) -> dict[Monomial, Any] | None:
    """Replace the first term with a rule; None if no term has one."""
    for monomial, coefficient in terms.items():
        for pattern, (multiple, replacement) in rules.items():
            rest = _ratio(monomial, pattern)
            if rest is None or not coefficient or coefficient % multiple:
                continue
            changed = {m: c for m, c in terms.items() if m != monomial}
            for m, c in _as_dimension(replacement).terms.items():
                joined = product(m, rest)
                changed[joined] = changed.get(joined, 0) + c * (coefficient / multiple)
            return changed
    return None


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) or (hasattr(type(value), "__index__") and getattr(value, "shape", ()) == () and _has_index(value))


def _has_index(value: Any) -> bool:
    try:
        operator.index(value)
    except TypeError:
        return False
    return True


def _operand(value: Any) -> Dimension | None:
    """Return a size as a polynomial; None for what is no size."""
    if isinstance(value, Dimension):
        return value
    return _as_dimension(operator.index(value)) if _is_integer(value) else None


def _as_dimension(value: Any) -> Dimension:
    return value if isinstance(value, Dimension) else Dimension({(): _fractions.Fraction(value)})


def _variables(value: Any) -> frozenset[str]:
    return value.variables if isinstance(value, Dimension) else frozenset()


def value_of(monomial: Monomial, sizes: Mapping[str, int]) -> Any:
    """Evaluate a monomial at sizes of its variables."""
    result: Any = 1
    for factor, exponent in monomial:
        result *= (sizes[factor] if isinstance(factor, str) else factor.evaluate(sizes)) ** exponent
    return result


def _factor_key(item: tuple[Factor, int]) -> tuple[Any, ...]:
    factor, exponent = item
    return (1 if isinstance(factor, str) else factor.complexity, str(factor), exponent)


def _complexity(monomial: Monomial) -> int:
    return sum([1 + exponent * (1 if isinstance(factor, str) else factor.complexity) for factor, exponent in monomial])


def _term_key(term: tuple[Monomial, Any]) -> tuple[Any, ...]:
    return _complexity(term[0]), [_factor_key(item) for item in term[0]]


def _term(monomial: Monomial, coefficient: Fraction) -> str:
    factors = [str(factor) + (f"^{exponent}" if exponent > 1 else "") for factor, exponent in monomial]
    number = [] if abs(coefficient) == 1 and factors else [str(abs(coefficient))]
    return (" + " if coefficient > 0 else " - ") + "*".join([*number, *factors])


# Bounds of symbolic sizes, by which comparisons are decided.
#
# A size is a linear combination of *terms*, products of variables and operations. What is known are inequalities ``c >= 0`` between terms:
# those of the scope, and those that hold for every term, such as ``b >= 1`` of a variable and ``0 <= mod(a, 3) <= 2``. Where a combination
# and an inequality share a term, a multiple of one added to the other eliminates the term (Fourier and Motzkin's method), and bounds of the
# rest are bounds of the combination. The search is limited: where it ends without an answer a comparison is inconclusive.


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
