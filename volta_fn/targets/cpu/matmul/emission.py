"""Loops, indices and ranges in the generated code of products."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from volta_fn.compiler.contractions import Operand, Walk
from volta_fn.runtime.llvm.text import Function, Value, i64

# Loops, indices and task numbers in generated code.


def each(f: Function, start: Value, end: Value, body: Callable[[Value], None], step: int = 1) -> None:
    """Emit ``for index in range(start, end, step): body(index)``."""
    f.loop(start, end, step, [], lambda index, _: body(index))


def origin(f: Function, operand: Operand, number: Value) -> Value:
    """Emit the offset of a matrix of a stack, in elements."""
    offset = offset_of(f, operand.stack, number)
    if not operand.start:
        return offset
    return i64(operand.start) if offset.name == "0" else f.binary("add nsw", offset, i64(operand.start))


def offset_of(f: Function, walk: Walk, index: Value) -> Value:
    """Emit the offset of an index, in elements."""
    total = i64(0)
    for axis in range(len(walk.sizes) - 1, -1, -1):
        size, stride = walk.sizes[axis], walk.strides[axis]
        digit = index
        if axis:
            digit = f.binary("urem", index, i64(size))
            index = f.binary("udiv", index, i64(size))
        term = digit if stride == 1 else f.binary("mul nsw", digit, i64(stride))
        total = term if total.name == "0" else f.binary("add nsw", total, term)
    return total


_POINTERS = frozenset({"buffers", "target", "a", "b", "strip"})


def parameters_of(*names: str) -> list[Value]:
    """Return parameters of functions, by name."""
    return [Value("ptr" if name in _POINTERS else "i64", f"%{name}") for name in names]


def range_of(f: Function, number: Value, count: int, total: int) -> tuple[Value, Value]:
    """Emit the range number `number` of ``range(total)`` in near-equal ranges."""
    if count == 1:
        return i64(0), i64(total)
    if total % count == 0:
        start = f.binary("mul", number, i64(total // count))
        return start, f.binary("add", start, i64(total // count))
    start, end = [f.binary("udiv", f.binary("mul", n, i64(total)), i64(count)) for n in (number, f.binary("add", number, i64(1)))]
    return start, end


def indices_of(f: Function, number: Value, *sizes: int) -> list[Value]:
    """Emit the indices of an element of an array; the first index is not reduced."""
    digits = []
    for axis in range(len(sizes) - 1, -1, -1):
        if prod(sizes[:axis]) == 1:
            digits.append(number)
            digits += [i64(0)] * axis
            break
        if sizes[axis] == 1:
            digits.append(i64(0))
            continue
        digits.append(f.binary("urem", number, i64(sizes[axis])))
        number = f.binary("udiv", number, i64(sizes[axis]))
    return digits[::-1]


def flat_index(f: Function, *digits: tuple[Value, int]) -> Value:
    """Emit the inverse of `indices_of`."""
    total, *_ = digits[0]
    for digit, size in digits[1:]:
        if size > 1:
            total = f.binary("add", f.binary("mul", total, i64(size)), digit)
    return total
