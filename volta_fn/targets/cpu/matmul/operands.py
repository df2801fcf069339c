"""Operands of products: code that packs their panels, or finds them in place.

A panel has, for each of `depth` k, the numbers of a few rows of A, or of a few vectors of columns of B, next to each other.
"""

from __future__ import annotations

from typing import NamedTuple

from volta_fn.compiler.contractions.matmul_problem import Operand
from volta_fn.runtime.llvm.text import Function, Value, i64
from volta_fn.targets.cpu.matmul.compute_dtype import ComputeType, is_itself, read
from volta_fn.targets.cpu.matmul.micro_kernel import CACHE_LINE, prefetch
from volta_fn.targets.cpu.matmul.pack_kernels import copy_row, copy_rows, spread_rows, transpose_rows, transposed_rows
from volta_fn.targets.cpu.matmul.task_loops import each, offset_of, origin

_CHUNK = 16


class Span(NamedTuple):
    """A range of an operand: a product of the stack, first row or column, and k."""

    buffers: Value
    batch: Value
    outer: Value
    inner: Value
    depth: Value


class Panels(NamedTuple):
    """The number of panels that are packed together, and their stride in bytes."""

    number: int
    stride: int


class StridedOperand:
    """An operand that is an array, number `buffer` of the routine's buffers."""

    def __init__(self, work: ComputeType, operand: Operand, buffer: int) -> None:
        self.work, self.operand, self.buffer = work, operand, buffer
        #: How many k of a panel are packed before the next panel's, where panels are adjacent in memory; None: all of them.
        self.chunk = _CHUNK if operand.outer.stride == 1 and operand.inner.stride != 1 else None

    def in_place(self) -> tuple[int, int] | None:
        """Return the strides (of m or n, of k) in elements if it can be read in place."""
        outer, inner = self.operand.outer.stride, self.operand.inner.stride
        if outer is None or inner is None or not is_itself(self.work, self.operand.dtype):
            return None
        return outer, inner

    def address(self, f: Function, span: Span) -> Value:
        """Emit where the span begins, of an operand that is read in place."""
        return self._at(f, self._matrix(f, span), span.outer, span.inner)

    def pack(self, f: Function, span: Span, count: int, width: int, target: Value) -> None:
        """Write a panel: for each k, `count` neighbours, and zeros up to `width`."""
        matrix = self._matrix(f, span)
        outer, inner = self.operand.outer, self.operand.inner
        dtype = self.operand.dtype
        shared = copy_rows if outer.stride == 1 else transpose_rows if inner.stride == 1 else None
        stride = inner.stride if outer.stride == 1 else outer.stride
        if shared is not None and stride is not None:
            start = self._at(f, matrix, span.outer, span.inner)
            f.run_shared(shared(self.work, dtype, count, width), start, i64(stride * dtype.itemsize), span.depth, target)
        elif outer.stride == 1:
            self._copy_rows(f, span, matrix, count, width, target)
        else:
            first = span.inner if inner.stride == 1 else i64(0)
            rows = [self._at(f, matrix, f.binary("add", span.outer, i64(j)), first) for j in range(count)]
            if inner.stride == 1:
                transposed_rows(f, self.work, dtype, lambda k: [self._move(f, row, k) for row in rows], width, span.depth, target, width)
            else:
                self._gather_rows(f, span, rows, width, target)

    def in_rows(self) -> bool:
        """Return True if neighbours along m or n are adjacent, and k has one stride."""
        return self.chunk is not None and self.operand.inner.stride is not None

    def spread(self, f: Function, span: Span, count: int, width: int, target: Value, panels: Panels) -> None:
        """Write several panels at once, each row to all of them, of an operand `in_rows`."""
        dtype, stride = self.operand.dtype, self.operand.inner.stride
        assert stride is not None
        start = self._at(f, self._matrix(f, span), span.outer, span.inner)
        packing = spread_rows(self.work, dtype, count, width)
        f.run_shared(packing, start, i64(stride * dtype.itemsize), span.depth, target, i64(panels.number), i64(panels.stride))

    def prefetch(self, f: Function, span: Span, count: Value) -> None:
        """Prefetch `count` neighbours for each k, of an operand with a chunk."""
        matrix = self._matrix(f, span)

        def row(k: Value) -> None:
            start = self._at(f, matrix, span.outer, f.binary("add", span.inner, k))
            each(f, i64(0), count, lambda j: prefetch(f, self._move(f, start, j), soon=False), CACHE_LINE // self.operand.dtype.itemsize)

        each(f, i64(0), span.depth, row)

    def _copy_rows(self, f: Function, span: Span, matrix: Value, count: int, width: int, target: Value) -> None:
        """Emit for each k `count` adjacent elements, and zeros up to `width`."""

        def row(k: Value) -> None:
            source = self._at(f, matrix, span.outer, f.binary("add", span.inner, k))
            copy_row(f, self.work, self.operand.dtype, count, width, source, target, k)

        each(f, i64(0), span.depth, row)

    def _gather_rows(self, f: Function, span: Span, rows: list[Value], width: int, target: Value) -> None:
        """Emit for each k the element of every row, and zeros up to `width`."""
        zero = Value(self.work.type, "zeroinitializer")

        def row(k: Value) -> None:
            offset = offset_of(f, self.operand.inner, f.binary("add", span.inner, k))
            first = f.at(target, self.work.type, f.binary("mul", k, i64(width)))
            for j in range(width):
                value = read(f, self.work, self.operand.dtype, self._move(f, rows[j], offset), 1) if j < len(rows) else zero
                f.store(value, f.at(first, self.work.type, i64(j)), self.work.itemsize)

        each(f, i64(0), span.depth, row)

    def _matrix(self, f: Function, span: Span) -> Value:
        array = f.load("ptr", f.at(span.buffers, "ptr", i64(self.buffer)), 8)
        return self._move(f, array, origin(f, self.operand, span.batch))

    def _at(self, f: Function, matrix: Value, outer: Value, inner: Value) -> Value:
        row = self._move(f, matrix, offset_of(f, self.operand.outer, outer))
        return row if inner.name == "0" else self._move(f, row, offset_of(f, self.operand.inner, inner))

    def _move(self, f: Function, pointer: Value, offset: Value) -> Value:
        return pointer if offset.name == "0" else f.at(pointer, f"[{self.operand.dtype.itemsize} x i8]", offset)
