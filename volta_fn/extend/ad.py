"""Derivative rules of primitives, by the names of `jax.interpreters.ad`.

`primitive_jvps[p] = rule(primals, tangents, **params)` and `primitive_transposes[p] = rule(cotangent, *args, **params)`, where tangents
and cotangents may be `Zero`, and an operand that needs a cotangent is an `UndefinedPrimal`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from volta_fn import dtypes
from volta_fn.core.array import Array, as_value
from volta_fn.core.aval import ShapedArray
from volta_fn.core.primitive import PRIMITIVES, Linear, Primitive, Zero
from volta_fn.core.trace import bind
from volta_fn.extend.primitive import Rule, Rules
from volta_fn.primitives.data_movement.joining import instantiate
from volta_fn.primitives.elementwise.arithmetic import add
from volta_fn.transforms.jvp import JVPTrace as JVPTrace
from volta_fn.transforms.jvp import JVPTracer as JVPTracer

UndefinedPrimal = Linear


def is_undefined_primal(x: Any) -> bool:
    """Return True for an operand without value, which needs a cotangent."""
    return type(x) is Linear


def _given(value: Any) -> Any:
    """Return a rule's tangent or cotangent as an array, or None if it is zero."""
    return None if value is None or value is Zero or type(value) is Zero else as_value(value)


def _adapted_jvp(rule: Rule) -> Rule:
    def jvp(primals: Sequence[Array], tangents: Sequence[Any], **params: Any) -> Any:
        outs, out_tangents = rule(tuple(primals), tuple(tangents), **params)
        if not isinstance(outs, (tuple, list)):
            return as_value(outs), _tangent(out_tangents, outs)
        outs = [as_value(out) for out in outs]
        return outs, [_tangent(t, out) for t, out in zip(out_tangents, outs, strict=True)]

    return jvp


def _tangent(tangent: Any, out: Any) -> Any:
    found = _given(tangent)
    if found is None or found.dtype == dtypes.float0:
        return Zero(as_value(out).aval.at_least_vspace())
    return found


def _adapted_transpose(rule: Rule) -> Rule:
    def transpose(cotangents: Any, *args: Any, **params: Any) -> Any:
        found = rule(cotangents, *args, **params)
        return [None] * len(args) if found is Zero or type(found) is Zero else [_given(ct) for ct in found]

    return transpose


primitive_jvps = Rules("jvp", _adapted_jvp)
primitive_transposes = Rules("transpose", _adapted_transpose)


def instantiate_zeros(tangent: Any) -> Any:
    """Return a tangent as an array: zeros for a `Zero`."""
    return instantiate(tangent) if type(tangent) is Zero else tangent


def zeros_like_aval(aval: ShapedArray) -> Array:
    """Return an array of zeros of a type."""
    return as_value(np.zeros(aval.shape, aval.dtype))


def add_tangents(x: Any, y: Any) -> Any:
    """Return the sum of two tangents, either of which may be a `Zero`."""
    if type(x) is Zero:
        return y
    return x if type(y) is Zero else add(x, y)


add_jaxvals = add
add_jaxvals_p = PRIMITIVES["add"]


def deflinear(primitive: Primitive, transpose_rule: Callable[..., Any]) -> None:
    """Define a primitive as linear, by a rule from the cotangent to the operands'."""
    deflinear2(primitive, lambda cotangent, *_, **params: transpose_rule(cotangent, **params))


def deflinear2(primitive: Primitive, transpose_rule: Callable[..., Any]) -> None:
    """Define a primitive as linear, by a rule that sees the operands, too."""
    primitive_jvps[primitive] = lambda primals, tangents, **params: _linear_jvp(primitive, primals, tangents, params)
    primitive_transposes[primitive] = transpose_rule


def _linear_jvp(primitive: Primitive, primals: Sequence[Any], tangents: Sequence[Any], params: dict[str, Any]) -> Any:
    outs = bind(primitive, *primals, **params)
    if all(type(t) is Zero for t in tangents):
        several = primitive.multiple_results
        zeros = [Zero.from_primal_value(out) for out in (outs if several else [outs])]
        return outs, zeros if several else zeros[0]
    return outs, bind(primitive, *map(instantiate_zeros, tangents), **params)


def defjvp(primitive: Primitive, *rules: Callable[..., Any] | None) -> None:
    """Define the derivative as a sum of `rule(tangent, *primals, **params)`."""
    defjvp2(primitive, *[rule and _without_out(rule) for rule in rules])


def _without_out(rule: Rule) -> Rule:
    return lambda t, out, *primals, **params: rule(t, *primals, **params)


def defjvp2(primitive: Primitive, *rules: Callable[..., Any] | None) -> None:
    """Define the derivative as a sum of `rule(tangent, out, *primals, **params)`."""

    def jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> Any:
        out = bind(primitive, *primals, **params)
        total: Any = Zero.from_primal_value(out)
        for rule, tangent in zip(rules, tangents, strict=True):
            if rule is not None and type(tangent) is not Zero:
                total = add_tangents(total, rule(tangent, out, *primals, **params))
        return out, total

    primitive_jvps[primitive] = jvp


def defbilinear(primitive: Primitive, lhs_rule: Callable[..., Any], rhs_rule: Callable[..., Any]) -> None:
    """Define a primitive of two operands as linear in each.

    `lhs_rule(cotangent, x, y, **params)` returns the cotangent of x, where x is undefined; `rhs_rule` that of y.
    """
    defjvp(
        primitive,
        lambda t, x, y, **params: bind(primitive, t, y, **params),
        lambda t, x, y, **params: bind(primitive, x, t, **params),
    )

    def transpose(cotangent: Any, x: Any, y: Any, **params: Any) -> list[Any]:
        if is_undefined_primal(x):
            return [lhs_rule(cotangent, x, y, **params), None]
        return [None, rhs_rule(cotangent, x, y, **params)]

    primitive_transposes[primitive] = transpose


def get_primitive_transpose(primitive: Primitive) -> Rule:
    """Return a primitive's transposition rule."""
    return primitive_transposes[primitive]


def primal_tangent_dtype(primal: Any, tangent: Any, name: str = "") -> Any:
    """Raise `NotImplementedError`: dtypes with other tangents are not supported."""
    raise NotImplementedError("primal_tangent_dtype: tangents have the dtypes of primals here")
