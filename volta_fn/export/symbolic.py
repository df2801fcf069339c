"""Symbolic shapes: their notation, and the sizes for which functions are traced."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from volta_fn import tree
from volta_fn.core.array import aval_of
from volta_fn.core.aval import ShapeDtypeStruct
from volta_fn.core.dimension import Dimension
from volta_fn.core.dimension import is_symbolic_dim as is_symbolic_dim
from volta_fn.errors import ArgumentError, ShapeError
from volta_fn.export.relations import Relation, satisfying

_TOKEN = re.compile(r"\s*(?:(\d+)|([A-Za-z_]\w*)|([*+\-^()]))")
_BOUND = re.compile(r"^\s*(\w+)\s*(>=|<=|==)\s*(\d+)\s*$")
_MULTIPLE = re.compile(r"^\s*mod\(\s*(\w+)\s*,\s*(\d+)\s*\)\s*==\s*0\s*$")
#: Sizes for tracing, before constraints: unlike those that programs usually have, of all remainders, one of them large.
_SIZES = (7, 10, 12, 17, 19, 21, 26, 31, 35, 40, 44, 53, 57, 62, 69, 72, 75, 83, 88, 97, 101, 106, 111, 118)
_LARGE = 5003


class SymbolicScope:
    """Constraints on the variables of symbolic shapes.

    Each is a text: "b >= 4", "b <= 512", "mod(b, 8) == 0", or another comparison (`Relation`). Raises `ArgumentError` for other texts.

    >>> SymbolicScope(["b >= 4", "mod(b, 8) == 0"]).allows("b", 12)
    False
    """

    def __init__(self, constraints: Sequence[str] = ()) -> None:
        self.constraints = tuple(constraints)
        self._bounds: list[tuple[str, str, int]] = []
        #: Those that are no bound of one variable.
        self.relations: list[Relation] = []
        for text in self.constraints:
            bound, multiple = _BOUND.match(text), _MULTIPLE.match(text)
            found = bound.groups() if bound else (multiple[1], "mod", multiple[2]) if multiple else None
            if found is None or (found[1] == "mod" and int(found[2]) == 0):
                self.relations.append(Relation(text))
            else:
                self._bounds.append((found[0], found[1], int(found[2])))

    def allows(self, name: str, size: int) -> bool:
        """Return True if a variable may have a size."""
        checks = {">=": lambda n: size >= n, "<=": lambda n: size <= n, "==": lambda n: size == n, "mod": lambda n: size % n == 0}
        return size >= 1 and all(checks[kind](n) for variable, kind, n in self._bounds if variable == name)

    def assignments(self, names: Sequence[str], count: int) -> list[dict[str, int]]:
        """Return sizes of all variables that satisfy the constraints between them."""
        columns = {name: self.samples(name, count + position) for position, name in enumerate(names)}
        if self.relations:
            return satisfying(columns, self.relations, count)
        return [{name: column[(i + k * (i // 2)) % len(column)] for k, (name, column) in enumerate(columns.items())} for i in range(count)]

    def samples(self, name: str, count: int) -> list[int]:
        """Return sizes that a variable may have: different ones, a large one last."""
        step = 1
        for variable, kind, n in self._bounds:
            step = max(step, n) if variable == name and kind == "mod" else step
        low = max([n for variable, kind, n in self._bounds if variable == name and kind != "<=" and kind != "mod"], default=0)
        tried = [p * step for p in _SIZES] + [step * (low // step + p) for p in _SIZES]
        small = [*dict.fromkeys(size for size in [*tried, *range(1, 200)] if self.allows(name, size))][:count]
        if not small:
            raise ArgumentError(f"no size that was tried satisfies the constraints on {name}: {self.constraints}")
        large = step * (low // step + _LARGE)
        return [*small[: count - 1], large] if self.allows(name, large) and count > 1 else small


def symbolic_shape(
    shape_spec: str, *, constraints: Sequence[str] = (), scope: SymbolicScope | None = None, like: Sequence[int | None] | None = None
) -> tuple[Any, ...]:
    """Return the shape that a text describes: numbers, and polynomials of variables.

    Args:
        shape_spec: sizes with commas between them, "b, 28, 2*n + 1"; "_" takes the size of `like`, and "..." all further ones.
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
    chunks = [chunk.strip() for chunk in shape_spec.strip().strip("()").split(",") if chunk.strip()]
    if "..." in chunks:
        if like is None or chunks[-1] != "..." or len(chunks) - 1 > len(like):
            raise ArgumentError(f"symbolic_shape: '...' in {shape_spec!r} must come last, and needs like= of as many sizes")
        chunks = [*chunks[:-1], *["_"] * (len(like) - len(chunks) + 1)]
    return tuple([_size(chunk, i, like, shape_spec, scope) for i, chunk in enumerate(chunks)])


def _size(chunk: str, position: int, like: Sequence[int | None] | None, text: str, scope: SymbolicScope) -> Any:
    if chunk == "_":
        size = like[position] if like is not None and position < len(like) else None
        if size is None:
            raise ArgumentError(f"symbolic_shape: '_' in {text!r} needs the size from like=")
        return size
    return _Parser(chunk, text, scope).parse()


class _Parser:
    """Parses sums of products of numbers and variables."""

    def __init__(self, chunk: str, text: str, scope: SymbolicScope) -> None:
        self._scope = scope
        self._tokens = [match.group().strip() for match in _TOKEN.finditer(chunk)]
        self._text = text
        if "".join(self._tokens) != chunk.replace(" ", ""):
            self._fail()

    def parse(self) -> Any:
        """Return a number or a polynomial."""
        found = self._sum()
        if self._tokens:
            self._fail()
        if isinstance(found, Dimension) and not found.variables:
            return int(found.evaluate({}))
        return found

    def _sum(self) -> Any:
        total = -self._product() if self._take("-") else self._product()
        while self._tokens and self._tokens[0] in "+-":
            sign = 1 if self._tokens.pop(0) == "+" else -1
            total = total + self._product() * sign
        return total

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
            return Dimension({(): Fraction(int(token))})
        if token.isidentifier():
            return Dimension.variable(token, self._scope)
        if token == "(":
            inner = self._sum()
            if self._take(")"):
                return inner
        return self._fail()

    def _take(self, token: str) -> bool:
        found = bool(self._tokens) and self._tokens[0] == token
        if found:
            self._tokens.pop(0)
        return found

    def _fail(self) -> Any:
        raise ArgumentError(
            f"symbolic_shape: {self._text!r} is no shape; write sizes like 'b', '2*b + 1' or '28', with commas between them"
        )


def symbolic_args_specs(args: Any, shapes_specs: Any, constraints: Sequence[str] = (), scope: SymbolicScope | None = None) -> Any:
    """Return descriptions of arguments, of symbolic shapes that texts describe.

    Args:
        args: a pytree of arrays or descriptions.
        shapes_specs: a text for `symbolic_shape`, or None for the argument's own shape; a tree prefix of `args`.
        constraints, scope: as of `symbolic_shape`.

    >>> import volta_fn as vf
    >>> symbolic_args_specs((vf.numpy.ones((2, 3)),), "b, ...")
    (ShapeDtypeStruct(shape=(b, 3), dtype=float32),)
    """
    scope = scope or SymbolicScope(constraints)
    leaves, structure = tree.flatten(args)
    specs = tree.broadcast_prefix(shapes_specs, args, is_leaf=lambda x: x is None)
    made = []
    for leaf, spec in zip(leaves, specs, strict=True):
        aval = leaf if isinstance(leaf, ShapeDtypeStruct) else aval_of(leaf)
        shape = aval.shape if spec is None else symbolic_shape(spec, scope=scope, like=aval.shape)
        if len(shape) != len(aval.shape):
            raise ShapeError(f"symbolic_args_specs: {spec!r} has {len(shape)} sizes, but the argument is {aval}")
        made.append(ShapeDtypeStruct(shape, aval.dtype))
    return tree.unflatten(structure, made)
