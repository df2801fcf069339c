"""Identities that stop derivatives or the compiler's rearrangements, and tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np

from volta_fn import tree
from volta_fn.core.arrays.array import Array, as_value
from volta_fn.core.primitive import Linear, Primitive, Zero
from volta_fn.core.trace import bind
from volta_fn.primitives.data_movement.movement import instantiate, zero_jvp

# stop_gradient


stop_gradient_p: Primitive = Primitive(
    "stop_gradient",
    lambda operand: operand,
    evaluate=lambda operand: operand,
    jvp=zero_jvp,
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
    nonzero = [t for t in tangents if type(t) is not Zero]
    out_tangents = iter(bind(optimization_barrier_p, *nonzero) if nonzero else ())
    return outs, [t if type(t) is Zero else next(out_tangents) for t in tangents]


optimization_barrier_p: Primitive = Primitive(
    "optimization_barrier",
    lambda *operands: operands,
    evaluate=lambda *operands: operands,
    jvp=_barrier_jvp,
    transpose=lambda cotangents, *args: [
        instantiate(ct) if type(arg) is Linear else None for ct, arg in zip(cotangents, args, strict=True)
    ],
    batch=lambda axis, args, dims: (bind(optimization_barrier_p, *args), dims),
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
