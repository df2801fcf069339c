"""Matrices in memory: transposed copies, triangles, numbers that are not finite."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from volta_fn.runtime.llvm.host import host
from volta_fn.runtime.llvm.index_arith import least, rounded_down
from volta_fn.runtime.llvm.text import Function, SharedFunction, Value, i64, shared_function, vector_of
from volta_fn.targets.cpu.library.copy_ops import alignment, bits, copy_bytes, unit
from volta_fn.targets.cpu.loops.tiles import transposed


def transpose(
    f: Function, dtype: np.dtype, to: Value, source: Value, shape: tuple[int, int], row: int | None = None, column: int | None = None
) -> None:
    """Emit ``to[j, i] = source[i, j]`` for a matrix of `shape`.

    A row of the source has `row` elements (by default those of the shape), and one of the result `column`.
    """
    rows, columns = shape
    if rows and columns:
        sizes = [i64(rows), i64(columns), i64(row or columns), i64(column or rows)]
        f.run_shared(_transposition(dtype.itemsize), to, source, *sizes)


def _transposition(itemsize: int) -> SharedFunction:
    """Make the function that transposes a matrix in squares of a vector's size."""
    type_, lanes = unit(itemsize), min(16, host().vector_bytes // itemsize) if itemsize <= 8 else 1
    to, source = Value("ptr", "%to"), Value("ptr", "%source")
    rows, columns, row, column = sizes = [Value("i64", f"%{name}") for name in ("rows", "columns", "row", "column")]

    def write(f: Function) -> None:
        def element(i: Value, j: Value) -> None:
            x = f.load(type_, f.at(source, type_, f.plus(f.binary("mul", i, row), j)), alignment(type_))
            f.store(x, f.at(to, type_, f.plus(f.binary("mul", j, column), i)), alignment(type_))

        def elements(first: Value, end: Value, left: Value, right: Value) -> None:
            f.loop(first, end, 1, [], lambda i, _: f.loop(left, right, 1, [], lambda j, _: element(i, j)) and None)

        def square(i: Value, j: Value) -> None:
            vector = vector_of(type_, lanes)
            at = [f.at(source, type_, f.plus(f.binary("mul", f.plus(i, i64(k)), row), j)) for k in range(lanes)]
            for k, x in enumerate(transposed(f, [f.load(vector, p, alignment(type_)) for p in at])):
                f.store(x, f.at(to, type_, f.plus(f.binary("mul", f.plus(j, i64(k)), column), i)), alignment(type_))

        if lanes == 1:
            elements(i64(0), rows, i64(0), columns)
            return
        last, right = rounded_down(f, rows, lanes), rounded_down(f, columns, lanes)
        f.loop(i64(0), last, lanes, [], lambda i, _: f.loop(i64(0), right, lanes, [], lambda j, _: square(i, j)) and None)
        elements(i64(0), last, right, columns)
        elements(last, rows, i64(0), columns)

    return shared_function(f"transpose_{itemsize}_by_{lanes}", [to, source, *sizes], write)


def copy(f: Function, dtype: np.dtype, to: Value, source: Value, count: int) -> None:
    """Emit a copy of so many numbers, unless they are there already."""
    elsewhere = f.compare("icmp ne", to, source)
    f.branch(elsewhere, lambda: copy_bytes(f, to, source, i64(count * dtype.itemsize), alignment(unit(dtype.itemsize))))


def fill(f: Function, dtype: np.dtype, to: Value, start: Value, end: Value, number: float) -> None:
    """Emit stores of a number to the elements from `start` up to `end`."""
    value = bits(number, dtype)
    f.loop(start, end, 1, [], lambda i, _: f.store(value, f.at(to, value.type, i), alignment(value.type)))


def conjugate(f: Function, dtype: np.dtype, x: Value, count: int) -> None:
    """Emit the conjugation of so many complex numbers in place."""
    type_, size = ("float", 4) if dtype.itemsize == 8 else ("double", 8)

    def one(i: Value, _: list[Value]) -> None:
        at = f.at(x, type_, f.plus(f.times(i, 2), i64(1)))
        f.store(f.let(type_, f"fneg {f.load(type_, at, size)}"), at, size)

    f.loop(i64(0), i64(count), 1, [], one)


def zero_above(f: Function, dtype: np.dtype, matrix: Value, n: int) -> None:
    """Emit zeros above the diagonal of a square matrix."""

    def row(i: Value, _: list[Value]) -> None:
        _zero(f, dtype, matrix, f.plus(f.times(i, n + 1), i64(1)), f.minus(i64(n - 1), i))

    f.loop(i64(0), i64(n), 1, [], row)


def zero_below(f: Function, dtype: np.dtype, matrix: Value, rows: int, columns: int) -> None:
    """Emit zeros below the diagonal of a matrix."""
    f.loop(i64(0), i64(rows), 1, [], lambda i, _: _zero(f, dtype, matrix, f.times(i, columns), least(f, i, i64(columns))))


def _zero(f: Function, dtype: np.dtype, matrix: Value, start: Value, count: Value) -> None:
    """Emit zeros in so many elements."""
    f.module.declare("llvm.memset.p0.i64", "declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)")
    at = f.at(matrix, unit(dtype.itemsize), start)
    f.run("llvm.memset.p0.i64", at, Value("i8", "0"), f.times(count, dtype.itemsize), Value("i1", "false"))


def is_finite(f: Function, dtype: np.dtype, x: Value, count: int) -> Value:
    """Emit whether so many numbers are all finite: zero times their sum is zero."""
    real, size = ("float", 4) if dtype.name in ("float32", "complex64") else ("double", 8)
    width, lanes = count * dtype.itemsize // size, host().vector_bytes // size
    rounded = width - width % lanes
    zero = Value(real, "0.0")

    def add(i: Value, carried: list[Value]) -> list[Value]:
        (total,) = carried
        zeros = Value(total.type, "zeroinitializer")
        return [f.binary("fadd", total, f.binary("fmul", f.load(total.type, f.at(x, real, i), size), zeros))]

    (totals,) = f.loop(i64(0), i64(rounded), lanes, [f.splat(zero, lanes)], add)
    total = f.intrinsic(f"llvm.vector.reduce.fadd.v{lanes}f{8 * size}", real, zero, totals)
    return f.compare("fcmp oeq", f.loop(i64(rounded), i64(width), 1, [total], add)[0], zero)


def or_nan(f: Function, possible: Value, compute: Callable[[], Value], results: Sequence[tuple[Value, np.dtype, int]]) -> None:
    """Emit a computation if it is possible; NaN in results if not, or if it failed.

    `compute` returns whether it failed.
    """

    def attempt() -> list[Value]:
        return [compute()]

    (failed,) = f.branch(possible, attempt, lambda: [Value("i1", "true")])

    def spoil() -> None:
        for pointer, dtype, count in results:
            fill(f, dtype, pointer, i64(0), i64(count), float("nan"))

    f.branch(failed, spoil)
