"""Gathers and scatters of one element per row as comparisons.

Class labels choose one score of each example, and the gradient writes one number into a row of zeros. Kernels over the rows do both on the
way, where a gather and a scatter would each need the complete array in memory.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from volta_fn import dtypes
from volta_fn.compiler.ir.views import is_elementwise, is_view, reduces
from volta_fn.compiler.passes.rewriting import Rewriter, Rules, Table, listed, literal, rewrite, rule
from volta_fn.core.aval import Shape
from volta_fn.core.jaxpr import Atom, ClosedJaxpr, Equation
from volta_fn.primitives.data_movement.indexing import GatherScatterMode

_RULES: Table = {}
_INT32 = np.dtype(np.int32)

#: Elements of a row, and equations to look at in search of a reduction over rows, at most.
_LONGEST_ROW = 1 << 16
_FAR = 32


def expand_onehot_indexing(closed: ClosedJaxpr) -> ClosedJaxpr:
    """Expand gathers and scatters of one element per row to comparisons.

    They are expanded only where comparisons are not more work.
    """
    return rewrite(closed, _LISTED)


class _Rows(NamedTuple):
    """An array's rows along an axis, each of which has an index."""

    shape: Shape
    axis: int

    @property
    def others(self) -> tuple[int, ...]:
        """The axes that number the rows."""
        return tuple([a for a in range(len(self.shape)) if a != self.axis])

    def spread(self, program: Rewriter, eqn: Equation, atom: Atom) -> Atom:
        """Broadcast one value per row to all elements."""
        flat = program.emit(eqn, "reshape", atom, new_sizes=tuple([self.shape[a] for a in self.others]))
        return program.emit(eqn, "broadcast_in_dim", flat, shape=self.shape, broadcast_dimensions=self.others)

    def numbers(self, program: Rewriter, eqn: Equation, clips: bool) -> Atom:
        """Return the rows' indices, with int32 at least, clipped if `clips`."""
        found = eqn.invars[1]
        if found.aval.dtype.itemsize < _INT32.itemsize:
            found = program.emit(eqn, "convert_element_type", found, new_dtype=_INT32, weak_type=False)
        if clips:
            last = literal(self.shape[self.axis] - 1, found.aval.dtype)
            found = program.emit(eqn, "min", program.emit(eqn, "max", found, literal(0, found.aval.dtype)), last)
        return found

    def chosen(self, program: Rewriter, eqn: Equation, index: Atom) -> Atom:
        """Compare each element's position with its row's index."""
        positions = program.emit(eqn, "iota", dtype=index.aval.dtype, shape=self.shape, dimension=self.axis)
        return program.emit(eqn, "eq", positions, self.spread(program, eqn, index))

    def inside(self, program: Rewriter, eqn: Equation, index: Atom) -> Atom:
        """Compare each row's index with the ends of the row."""
        first, end = (literal(n, index.aval.dtype) for n in (0, self.shape[self.axis]))
        return program.emit(eqn, "and", program.emit(eqn, "ge", index, first), program.emit(eqn, "lt", index, end))


def _rows(eqn: Equation) -> _Rows | None:
    """Return the rows if a gather or a scatter touches one element of each.

    None if it does anything else, or in another order.
    """
    operand, indices = [v.aval for v in eqn.invars[:2]]
    windows, absent, addressed, batching, theirs = eqn.params["dimension_numbers"]
    if windows or absent != addressed or len(addressed) != 1 or indices.size != operand.size // operand.shape[addressed[0]]:
        return None
    rows = _Rows(operand.shape, addressed[0])
    in_order = batching == rows.others and list(theirs) == sorted(theirs) and indices.shape[-1] == 1
    return rows if in_order and all(indices.shape[i] == operand.shape[a] for a, i in zip(batching, theirs, strict=True)) else None


@rule(_RULES, "gather")
def _read(eqn: Equation, program: Rewriter) -> Atom | None:
    """Return the greatest of a row's elements, those not chosen being -inf.

    Or the fill value if the index lies outside.
    """
    operand, (out,) = eqn.invars[0], eqn.outvars
    rows = _rows(eqn) if operand.aval.dtype in dtypes.FLOATS and operand.aval.size else None
    if rows is None or rows.shape[rows.axis] > _LONGEST_ROW or not _is_made_row_by_row(program, operand, rows):
        return None
    fills = eqn.params["mode"] is GatherScatterMode.FILL_OR_DROP
    index = rows.numbers(program, eqn, not fills)
    others: Atom = literal(-np.inf, operand.aval.dtype)
    if fills:
        fill = literal(np.nan if eqn.params["fill_value"] is None else eqn.params["fill_value"], operand.aval.dtype)
        others = rows.spread(program, eqn, program.emit(eqn, "select_n", rows.inside(program, eqn, index), fill, others))
    candidates = program.emit(eqn, "select_n", rows.chosen(program, eqn, index), others, operand)
    found = program.emit(eqn, "reduce_max", candidates, axes=(rows.axis,))
    return program.emit(eqn, "reshape", found, new_sizes=out.aval.shape)


def _is_made_row_by_row(program: Rewriter, atom: Atom, rows: _Rows) -> bool:
    """Return True if a loop over its rows computes an array's operands anyway."""
    waiting, seen = [atom], set[Atom]()
    while waiting and len(seen) < _FAR:
        at = waiting.pop()
        eqn = None if at in seen else program.producer(at)
        seen.add(at)
        if eqn is None:
            continue
        if reduces(eqn) and eqn.params.get("axes") == (rows.axis,) and eqn.invars[0].aval.shape == rows.shape:
            return True
        if is_elementwise(eqn) or is_view(eqn):
            waiting += eqn.invars
    return False


@rule(_RULES, "scatter", "scatter_add")
def _changed(eqn: Equation, program: Rewriter) -> Atom | None:
    """Select the updated value at the chosen element, and the constant elsewhere."""
    operand, _, updates = eqn.invars
    value = program.scalar(operand)
    rows = _rows(eqn) if value is not None and operand.aval.size else None
    if rows is None or value is None:
        return None
    index = rows.numbers(program, eqn, eqn.params["mode"] is GatherScatterMode.CLIP)
    if eqn.primitive.name == "scatter_add":
        updates = program.emit(eqn, "add", literal(value, operand.aval.dtype), updates)
    return program.emit(eqn, "select_n", rows.chosen(program, eqn, index), operand, rows.spread(program, eqn, updates))


_LISTED = Rules(listed(_RULES))
