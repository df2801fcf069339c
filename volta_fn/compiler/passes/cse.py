"""Common subexpressions: what is computed twice from the same operands is computed once.

Programs are pure but for effects, so equal equations have equal results wherever they stand, random bits included. Equations with
effects are never merged, and neither are barriers, which are there to keep equal values apart.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from volta_fn import dtypes
from volta_fn.compiler.passes.effects import is_movable
from volta_fn.core.jaxpr import Atom, ClosedJaxpr, Equation, Jaxpr, Literal, Var

#: Operations whose operands may change places, to the last bit. (Of max and min they may not: of zeros the first may win.)
_COMMUTATIVE = frozenset(["add", "mul", "and", "or", "xor", "eq", "ne"])


def merge_equal(closed: ClosedJaxpr) -> ClosedJaxpr:
    """The program with each value computed once."""
    seen: dict[Any, list[Var]] = {}
    renamed: dict[Atom, Var] = {}
    eqns: list[Equation] = []
    for eqn in closed.eqns:
        if renamed and any(v in renamed for v in eqn.invars):
            eqn = eqn.replace(invars=[renamed.get(v, v) for v in eqn.invars])
        if is_movable(eqn):
            first = seen.setdefault(_key(eqn), eqn.outvars)
            if first is not eqn.outvars:
                renamed.update(zip(eqn.outvars, first, strict=True))
                continue
        eqns.append(eqn)
    if not renamed:
        return closed
    outvars = [renamed.get(v, v) for v in closed.jaxpr.outvars]
    return ClosedJaxpr(Jaxpr(closed.jaxpr.constvars, closed.jaxpr.invars, outvars, eqns), closed.consts)


def _key(eqn: Equation) -> Any:
    operands = tuple([v if type(v) is Var else literal_key(v) for v in eqn.invars])
    if len(operands) == 2 and eqn.primitive.name in _COMMUTATIVE and eqn.invars[0].aval.dtype not in dtypes.COMPLEX:
        operands = operands if hash(operands[0]) <= hash(operands[1]) else operands[::-1]
    if not eqn.params:
        return eqn.primitive, operands
    return eqn.primitive, operands, tuple([(k, _exact(v)) for k, v in eqn.params.items()])


def literal_key(atom: Atom) -> Any:
    """What two literals of the same dtype and the same bits have in common; a variable is its own key."""
    return (atom.aval.dtype, atom.val.buffer().tobytes()) if type(atom) is Literal else atom


def _exact(value: Any) -> Any:
    """A parameter as a key: equality takes 1 for True and 0.0 for -0.0."""
    if isinstance(value, tuple):
        return (type(value), *map(_exact, value))
    if isinstance(value, (float, complex, np.generic)):
        return type(value), repr(value)
    return type(value), value
