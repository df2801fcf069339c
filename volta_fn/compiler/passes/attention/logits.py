"""Logits recognised: a product of queries and keys, scaled, and replaced by a small number where a query does not see a key."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from volta_fn.compiler.passes.attention.program import Program, number
from volta_fn.core.jaxpr import Atom, Var

#: What is less than any logit to be expected, so that its weight is nothing beside that of any other.
_NOTHING = -0.7 * float(np.finfo(np.float32).max)


class Logits(NamedTuple):
    """The product of queries and keys, and what is done to it."""

    product: Atom
    scale: float
    #: Where a query sees a key, as the program has it; what logits are elsewhere; and what that says.
    seen: Atom | None
    unseen: float
    causal: bool
    mask: Atom | None


def logits_of(program: Program, x: Var) -> Logits | None:
    """What a variable is, if it may be logits."""
    seen, unseen, causal, mask = None, _NOTHING, False, None
    value: Atom = x
    chosen = program.maker(value, "select_n")
    if chosen is not None:
        seen, other, value = chosen.invars[0], number(chosen.invars[1]), chosen.invars[2] if len(chosen.invars) == 3 else x
        if other is None or seen.aval.dtype != np.bool_ or value.aval.shape != x.aval.shape:
            return None
        causal, mask = _visible(program, seen)
        if causal and other > -1e30 and np.isfinite(other):  # not so small that causal blocks may be left out
            causal, mask = False, seen
        if not np.isfinite(other) and not (causal and mask is None and other < 0):  # a query might see nothing
            return None
        unseen = max(other, _NOTHING)
    value, scale = unscaled(program, value)
    return Logits(value, scale, seen, unseen, causal, mask)


def unscaled(program: Program, x: Atom) -> tuple[Atom, float]:
    """A variable before it was multiplied by a number, and the number."""
    eqn = program.maker(x, "mul", "div")
    if eqn is not None:
        factor = number(eqn.invars[1])
        if factor is not None:
            return eqn.invars[0], factor if eqn.primitive.name == "mul" else 1 / factor
    return x, 1.0


def _visible(program: Program, seen: Atom) -> tuple[bool, Atom | None]:
    """Whether query t sees keys up to t only, and by what mask besides."""
    chosen = program.maker(seen, "select_n")
    if chosen is not None and [number(v) for v in chosen.invars[1:]] == [0, 1]:
        seen = chosen.invars[0]
    if _is_causal(program, seen):
        return True, None
    both = program.maker(seen, "and")
    if both is not None:
        for one, other in (both.invars, both.invars[::-1]):
            if _is_causal(program, one):
                return True, other
    return False, seen


def _is_causal(program: Program, seen: Atom) -> bool:
    """Whether an array says of each element whether its column is at most its row."""
    eqn = program.maker(seen, "le", "lt", "ge", "gt")
    if eqn is None or seen.aval.ndim < 2:
        return False
    name = eqn.primitive.name
    low, high = eqn.invars if name in ("le", "lt") else eqn.invars[::-1]
    key, query = _place(program, low), _place(program, high)
    if key is None or query is None:
        return False
    most = query[1] - key[1] - (1 if name in ("lt", "gt") else 0)
    return (key[0], query[0], most) == (1, 2, 0) and all(n == 1 for n in seen.aval.shape[:-2])


def _place(program: Program, atom: Atom) -> tuple[int, int] | None:
    """Of whole numbers that are places along an axis: which, counted from the last as 1, and how much more they are."""
    eqn = program.maker(atom, "iota", "reshape", "broadcast_in_dim", "add", "sub", "convert_element_type")
    if eqn is None or atom.aval.dtype.kind not in "iu":
        return None
    name, params = eqn.primitive.name, eqn.params
    if name == "iota":
        return atom.aval.ndim - params["dimension"], 0
    inner = eqn.invars[0].aval
    found = _place(program, eqn.invars[0])
    if found is None:
        return None
    axis, more = found
    if name in ("add", "sub"):
        step = number(eqn.invars[1])
        return None if step is None else (axis, more + int(step) if name == "add" else more - int(step))
    if name == "broadcast_in_dim":
        return atom.aval.ndim - params["broadcast_dimensions"][inner.ndim - axis], more
    if name == "reshape":
        long = [a for a, n in enumerate(atom.aval.shape) if n != 1]
        return (atom.aval.ndim - long[0], more) if len(long) == 1 and inner.size == inner.shape[-axis] else None
    return found
