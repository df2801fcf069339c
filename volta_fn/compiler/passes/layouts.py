"""Layouts of convolutions' operands.

A target may read the operands of a convolution in place only if certain dimensions are contiguous. Where the program, and not each routine,
transposes them before, equal transposes are one, as those of a convolution and of its gradient by the weights, and elementwise kernels
write transposed results.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from volta_fn.compiler.passes.rewriting import Rewriter, Rules, Table, rewrite, rules_of_table
from volta_fn.core.aval import ShapedArray
from volta_fn.core.jaxpr import Atom, ClosedJaxpr, Equation
from volta_fn.primitives.convolution import ConvDimensionNumbers

#: The orders of dimensions in which a target reads the operands of a convolution, by their types and the parameters; none for others.
OperandOrders = Callable[[Sequence[ShapedArray], dict[str, Any]], Sequence[tuple[int, ...]]]


def transpose_convolution_operands(closed: ClosedJaxpr, orders: OperandOrders) -> ClosedJaxpr:
    """Transpose operands of convolutions to the orders in which a target reads them."""
    table: Table = {"conv_general_dilated": [partial(_transposed, orders=orders)]}
    return rewrite(closed, Rules(rules_of_table(table)))


def _transposed(eqn: Equation, rewriter: Rewriter, orders: OperandOrders) -> Atom | None:
    lhs_spec, rhs_spec, out_spec = eqn.params["dimension_numbers"]
    operands, specs = [], []
    chosen = orders([atom.aval for atom in eqn.invars], eqn.params)
    for atom, spec, order in zip(eqn.invars, (lhs_spec, rhs_spec), chosen, strict=False):
        in_place = order == tuple(range(len(order)))
        operands.append(atom if in_place else rewriter.emit(eqn, "transpose", atom, permutation=order))
        specs.append(tuple([order.index(dim) for dim in spec]))
    if not operands or operands == eqn.invars:
        return None
    numbers = ConvDimensionNumbers(specs[0], specs[1], out_spec)
    return rewriter.emit(eqn, "conv_general_dilated", *operands, **(eqn.params | {"dimension_numbers": numbers}))
