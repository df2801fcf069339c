"""How far a walk has come."""

from __future__ import annotations

from volta_fn.compiler.contractions.matmul_problem import Operand, Walk
from volta_fn.runtime.llvm.text import Function, Value, i64


def origin(f: Function, operand: Operand, number: Value) -> Value:
    """Where a matrix of a stack begins, in elements."""
    offset = walked(f, operand.stack, number)
    if not operand.start:
        return offset
    return i64(operand.start) if offset.name == "0" else f.binary("add nsw", offset, i64(operand.start))


def walked(f: Function, walk: Walk, index: Value) -> Value:
    """How far from the start an index is, in elements."""
    total = i64(0)
    for place in range(len(walk.sizes) - 1, -1, -1):
        size, stride = walk.sizes[place], walk.strides[place]
        digit = index
        if place:
            digit = f.binary("urem", index, i64(size))
            index = f.binary("udiv", index, i64(size))
        term = digit if stride == 1 else f.binary("mul nsw", digit, i64(stride))
        total = term if total.name == "0" else f.binary("add nsw", total, term)
    return total
