"""Symbolic shapes: their notation, constraints, and one manifest for all sizes."""

from __future__ import annotations

import ast
import itertools
import operator
import random
import re
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from volta_fn import tree
from volta_fn.core.arrays.array import aval_of
from volta_fn.core.aval import ShapeDtypeStruct
from volta_fn.core.dimension import (
    OPERATIONS,
    Dimension,
    Monomial,
    Operation,
    bounds,
    divided,
    is_symbolic_dim,
    max_dim,
    min_dim,
    simplified,
    value_of,
)
from volta_fn.dtypes import FLOATS, as_dtype
from volta_fn.errors import ArgumentError, ArgumentTypeError, ExportError, ShapeError
from volta_fn.export.values import terms_of

# Constraints between sizes: comparisons such as "a >= b" or "a*b == c + d".

Sizes = Mapping[str, int]

_COMPARISONS: dict[str, Callable[[int, int], bool]] = {">=": operator.ge, "<=": operator.le, "==": operator.eq}
_OPERATIONS: dict[type, Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Pow: operator.pow,
}
#: The most characters of a constraint, and the largest exponent in it.
_LONGEST, _LARGEST_EXPONENT = 200, 8
#: The maximum number of assignments that are tried.
_TRIES = 20_000


class Relation:
    """A comparison of two expressions of sizes.

    Expressions consist of numbers, names, ``+ - * ^``, and ``mod``, ``floordiv``, ``max`` and ``min`` of two expressions; exponents are
    numbers. A comparison in which something is divided by zero does not hold.

    Raises `ArgumentError` for other texts.

    >>> Relation("a >= b + mod(b, 3)").holds({"a": 6, "b": 5})
    False
    """

    def __init__(self, text: str) -> None:
        self.text = text
        sides = re.split(r"(>=|<=|==)", text)
        if len(sides) != 3 or len(text) > _LONGEST:
            self._fail()
        self.comparison = sides[1]
        self._left, self._right = self._parse(sides[0]), self._parse(sides[2])
        #: The names in it.
        self.names = frozenset(
            [node.id for side in (self._left, self._right) for node in ast.walk(side) if isinstance(node, ast.Name)]
        ) - frozenset(OPERATIONS)

    def holds(self, sizes: Mapping[str, Any]) -> bool:
        """Return True if the comparison is true of the sizes, which may be symbolic."""
        try:
            return _COMPARISONS[self.comparison](_value(self._left, sizes), _value(self._right, sizes))
        except ZeroDivisionError:
            return False

    def solved_for(self, sizes: Sizes) -> Sizes:
        """Return sizes for which an equation holds, with one of them changed."""
        for name in sorted(self.names):
            try:
                at = [self._difference({**sizes, name: n}) for n in (0, 1, 2)]
            except ZeroDivisionError:
                continue
            slope = at[1] - at[0]
            if slope and at[2] - at[1] == slope and at[0] % slope == 0 and -at[0] // slope > 0:
                return {**sizes, name: -at[0] // slope}
        return sizes

    def _difference(self, sizes: Sizes) -> int:
        return _value(self._left, sizes) - _value(self._right, sizes)

    def _parse(self, text: str) -> ast.expr:
        try:
            body = ast.parse(text.strip().replace("^", "**"), mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            self._fail()
        for node in ast.walk(body):
            self._check(node)
        return body

    def _check(self, node: ast.AST) -> None:
        if isinstance(node, ast.BinOp):
            allowed = type(node.op) in _OPERATIONS and (type(node.op) is not ast.Pow or _is_number(node.right, 0, _LARGEST_EXPONENT))
        elif isinstance(node, ast.Call):
            allowed = isinstance(node.func, ast.Name) and node.func.id in OPERATIONS and len(node.args) == 2 and not node.keywords
            allowed = allowed and (node.func.id in ("max", "min") or not _is_number(node.args[1], 0, 0))  # type: ignore[attr-defined]  # a name
        elif isinstance(node, ast.Constant):
            allowed = type(node.value) is int
        else:
            allowed = isinstance(node, (ast.Name, ast.UnaryOp, ast.USub, ast.Load, ast.operator))
        if not allowed:
            self._fail()

    def _fail(self) -> Any:
        raise ArgumentError(
            f"the constraint {self.text!r} must compare two expressions by >=, <= or ==, like 'b >= 4', 'a*b == c' or 'mod(b, 8) == 0'"
        )


def _is_number(node: ast.expr, least: int, most: int) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) is int and least <= node.value <= most


def _value(node: Any, sizes: Sizes) -> int:
    if isinstance(node, ast.Constant):
        return int(node.value)  # type: ignore[arg-type]  # an int, by the check
    if isinstance(node, ast.Name):
        return sizes[node.id]
    if isinstance(node, ast.UnaryOp):
        return -_value(node.operand, sizes)
    if isinstance(node, ast.BinOp):
        return _OPERATIONS[type(node.op)](_value(node.left, sizes), _value(node.right, sizes))
    return OPERATIONS[node.func.id](*[_value(a, sizes) for a in node.args])


def satisfying(columns: Mapping[str, Sequence[int]], relations: Sequence[Relation], count: int) -> list[dict[str, int]]:
    """Return different assignments of sizes for which all relations hold.

    Raises `ArgumentError` if too few of the tried assignments satisfy them.
    """
    draw = random.Random(0)
    assignments: dict[tuple[int, ...], dict[str, int]] = {}
    for _ in itertools.repeat(None, _TRIES):
        sizes: Sizes = {name: draw.choice(column) for name, column in columns.items()}
        for relation in relations:
            if relation.comparison == "==" and relation.names <= sizes.keys():
                sizes = relation.solved_for(sizes)
        if all(r.holds(sizes) for r in relations if r.names <= sizes.keys()):
            assignments.setdefault(tuple(sizes.values()), dict(sizes))
        if len(assignments) == count:
            return list(assignments.values())
    raise ArgumentError(f"no {count} sizes that were tried satisfy {[r.text for r in relations]}, only {len(assignments)}")


# Symbolic shapes: their notation, and the sizes for which functions are traced.

_TOKEN = re.compile(r"\s*(?:(\d+)|([A-Za-z_]\w*)|([*+\-^(),]))")
_BOUND = re.compile(r"^\s*(\w+)\s*(>=|<=|==)\s*(\d+)\s*$")
_MULTIPLE = re.compile(r"^\s*mod\(\s*(\w+)\s*,\s*(\d+)\s*\)\s*==\s*0\s*$")
#: Sizes for tracing, before constraints: unusual in programs, with all remainders, and one of them large.
_SIZES = (7, 10, 12, 17, 19, 21, 26, 31, 35, 40, 44, 53, 57, 62, 69, 72, 75, 83, 88, 97, 101, 106, 111, 118)
_LARGE = 5003
#: The highest power of a size in the sizes of a program.
_DEGREE = 2


class SymbolicScope:
    """Constraints on the variables of symbolic shapes.

    Each is a text: "b >= 4", "b <= 512", "mod(b, 8) == 0", or another comparison (`Relation`). An equation whose left side is one term
    replaces this wherever it occurs. Raises `ArgumentError` for other texts, and for comparisons that no sizes satisfy.

    >>> SymbolicScope(["b >= 4", "mod(b, 8) == 0"]).allows("b", 12)
    False
    """

    def __init__(self, constraints: Sequence[str] = ()) -> None:
        self.constraints = tuple(constraints)
        self._limits: list[tuple[str, str, int]] = []
        #: Those that are no bound of one variable.
        self.relations: list[Relation] = []
        for text in self.constraints:
            bound, multiple = _BOUND.match(text), _MULTIPLE.match(text)
            groups = bound.groups() if bound else (multiple[1], "mod", multiple[2]) if multiple else None
            if groups is None or (groups[1] == "mod" and int(groups[2]) == 0):
                self.relations.append(Relation(text))
            else:
                self._limits.append((groups[0], groups[1], int(groups[2])))
        #: Replacements of terms: by monomial a coefficient, and the size that the monomial times this is equal to.
        self.rules: dict[Monomial, tuple[int, Any]] = {}
        #: The variables that equations replace, and by what.
        self._replaced: dict[str, Any] = {}
        #: Sizes that are at least 0.
        self.inequalities: tuple[Dimension, ...] = ()
        #: Bounds of sizes (`dimension.bounds`).
        self.bounds: dict[Dimension, tuple[float, float]] = {}
        for text in self.constraints:
            self._add_constraint(text)

    def _add_constraint(self, text: str) -> None:
        left, comparison, right = re.split(r"(>=|<=|==)", text)
        first, second = (_Parser(side.strip(), side, self).parse() for side in (left, right))
        difference = first - second
        lower, upper = bounds(difference)
        if (comparison != "<=" and upper < 0) or (comparison != ">=" and lower > 0):
            raise ArgumentError(f"the constraint {text!r} is unsatisfiable: no sizes satisfy it, with those before it")
        if not isinstance(difference, Dimension):
            return
        opposite = difference * -1  # before the replacement, by which it is 0
        if comparison == "==" and isinstance(first, Dimension) and len(first.terms) == 1:
            self._replace(first, second)
        self.inequalities += {">=": (difference,), "<=": (opposite,), "==": (difference, opposite)}[comparison]
        self.bounds.clear()

    def _replace(self, term: Dimension, size: Any) -> None:
        monomial, coefficient = term.leading()
        self.rules[monomial] = (int(coefficient), size)
        factor = monomial[0][0]
        if isinstance(factor, str) and term == Dimension.variable(factor):
            self._replaced[factor] = size
        if size == 0 and term == Dimension({((factor, 1),): 1}) and isinstance(factor, Operation) and factor.name == "mod":
            dividend, divisor = factor.operands
            if not isinstance(divisor, Dimension):  # it divides without a remainder
                self.rules[((Operation("floordiv", dividend, divisor), 1),)] = (divisor, dividend)

    def completed(self, sizes: Mapping[str, Any]) -> dict[str, Any]:
        """Return sizes, and those of the variables that equations replace by them.

        >>> SymbolicScope(["a == 2*b"]).completed({"b": 3})
        {'b': 3, 'a': 6}
        """
        result = dict(sizes)
        for name, size in reversed(self._replaced.items()):  # equations hold variables that later ones replace
            if not isinstance(size, Dimension):
                result[name] = size
            elif size.variables <= result.keys():
                result[name] = size.substitute(result)
        return result

    def allows(self, name: str, size: Any) -> bool:
        """Return True if a variable may have a size.

        Raises `InconclusiveDimensionOperation` for a symbolic one that it may not always have.
        """
        checks = {">=": lambda n: size >= n, "<=": lambda n: size <= n, "==": lambda n: size == n, "mod": lambda n: size % n == 0}
        is_size = name in self._replaced or size >= 1  # what an equation gives may be 0, as in JAX
        return is_size and all(checks[kind](n) for variable, kind, n in self._limits if variable == name)

    def violated(self, sizes: Mapping[str, Any]) -> str | None:
        """Return a size or a constraint that sizes violate, or None.

        Raises `InconclusiveDimensionOperation` for symbolic ones that may do so.

        >>> scope = SymbolicScope(["b >= 4", "mod(b, 8) == 0"])
        >>> scope.violated({"b": 12}), scope.violated({"b": 16})
        ('b = 12', None)
        """
        every = self.completed(sizes)
        refused = (f"{name} = {size}" for name, size in every.items() if not self.allows(name, size))
        broken = (relation.text for relation in self.relations if relation.names <= every.keys() and not relation.holds(every))
        return next(itertools.chain(refused, broken), None)

    def assignments(self, names: Sequence[str], count: int) -> list[dict[str, int]]:
        """Return sizes of all variables that satisfy the constraints."""
        if self.relations:
            every = dict.fromkeys([*names, *self._replaced])
            columns = {name: self.samples(name, count + position) for position, name in enumerate(every)}
            relations = [Relation(text) for text in self.constraints]
            try:
                assignments = satisfying(self._with_small_sizes(columns, 2), relations, count)
            except ArgumentError:
                assignments = satisfying(self._with_small_sizes(columns, 1), relations, count)
            return [{name: sizes[name] for name in names} for sizes in assignments]
        columns = {name: self.samples(name, count + position) for position, name in enumerate(names)}
        return [{name: column[(i + k * (i // 2)) % len(column)] for k, (name, column) in enumerate(columns.items())} for i in range(count)]

    def _with_small_sizes(self, columns: Mapping[str, Sequence[int]], least: int) -> dict[str, list[int]]:
        """Return the columns with the sizes from `least` to those of `_SIZES` in front."""
        return {name: [*[n for n in range(least, _SIZES[0]) if self.allows(name, n)], *column] for name, column in columns.items()}

    def small_assignments(self, names: Sequence[str]) -> list[dict[str, int]]:
        """Return the least sizes that satisfy the constraints: all 1, all 2, all 3."""
        equal = [dict.fromkeys(names, n) for n in (1, 2, 3)]
        return [sizes for sizes in equal if self.violated(sizes) is None]

    def samples(self, name: str, count: int) -> list[int]:
        """Return sizes that a variable may have: different ones, a large one last.

        One is among them only if the others do not determine a polynomial: programs of axes of size 1 often differ from those of all
        others.
        """
        step = 1
        for variable, kind, n in self._limits:
            step = max(step, n) if variable == name and kind == "mod" else step
        low = max([n for variable, kind, n in self._limits if variable == name and kind != "<=" and kind != "mod"], default=0)
        tried = [p * step for p in _SIZES] + [step * (low // step + p) for p in _SIZES]
        small = [*dict.fromkeys(size for size in [*tried, *range(2, 200)] if size > 1 and self.allows(name, size))][:count]
        if len(small) <= _DEGREE and self.allows(name, 1):
            small = [*small, 1][:count]
        if not small:
            raise ArgumentError(f"no size that was tried satisfies the constraints on {name}: {self.constraints}")
        large = step * (low // step + _LARGE)
        return [*small[: count - 1], large] if self.allows(name, large) and count > 1 else small


def symbolic_shape(
    shape_spec: str | None,
    *,
    constraints: Sequence[str] = (),
    scope: SymbolicScope | None = None,
    like: Sequence[int | None] | None = None,
) -> tuple[Any, ...]:
    """Return the shape that a text describes: numbers, and polynomials of variables.

    Args:
        shape_spec: sizes with commas between them, "b, 28, 2*n + 1, floordiv(n, 2)"; operations are floordiv, mod, max and min. "_" takes
            the size of `like`, and "..." all further ones.
        constraints: bounds on the variables, as `SymbolicScope` has them; the scope checks them when the function is exported.
        scope: constraints in place of these. Variables of one name are the same in every shape.
        like: a shape, for placeholders.

    Raises `ArgumentError` if the text is no shape.

    >>> symbolic_shape("b, 4")
    (b, 4)
    >>> symbolic_shape("b, ...", like=(1, 28, 28))
    (b, 28, 28)
    """
    scope = scope or SymbolicScope(constraints)
    shape_spec = "..." if shape_spec is None else shape_spec
    chunks = _chunks(shape_spec)
    if "..." in chunks:
        if like is None or chunks[-1] != "..." or len(chunks) - 1 > len(like):
            raise ArgumentError(
                f"syntax error in symbolic shape {shape_spec!r}: '...' must come last, and needs like=, of as many sizes; got like={like}"
            )
        chunks = [*chunks[:-1], *["_"] * (len(like) - len(chunks) + 1)]
    return tuple([_size(chunk, i, like, shape_spec, scope) for i, chunk in enumerate(chunks)])


def _chunks(shape_spec: str) -> list[str]:
    """Divide a text at its commas outside of parentheses."""
    text, depth, starts = shape_spec.strip(), 0, [0]
    for position, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if depth == 0 and character == ")" and text[0] == "(" and position == len(text) - 1 and starts == [0]:
            return _chunks(text[1:-1])
        if depth == 0 and character == ",":
            starts.append(position + 1)
    return [
        chunk for start, end in zip(starts, [*[s - 1 for s in starts[1:]], len(text)], strict=True) if (chunk := text[start:end].strip())
    ]


def _size(chunk: str, position: int, like: Sequence[int | None] | None, text: str, scope: SymbolicScope) -> Any:
    if chunk == "_":
        size = like[position] if like is not None and position < len(like) else None
        if size is None:
            raise ArgumentError(f"syntax error in symbolic shape {text!r}: '_' takes the size of like=, which is {like}")
        return size
    parsed = _Parser(chunk, text, scope).parse()
    fixed = like[position] if like is not None and position < len(like) else None
    if isinstance(parsed, int) and isinstance(fixed, int) and parsed != fixed:
        raise ArgumentError(f"syntax error in symbolic shape {text!r}: {parsed} at position {position} is a different size than in {like}")
    return parsed


class _Parser:
    """Parses sums of products of numbers, variables and operations of two sizes."""

    def __init__(self, chunk: str, text: str, scope: SymbolicScope) -> None:
        self._scope = scope
        self._tokens = [match.group().strip() for match in _TOKEN.finditer(chunk)]
        self._text = text
        if "".join(self._tokens) != chunk.replace(" ", ""):
            self._fail()

    def parse(self) -> Any:
        """Return a number or a polynomial."""
        expression = self._sum()
        if self._tokens:
            self._fail()
        return expression

    def _sum(self) -> Any:
        total = self._signed()
        while self._tokens and self._tokens[0] in "+-":
            total = total + self._signed()
        return total

    def _signed(self) -> Any:
        sign = 1
        while self._tokens and self._tokens[0] in "+-":
            sign *= 1 if self._tokens.pop(0) == "+" else -1
        return self._product() * sign

    def _product(self) -> Any:
        total = self._power()
        while self._take("*"):
            total = total * self._power()
        return total

    def _power(self) -> Any:
        base = self._factor()
        if not self._take("^"):
            return base
        exponent = self._tokens.pop(0) if self._tokens else ""
        return base ** int(exponent) if exponent.isdecimal() else self._fail()

    def _factor(self) -> Any:
        token = self._tokens.pop(0) if self._tokens else ""
        if token.isdecimal():
            return int(token)
        if token in OPERATIONS and self._take("("):
            return self._operation(token)
        if token.isidentifier():
            return simplified({((token, 1),): 1}, self._scope)
        if token == "(":
            inner = self._sum()
            if self._take(")"):
                return inner
        return self._fail()

    def _operation(self, name: str) -> Any:
        left = self._sum()
        right = self._sum() if self._take(",") else self._fail()
        if not self._take(")"):
            self._fail()
        if name in ("max", "min"):
            return (max_dim if name == "max" else min_dim)(left, right)
        return divided(left, right)[0 if name == "floordiv" else 1]

    def _take(self, token: str) -> bool:
        matches = bool(self._tokens) and self._tokens[0] == token
        if matches:
            self._tokens.pop(0)
        return matches

    def _fail(self) -> Any:
        raise ArgumentError(
            f"syntax error in symbolic shape {self._text!r}: write sizes like 'b', '2*b + 1' or '28', with commas between them"
        )


def symbolic_dim_bounds(dimension: Any) -> tuple[float, float]:
    """Return numbers between which a size lies; infinities where it has no bound.

    `dimension` is an integer or a symbolic size. The bounds are those that can be proved, and need not be tight.
    Raises `ArgumentTypeError` for anything else.

    >>> b, c = vf.export.symbolic_shape("b, c", constraints=["b <= 8"])
    >>> symbolic_dim_bounds(b + c), symbolic_dim_bounds(b % 3)
    ((2, inf), (0, 2))
    """
    if not (is_symbolic_dim(dimension) or hasattr(dimension, "__index__")):
        raise ArgumentTypeError(f"symbolic_dim_bounds takes an integer or a symbolic size, got {dimension!r}")
    return bounds(dimension)


class PolyShape(tuple[Any, ...]):
    """A shape as `symbolic_args_specs` takes it beside texts.

    It has integers, texts of sizes, and at the end maybe an Ellipsis for further "_".

    >>> str(PolyShape("b", 28, ...))
    '(b, 28, ...)'
    """

    __slots__ = ()

    def __new__(cls, *sizes: Any) -> PolyShape:
        """Make a shape.

        Raises `ArgumentError` for sizes that are neither integers nor texts.
        """
        if unknown := [size for size in sizes if not isinstance(size, (int, str)) and size is not ...]:
            raise ArgumentError(f"PolyShape: a size is an integer, a text such as 'b' or '_', or ..., not {unknown[0]!r}")
        return super().__new__(cls, sizes)

    def __str__(self) -> str:
        return f"({', '.join('...' if size is ... else str(size) for size in self)})"


def symbolic_args_specs(args: Any, shapes_specs: Any, constraints: Sequence[str] = (), scope: SymbolicScope | None = None) -> Any:
    """Return descriptions of arguments, of symbolic shapes that texts describe.

    Args:
        args: a pytree of arrays or descriptions.
        shapes_specs: a text for `symbolic_shape`, or None for the argument's own shape; a tree prefix of `args`.
        constraints, scope: as of `symbolic_shape`; one of them.

    >>> symbolic_args_specs((vf.numpy.ones((2, 3)),), "b, ...")
    (ShapeDtypeStruct(shape=(b, 3), dtype=float32),)
    """
    if scope is not None and constraints:
        raise ArgumentError("symbolic_args_specs takes a scope or constraints, not both; make the scope with the constraints")
    scope = scope or SymbolicScope(constraints)
    if isinstance(args, tuple) and isinstance(shapes_specs, list):
        shapes_specs = tuple(shapes_specs)
    leaves, structure = tree.flatten(args)
    specs = tree.broadcast_prefix(shapes_specs, args, is_leaf=lambda x: x is None or isinstance(x, PolyShape))
    structs = []
    for leaf, spec in zip(leaves, specs, strict=True):
        aval = leaf if hasattr(leaf, "shape") and hasattr(leaf, "dtype") else aval_of(leaf)  # its sizes may be None
        shape = symbolic_shape(None if spec is None else str(spec), scope=scope, like=aval.shape)
        if len(shape) != len(aval.shape):
            raise ShapeError(f"symbolic_args_specs: {str(spec)!r} has {len(shape)} sizes, but the argument is {aval}")
        structs.append(ShapeDtypeStruct(shape, aval.dtype))
    return tree.unflatten(structure, structs)


# One manifest for all sizes, from manifests for some.
#
# A function is traced for several sizes of each symbolic axis. Its programs must be the same but for numbers, and each number that
# differs is a polynomial of the sizes: the one through its values at some of the samples, if it has the right values at the others too.
# A file holds the polynomials, and reading it for sizes checks the types of the program that results.

#: Samples beyond those that determine a polynomial.
_CHECKS = 3


def monomials(names: Sequence[str]) -> list[Monomial]:
    """List the products of variables up to a degree, the constant first."""
    products: list[Monomial] = []
    for degree in range(_DEGREE + 1):
        for chosen in itertools.combinations_with_replacement(sorted(names), degree):
            products.append(tuple([(name, chosen.count(name)) for name in sorted(set(chosen))]))
    return products


def sample_count(names: Sequence[str]) -> int:
    """Return the number of assignments of sizes to trace for."""
    return len(monomials(names)) + _CHECKS


class Generalizer:
    """Merges the manifests of several samples of sizes."""

    def __init__(self, samples: Sequence[Sizes]) -> None:
        self._samples = samples
        self._monomials = monomials([*samples[0]])
        self._sizes: dict[tuple[int, ...], Any] = {}

    def merge(self, values: Sequence[Any], where: str = "") -> Any:
        """Return the JSON that has each of `values` at its sample's sizes."""
        first = values[0]
        if isinstance(first, list) and all(isinstance(v, list) and len(v) == len(first) for v in values):
            if len(first) == 4 and isinstance(first[0], str):
                where = first[0]
            return [self.merge(column, where) for column in zip(*values, strict=True)]
        if isinstance(first, dict) and all(isinstance(v, dict) and v.keys() == first.keys() for v in values):
            return self._merge_objects(values, where)
        if all(v == first and type(v) is type(first) for v in values):
            return first
        if all(type(v) is int for v in values):
            return self._size(tuple(values), where)
        raise ExportError(
            f"the program is not the same for all sizes (near {where or 'its inputs'}): for sizes {dict(self._samples[0])} and "
            f"{dict(self._samples[-1])} it has {str(first)[:60]} and {str(values[-1])[:60]}. Export it for each size, or add constraints"
        )

    def _merge_objects(self, values: Sequence[dict[str, Any]], where: str) -> dict[str, Any]:
        if values[0].keys() == {"literal"} and any(v != values[0] for v in values):
            return {"literal": self._literal([v["literal"] for v in values], where)}
        return {key: self.merge([v[key] for v in values], where) for key in values[0]}

    def _size(self, values: tuple[int, ...], where: str) -> Any:
        if values not in self._sizes:
            polynomial = self.polynomial([Fraction(v) for v in values])
            if polynomial is None:
                raise ExportError(
                    f"a size near {where} is {list(values)} for the sizes {[dict(s) for s in self._samples]}, which is no polynomial of "
                    "degree 2; add a constraint such as 'mod(b, 8) == 0', or export the function for each size"
                )
            self._sizes[values] = {"dim": terms_of(polynomial)}
        return self._sizes[values]

    def polynomial(self, values: Sequence[Fraction]) -> Dimension | None:
        """Return the polynomial of these values at the samples, if there is one."""
        rows = [[Fraction(value_of(m, s)) for m in self._monomials] for s in self._samples]
        solved = _solve(rows, list(values))
        if solved is None:
            return None
        polynomial = Dimension(dict(zip(self._monomials, solved, strict=True)))
        return polynomial if all(polynomial.evaluate(s) == v for s, v in zip(self._samples, values, strict=True)) else None

    def _literal(self, literals: Sequence[Any], where: str) -> list[Any]:
        """Return a literal of a size, or of a number divided by one."""
        kind = literals[0][0]
        dtype = as_dtype(kind[0])
        if all(lit[0] == kind for lit in literals):
            numbers = [np.frombuffer(bytes.fromhex(digits), dtype)[0] for _, digits in literals]
            for form in ("times", "over"):
                product = self.factor(numbers, form, dtype)
                if product is not None:
                    factor, size = product
                    return [kind, {form: [factor.hex(), terms_of(size)]}]
        raise ExportError(
            f"a number in {where} depends on the sizes, but is neither a size nor a number divided by one; make it an argument"
        )

    def factor(self, numbers: Sequence[Any], form: str, dtype: np.dtype) -> tuple[float, Dimension] | None:
        """Return a factor f and a size n whose product or quotient the numbers are.

        They are f * n at the samples for the form "times", and f / n for "over". None if there are no such factor and size.
        """
        for monomial in [*self._monomials[1:]]:
            sizes = [value_of(monomial, s) for s in self._samples]
            for factor in _factors(numbers[0], sizes[0], form):
                candidates = [dtype.type(factor * n if form == "times" else factor / n) for n in sizes]
                if all(a == b for a, b in zip(candidates, numbers, strict=True)):
                    return float(factor), Dimension({monomial: Fraction(1)})
        if form == "times" or dtype in FLOATS:
            return self._polynomial_number(numbers, form)
        return None

    def _polynomial_number(self, numbers: Sequence[Any], form: str) -> tuple[float, Dimension] | None:
        """Return a polynomial equal to the numbers, or to their rounded reciprocals."""
        values = [float(x) if form == "times" else 1.0 / float(x) if x else 0.0 for x in numbers]
        rounded = [round(v) for v in values]
        if any(abs(v - r) > 1e-3 * max(1.0, abs(v)) for v, r in zip(values, rounded, strict=True)):
            return None
        polynomial = self.polynomial([Fraction(r) for r in rounded])
        if polynomial is None or (form == "times" and any(r != v for r, v in zip(rounded, values, strict=True))):
            return None
        approximations = [np.asarray(x).dtype.type(1.0 / r) for x, r in zip(numbers, rounded, strict=True)] if form == "over" else numbers
        return (1.0, polynomial) if all(a == b for a, b in zip(approximations, numbers, strict=True)) else None


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
