"""Identities that stop derivatives or the compiler's rearrangements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np

from volta_fn import tree
from volta_fn.core.array import Array, as_value
from volta_fn.core.aval import ShapedArray
from volta_fn.core.primitive import AxisData, Linear, Primitive, Zero
from volta_fn.core.trace import bind
from volta_fn.primitives.data_movement.joining import instantiate

# stop_gradient


def _stop_jvp(primals: Sequence[Array], tangents: Sequence[Any]) -> tuple[Array, Any]:
    out = bind(stop_gradient_p, *primals)
    return out, Zero(out.aval.at_least_vspace())


stop_gradient_p: Primitive = Primitive(
    "stop_gradient",
    lambda operand: operand,
    evaluate=lambda operand: operand,
    jvp=_stop_jvp,
    batch=lambda axis, args, dims: (bind(stop_gradient_p, *args), dims[0]),
    views=True,
)


T = TypeVar("T", bound=Any)


def stop_gradient(x: T) -> T:
    """Return `x`, a pytree of arrays, as constants for differentiation.

    >>> import volta_fn as vf
    >>> vf.grad(lambda x: x * vf.lax.stop_gradient(x))(3.0)
    Array(3., dtype=float32, weak_type=True)
    """
    return tree.map(lambda leaf: bind(stop_gradient_p, as_value(leaf)), x)


# optimization_barrier


def _barrier_jvp(primals: Sequence[Array], tangents: Sequence[Any]) -> tuple[Sequence[Array], Sequence[Any]]:
    outs = bind(optimization_barrier_p, *primals)
    live = [t for t in tangents if type(t) is not Zero]
    out_tangents = iter(bind(optimization_barrier_p, *live) if live else ())
    return outs, [t if type(t) is Zero else next(out_tangents) for t in tangents]


def _barrier_transpose(cotangents: Sequence[Any], *args: Any) -> list[Any]:
    return [instantiate(ct) if type(arg) is Linear else None for ct, arg in zip(cotangents, args, strict=True)]


def _barrier_batch(axis: AxisData, args: Sequence[Array], dims: Sequence[int | None]) -> tuple[Sequence[Array], Sequence[int | None]]:
    return bind(optimization_barrier_p, *args), dims


def _barrier_abstract(*operands: ShapedArray) -> tuple[ShapedArray, ...]:
    return operands


optimization_barrier_p = Primitive(
    "optimization_barrier",
    _barrier_abstract,
    evaluate=lambda *operands: operands,
    jvp=_barrier_jvp,
    transpose=_barrier_transpose,
    batch=_barrier_batch,
    multiple_results=True,
    views=True,
)


def optimization_barrier(operand: Any) -> Any:
    """Return `operand`, a pytree of arrays, all of which is computed before any use.

    The compiler does not merge equations across the barrier.
    """
    leaves, structure = tree.flatten(operand)
    if not leaves:
        return operand
    return tree.unflatten(structure, bind(optimization_barrier_p, *[as_value(x) for x in leaves]))


# tokens


def create_token(_: Any = None) -> Array:
    """Return a token, by which programs for XLA order effects.

    Effects here keep the order of the program, so a token is an empty array.

    >>> vf.lax.create_token().shape
    (0,)
    """
    return as_value(np.zeros((0,), np.bool_))


def after_all(*operands: Any) -> Array:
    """Return a token that waits for the given ones.

    >>> vf.lax.after_all(vf.lax.create_token(), vf.lax.create_token()).shape
    (0,)
    """
    return optimization_barrier((create_token(), operands))[0]
