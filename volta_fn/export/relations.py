"""Constraints between sizes: comparisons such as "a >= b" or "a*b == c + d"."""

from __future__ import annotations

import ast
import itertools
import operator
import random
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from volta_fn.errors import ArgumentError

Sizes = Mapping[str, int]

_COMPARISONS: dict[str, Callable[[int, int], bool]] = {">=": operator.ge, "<=": operator.le, "==": operator.eq}
_OPERATIONS: dict[type, Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Pow: operator.pow,
}
_FUNCTIONS: dict[str, Callable[[int, int], int]] = {"mod": operator.mod, "floordiv": operator.floordiv, "max": max, "min": min}
#: The most characters of a constraint, and the largest exponent in it.
_LONGEST, _LARGEST_EXPONENT = 200, 8
#: The most assignments of sizes that are tried.
_TRIES = 20_000


class Relation:
    """A comparison of two expressions of sizes.

    Expressions consist of numbers, names, ``+ - * ^``, and ``mod``, ``floordiv``, ``max`` and ``min`` of two expressions; exponents and
    divisors are numbers.

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
        self._left, self._right = self._parsed(sides[0]), self._parsed(sides[2])
        #: The names in it.
        self.names = frozenset(
            [node.id for side in (self._left, self._right) for node in ast.walk(side) if isinstance(node, ast.Name)]
        ) - frozenset(_FUNCTIONS)

    def holds(self, sizes: Sizes) -> bool:
        """Return True if the comparison is true of the sizes."""
        return _COMPARISONS[self.comparison](_value(self._left, sizes), _value(self._right, sizes))

    def solved_for(self, sizes: Sizes) -> Sizes:
        """Return sizes for which an equation holds, with one of them changed."""
        for name in sorted(self.names):
            at = [self._difference({**sizes, name: n}) for n in (0, 1, 2)]
            slope = at[1] - at[0]
            if slope and at[2] - at[1] == slope and at[0] % slope == 0 and -at[0] // slope > 0:
                return {**sizes, name: -at[0] // slope}
        return sizes

    def _difference(self, sizes: Sizes) -> int:
        return _value(self._left, sizes) - _value(self._right, sizes)

    def _parsed(self, text: str) -> ast.expr:
        try:
            body = ast.parse(text.strip().replace("^", "**"), mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            self._fail()
        for node in ast.walk(body):
            self._check(node)
        return body

    def _check(self, node: ast.AST) -> None:
        if isinstance(node, ast.BinOp):
            known = type(node.op) in _OPERATIONS and (type(node.op) is not ast.Pow or _is_number(node.right, 0, _LARGEST_EXPONENT))
        elif isinstance(node, ast.Call):
            known = isinstance(node.func, ast.Name) and node.func.id in _FUNCTIONS and len(node.args) == 2 and not node.keywords
            known = known and (node.func.id in ("max", "min") or _is_number(node.args[1], 1, 2**63))  # type: ignore[attr-defined]  # a name
        elif isinstance(node, ast.Constant):
            known = type(node.value) is int
        else:
            known = isinstance(node, (ast.Name, ast.UnaryOp, ast.USub, ast.Load, ast.operator))
        if not known:
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
    return _FUNCTIONS[node.func.id](*[_value(a, sizes) for a in node.args])


def satisfying(columns: Mapping[str, Sequence[int]], relations: Sequence[Relation], count: int) -> list[dict[str, int]]:
    """Return different assignments of sizes for which all relations hold.

    Raises `ArgumentError` if too few of those that are tried do.
    """
    draw = random.Random(0)
    found: dict[tuple[int, ...], dict[str, int]] = {}
    for _ in itertools.repeat(None, _TRIES):
        sizes: Sizes = {name: draw.choice(column) for name, column in columns.items()}
        for relation in relations:
            if relation.comparison == "==" and relation.names <= sizes.keys():
                sizes = relation.solved_for(sizes)
        if all(r.holds(sizes) for r in relations if r.names <= sizes.keys()):
            found.setdefault(tuple(sizes.values()), dict(sizes))
        if len(found) == count:
            return list(found.values())
    raise ArgumentError(f"no {count} sizes that were tried satisfy {[r.text for r in relations]}, only {len(found)}")
