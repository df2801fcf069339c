"""Rules of contractions: they take the axes of their operands in any order, so that a transpose before one is needless.

The order of the result's axes must stay, and that of the sums, so that they round as before.
"""

from __future__ import annotations

from collections.abc import Sequence

from volta_fn.compiler.passes.rewriting import Rewriter, Table, rule
from volta_fn.core.jaxpr import Atom, Equation

RULES: Table = {}


@rule(RULES, "dot_general")
def of_transposes(eqn: Equation, program: Rewriter) -> Atom | None:
    """A product of transposed arrays is one of the arrays, over other axes."""
    contracted, stacked = map(list, eqn.params["dimension_numbers"])
    invars = list(eqn.invars)
    for side, operand in enumerate(eqn.invars):
        made = program.maker(operand, "transpose")
        if made is None:
            continue
        order: Sequence[int] = made.params["permutation"]
        taken = {*contracted[side], *stacked[side]}
        free = [order[d] for d in range(len(order)) if d not in taken]
        summed = tuple([order[d] for d in contracted[side]])
        if free == sorted(free) and _ranks(summed) == _ranks(contracted[side]):
            contracted[side], stacked[side] = summed, tuple([order[d] for d in stacked[side]])
            invars[side] = made.invars[0]
    if invars == eqn.invars:
        return None
    numbers = (tuple(contracted), tuple(stacked))
    return program.emit(eqn, "dot_general", *invars, **{**eqn.params, "dimension_numbers": numbers})


def _ranks(axes: Sequence[int]) -> list[int]:
    return sorted(range(len(axes)), key=lambda i: axes[i])
