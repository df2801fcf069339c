"""The tangent of an elementwise primitive as one linear equation.

Eager differentiation records one such equation per elementwise operation, instead of the several that its derivative rule would
take: ``tangent[of](*tangents, out, *operands)`` stands for the sum of each tangent times its partial derivative. Its transpose
calls the same rules, since they are diagonal. It is a macro: nothing evaluates it but `expand`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from volta_fn import dtypes
from volta_fn.core.array import Array
from volta_fn.core.aval import ShapedArray
from volta_fn.core.primitive import Primitive
from volta_fn.primitives.arithmetic import add
from volta_fn.primitives.declare import unbroadcast
from volta_fn.primitives.movement import broadcast_to

Active = tuple[int, ...]


def has_tangent_form(primitive: Primitive, operands: Sequence[Array]) -> bool:
    """Whether the operation can be recorded this way: its rules are their own transposes, which complex parts' are not."""
    own_transpose = primitive.transpose is not None and not primitive.linear
    return bool(primitive.derivatives) and not own_transpose and all(x.dtype in dtypes.FLOATS for x in operands)


def _abstract(*avals: ShapedArray, of: Primitive, active: Active, settings: tuple[tuple[str, Any], ...]) -> ShapedArray:
    return avals[len(active)].strip_weak_type()


def expand(*args: Array, of: Primitive, active: Active, settings: tuple[tuple[str, Any], ...]) -> Array:
    """The tangent, in primitives of the current trace."""
    tangents, (out, *operands) = args[: len(active)], args[len(active) :]
    total: Array | None = None
    for position, tangent in zip(active, tangents, strict=True):
        rule = of.derivatives[position]
        assert rule is not None, "only operands with a derivative are active"
        term = rule(tangent, out, *operands, **dict(settings))
        total = term if total is None else add(total, term)
    assert total is not None, "an equation is recorded only for active operands"
    return broadcast_to(total, out.shape)


def _transpose(ct: Array, *args: Any, of: Primitive, active: Active, settings: tuple[tuple[str, Any], ...]) -> list[Any]:
    count = len(active)
    out, *operands = args[count:]
    params = dict(settings)
    cotangents: list[Any] = [None] * len(args)
    for i, position in enumerate(active):
        rule = of.derivatives[position]
        assert rule is not None, "only operands with a derivative are active"
        cotangents[i] = unbroadcast(rule(ct, out, *operands, **params), operands[position].shape)
    return cotangents


tangent_p = Primitive("tangent", _abstract, transpose=_transpose)
tangent_p.expand = expand
