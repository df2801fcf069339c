"""Broadcasts that elementwise primitives do by themselves.

These broadcast their operands as NumPy does, so a `broadcast_in_dim` before them is needless where the other operands give the shape:
the operand itself does, with unit axes (of size 1) at the places where it is repeated.
"""

from __future__ import annotations

from collections.abc import Sequence

from volta_fn.compiler.passes.movement_rules import stretched
from volta_fn.compiler.passes.rewriting import Rewriter, Rule
from volta_fn.core.aval import Shape
from volta_fn.core.jaxpr import Atom, Equation
from volta_fn.core.primitive import Primitive
from volta_fn.errors import BroadcastError
from volta_fn.primitives.declare import broadcast_shapes
from volta_fn.primitives.selection import select_n_p


def broadcasting_rules(primitive: Primitive) -> Sequence[Rule]:
    """The rule for elementwise primitives of several operands."""
    return (_native,) if primitive.arity > 1 or primitive is select_n_p else ()


def _native(eqn: Equation, program: Rewriter) -> Atom | None:
    """Its operands as they were before they were broadcast, if they give the same shape."""
    makers = [program.maker(v, "broadcast_in_dim") for v in eqn.invars]
    if not any(makers):
        return None
    invars = list(eqn.invars)
    for i, made in enumerate(makers):
        if made is None:
            continue
        compact = _compact(made)
        others = [v.aval.shape for j, v in enumerate(invars) if j != i]
        if _common(compact, *others) == eqn.outvars[0].aval.shape:
            source = made.invars[0]
            invars[i] = source if source.aval.shape == compact else program.emit(made, "reshape", source, new_sizes=compact)
    if all(new is old for new, old in zip(invars, eqn.invars, strict=True)):
        return None
    return program.emit(eqn, eqn.primitive.name, *invars, **eqn.params)


def _compact(made: Equation) -> Shape:
    """The shape of a broadcast's operand that broadcasts to the same by itself, without needless leading unit axes."""
    operand = made.invars[0].aval.shape
    sizes = stretched(operand, made.params["shape"], made.params["broadcast_dimensions"])
    first = next((i for i, n in enumerate(sizes) if n != 1), len(sizes))
    return operand if operand == sizes[len(sizes) - len(operand) :] else sizes[first:]


def _common(*shapes: Shape) -> Shape | None:
    try:
        return broadcast_shapes(*shapes)
    except BroadcastError:
        return None
