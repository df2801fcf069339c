"""Products that contract no axis as elementwise ones.

The sum of one number begins with 0, to which -0 adds nothing: products that are computed as sums would lose the sign.
"""

from __future__ import annotations

import numpy as np

from volta_fn.compiler.passes.rewriting import Rewriter, Rules, Table, listed, rewrite, rule
from volta_fn.core.jaxpr import Atom, ClosedJaxpr, Equation

_RULES: Table = {}


def expand_outer_products(closed: ClosedJaxpr) -> ClosedJaxpr:
    """Expand products without contracted axes to broadcasts and multiplications."""
    return rewrite(closed, _LISTED)


@rule(_RULES, "dot_general")
def _outer_product(eqn: Equation, program: Rewriter) -> Atom | None:
    (contracted, _), stacked = eqn.params["dimension_numbers"]
    if contracted:
        return None
    result = eqn.outvars[0].aval
    factors, first = [], len(stacked[0])
    for operand, batch in zip(eqn.invars, stacked, strict=True):
        free = [d for d in range(operand.aval.ndim) if d not in batch]
        factor, order = operand, (*batch, *free)
        if order != tuple(range(len(order))):
            factor = program.emit(eqn, "transpose", factor, permutation=order)
        if factor.aval.dtype != result.dtype:
            factor = program.emit(eqn, "convert_element_type", factor, new_dtype=result.dtype, weak_type=False)
        if factor.aval.shape != result.shape:
            dims = (*range(len(batch)), *range(first, first + len(free)))
            factor = program.emit(eqn, "broadcast_in_dim", factor, shape=result.shape, broadcast_dimensions=dims)
        factors.append(factor)
        first += len(free)
    return program.emit(eqn, "and" if result.dtype == np.bool_ else "mul", *factors)


_LISTED = Rules(listed(_RULES))
