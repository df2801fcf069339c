"""Common subexpressions: what is computed twice from the same operands is computed once.

Programs are pure but for effects, so equal equations have equal results wherever they stand, random bits included. Equations with
effects are never merged, and neither are barriers, which are there to keep equal values apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from volta_fn import dtypes
from volta_fn.compiler.lowering.param_keys import literal_key, params_key
from volta_fn.compiler.passes.effects import is_movable, is_pinned
from volta_fn.compiler.passes.rewriting import Rewriter, Rule, Rules, rewrite
from volta_fn.core.jaxpr import Atom, ClosedJaxpr, Equation, Var
from volta_fn.core.primitive import Primitive

#: Operations whose operands may change places, to the last bit. (Of max and min they may not: of zeros the first may win.)
_COMMUTATIVE = frozenset(["add", "mul", "and", "or", "xor", "eq", "ne"])


def merge_equal(closed: ClosedJaxpr) -> ClosedJaxpr:
    """The program with each value computed once."""
    return rewrite(closed, _MERGING)


def merging_rules(primitive: Primitive) -> Sequence[Rule]:
    """The rule that merges; it must be the last to look at an equation."""
    return () if is_pinned(primitive) else (_merged,)


def _merged(eqn: Equation, program: Rewriter) -> Atom | Sequence[Atom] | None:
    """The results of an equal equation before this one."""
    if eqn.primitive.holds_programs and not is_movable(eqn):
        return None
    first = program.seen.setdefault(_key(eqn), eqn.outvars)
    if first is eqn.outvars:
        return None
    return first if eqn.primitive.multiple_results else first[0]


_MERGING = Rules(merging_rules)


def _key(eqn: Equation) -> Any:
    operands = [v if type(v) is Var else literal_key(v) for v in eqn.invars]
    if len(operands) == 2 and eqn.primitive.name in _COMMUTATIVE and eqn.invars[0].aval.dtype not in dtypes.COMPLEX:
        operands.sort(key=hash)
    if not eqn.params:
        return eqn.primitive, *operands
    return eqn.primitive, *operands, params_key(eqn.params)
