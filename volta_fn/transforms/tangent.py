"""The tangent of an elementwise operation as one linear equation.

Eager differentiation records one such equation per elementwise operation, instead of the several that its derivative rules would
take: it stands for the sum of each operand's tangent times its partial derivative. Its transpose calls the same rules, since they
are diagonal. The equation's operands are the tangents; the values that the rules need are among its parameters. It is a macro:
nothing evaluates it but `_expand`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from volta_fn.core.array import Array
from volta_fn.core.aval import ShapedArray
from volta_fn.core.primitive import Primitive
from volta_fn.primitives.arithmetic import add
from volta_fn.primitives.declare import unbroadcast
from volta_fn.primitives.movement import broadcast_to

#: Of the operands that have tangents: their positions and derivative rules.
Rules = Sequence[tuple[int, Callable[..., Array]]]


def _abstract(*avals: ShapedArray, rules: Rules, out: Array, operands: Sequence[Array], settings: dict[str, Any]) -> ShapedArray:
    return out.aval


def _expand(*tangents: Array, rules: Rules, out: Array, operands: Sequence[Array], settings: dict[str, Any]) -> Array:
    """The tangent, in primitives of the current trace."""
    terms = [rule(t, out, *operands, **settings) for t, (_, rule) in zip(tangents, rules, strict=True)]
    total = terms[0]
    for term in terms[1:]:
        total = add(total, term)
    return broadcast_to(total, out.shape)


def _transpose(ct: Array, *, rules: Rules, out: Array, operands: Sequence[Array], settings: dict[str, Any]) -> list[Array]:
    return [unbroadcast(rule(ct, out, *operands, **settings), operands[i].aval.shape) for i, rule in rules]


tangent_p = Primitive("tangent", _abstract, transpose=_transpose)
tangent_p.expand = _expand
