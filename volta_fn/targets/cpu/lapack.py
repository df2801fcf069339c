"""Linear algebra as calls of SciPy's LAPACK and BLAS.

A routine computes the matrices of a stack one by one: it brings a matrix into the order of LAPACK, calls a few functions, and stores what
they return.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from volta_fn import dtypes
from volta_fn.core.aval import ShapedArray
from volta_fn.runtime.llvm.host import host, is_this_cpu
from volta_fn.runtime.llvm.machine import GET_THREADS, LAPACK_PREFIX, SET_THREADS, THREADS, WORDS, has_lapack, workspace_size
from volta_fn.runtime.llvm.text import (
    Function,
    SharedFunction,
    Value,
    i64,
    least,
    locked,
    rounded_down,
    shared_function,
    transposed,
    vector_of,
)
from volta_fn.targets.cpu.library.movement import alignment, bits, unit
from volta_fn.targets.cpu.routine import Routine, RoutineWriter, chunk_count, empty_routine, lanes_for, map_run, task_range
from volta_fn.targets.cpu.scalars import Number, load, store
from volta_fn.targets.cpu.scalars.number import stored_element
from volta_fn.targets.cpu.scalars.values import Lanes

# Calls of LAPACK and BLAS, whose arguments are all pointers, in machine code.

#: The first letter of functions that compute in a dtype.
LETTERS = {"float32": "s", "float64": "d", "complex64": "c", "complex128": "z"}

#: An argument: an array, or a letter or an integer to point to.
Argument = Value | str | int


def lapack_name(dtype: np.dtype, name: str) -> str:
    """Return the name of a function of a dtype.

    Those for orthogonal and symmetric matrices have other names for complex dtypes.
    """
    if dtype.kind == "c":
        name = {"or": "un", "sy": "he"}.get(name[:2], name[:2]) + name[2:]
    return LETTERS[dtype.name] + name


def call(f: Function, dtype: np.dtype, name: str, *arguments: Argument) -> None:
    """Emit a call of a function, as ``potrf``."""
    symbol = LAPACK_PREFIX + lapack_name(dtype, name)
    f.module.declare(symbol, f"declare void @{symbol}({', '.join(['ptr'] * len(arguments))})")
    f.run(symbol, *[argument if isinstance(argument, Value) else _constant(f, argument) for argument in arguments])


def call_with_status(f: Function, dtype: np.dtype, name: str, *arguments: Argument) -> Value:
    """Emit a call whose last argument is its status; return whether it failed."""
    status = f.alloca("i32", align=8)
    call(f, dtype, name, *arguments, status)
    return f.compare("icmp ne", f.load("i32", status, 4), Value("i32", "0"))


def number(f: Function, dtype: np.dtype, x: float) -> Value:
    """Return the address of a constant number of a dtype."""
    data = ", ".join(f"i8 {byte}" for byte in np.asarray(x, dtype).tobytes())
    name = f"{dtype.name}_{int(x)}"
    f.module.declare(name, f"@{name} = internal constant [{dtype.itemsize} x i8] [{data}], align 16")
    return Value("ptr", f"@{name}")


def _constant(f: Function, argument: str | int) -> Value:
    if isinstance(argument, str):
        name, content = f"letter_{argument}", f"i8 {ord(argument)}"
    else:
        name, content = f"integer_{argument}".replace("-", "minus_"), f"i32 {argument}"
    f.module.declare(name, f"@{name} = internal constant {content}")
    return Value("ptr", f"@{name}")


def bytes_at(f: Function, pointer: Value, offset: int) -> Value:
    """Emit the address `offset` bytes after a pointer."""
    return f.at(pointer, "i8", i64(offset)) if offset else pointer


# The number of OpenBLAS's threads, in machine code.
#
# It is one number for a process. A routine that shares out matrices to threads has OpenBLAS compute each on one: threads of two pools
# would only wait for each other. One of a single large matrix has it use as many threads as the program has, unless OpenBLAS has fewer.
# While there are routines of both kinds, the number is one. The last routine to end restores what was before the first.

_LOCK, _BEFORE, _MOST, _ON_ONE, _ON_MANY = (Value("ptr", f"getelementptr (i64, ptr @{THREADS}, i64 {word})") for word in range(WORDS))


class Threads:
    """Begins and ends a routine with one OpenBLAS thread, or many."""

    def __init__(self, *, many: bool) -> None:
        self._mine = _ON_MANY if many else _ON_ONE

    def begin(self, f: Function, pointers: list[Value], task: Value) -> None:
        """Emit the beginning."""

        def count() -> None:
            f.branch(f.compare("icmp eq", _running(f), i64(0)), lambda: f.store(_threads(f), _BEFORE, 8))
            f.store(f.binary("add", f.load("i64", self._mine, 8), i64(1)), self._mine, 8)
            _set_threads(f)

        _with_lock(f, count)

    def end(self, f: Function, pointers: list[Value], task: Value) -> None:
        """Emit the end."""

        def count() -> None:
            f.store(f.binary("sub", f.load("i64", self._mine, 8), i64(1)), self._mine, 8)
            _set_threads(f)

        _with_lock(f, count)


def _with_lock(f: Function, work: Callable[[], None]) -> None:
    f.module.declare(THREADS, f"@{THREADS} = external global [{WORDS} x i64]")
    locked(f, _LOCK, work)


def _running(f: Function) -> Value:
    return f.binary("add", f.load("i64", _ON_ONE, 8), f.load("i64", _ON_MANY, 8))


def _threads(f: Function) -> Value:
    f.module.declare(GET_THREADS, f"declare i32 @{GET_THREADS}()")
    return f.cast("sext", f.call(GET_THREADS, "i32"), "i64")


def _set_threads(f: Function) -> None:
    """Emit the setting of the number that the routines at work want."""
    before = f.load("i64", _BEFORE, 8)
    many = least(f, before, f.load("i64", _MOST, 8))
    count = f.select(f.compare("icmp eq", f.load("i64", _ON_ONE, 8), i64(0)), many, i64(1))
    count = f.select(f.compare("icmp eq", _running(f), i64(0)), before, count)
    f.module.declare(SET_THREADS, f"declare void @{SET_THREADS}(i32)")
    f.run(SET_THREADS, f.cast("trunc", count, "i32"))


# Matrices in memory: transposed copies, triangles, numbers that are not finite.


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
    """Emit a copy of `count` numbers, unless source and target are the same."""
    elsewhere = f.compare("icmp ne", to, source)
    f.branch(elsewhere, lambda: f.memcpy(to, source, i64(count * dtype.itemsize), alignment(unit(dtype.itemsize))))


def fill(f: Function, dtype: np.dtype, to: Value, start: Value, end: Value, number: float) -> None:
    """Emit stores of a number to the elements from `start` up to `end`."""
    value = bits(number, dtype)
    f.loop(start, end, 1, [], lambda i, _: f.store(value, f.at(to, value.type, i), alignment(value.type)))


def conjugate(f: Function, dtype: np.dtype, x: Value, count: int) -> None:
    """Emit the conjugation of `count` complex numbers in place."""
    type_, size = ("float", 4) if dtype.itemsize == 8 else ("double", 8)

    def negate_imaginary(i: Value, _: list[Value]) -> None:
        at = f.at(x, type_, f.plus(f.times(i, 2), i64(1)))
        f.store(f.let(type_, f"fneg {f.load(type_, at, size)}"), at, size)

    f.loop(i64(0), i64(count), 1, [], negate_imaginary)


def zero_above(f: Function, dtype: np.dtype, matrix: Value, n: int) -> None:
    """Emit zeros above the diagonal of a square matrix."""

    def row(i: Value, _: list[Value]) -> None:
        _zero(f, dtype, matrix, f.plus(f.times(i, n + 1), i64(1)), f.minus(i64(n - 1), i))

    f.loop(i64(0), i64(n), 1, [], row)


def zero_below(f: Function, dtype: np.dtype, matrix: Value, rows: int, columns: int) -> None:
    """Emit zeros below the diagonal of a matrix."""
    f.loop(i64(0), i64(rows), 1, [], lambda i, _: _zero(f, dtype, matrix, f.times(i, columns), least(f, i, i64(columns))))


def _zero(f: Function, dtype: np.dtype, matrix: Value, start: Value, count: Value) -> None:
    f.module.declare("llvm.memset.p0.i64", "declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)")
    at = f.at(matrix, unit(dtype.itemsize), start)
    f.run("llvm.memset.p0.i64", at, Value("i8", "0"), f.times(count, dtype.itemsize), Value("i1", "false"))


def is_finite(f: Function, dtype: np.dtype, x: Value, count: int) -> Value:
    """Emit whether `count` numbers are all finite: zero times their sum is zero."""
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


# Routines of stacks of matrices, written as a function of one matrix.

RoutineMaker = Callable[[tuple[ShapedArray, ...], dict[str, Any]], Routine | None]

#: Writes what is done for one matrix, with pointers to its operands, its results and its scratch arrays.
Body = Callable[[Function, list[Value], list[Value], list[Value]], None]

#: Nanoseconds of a call of LAPACK, operations in a nanosecond, and nanoseconds that a task should take.
_CALL, _SPEED, _TASK = 1000.0, 4.0, 20_000.0
#: The most tasks, the most whatever scratch arrays they need, and the bytes of scratch arrays of more tasks than these.
_MOST_TASKS, _FEW_TASKS, _SCRATCH = 64, 8, 1 << 26
#: The most rows of factorisations that OpenBLAS computes on one thread.
_SMALL = 64
#: The most rows of matrices for which several threads gain little, and the most for LU and Cholesky's factors.
_MEDIUM, LARGE = 256, 512
#: The alignment of scratch arrays, in bytes.
_ALIGNMENT = 64


def if_available(maker: RoutineMaker) -> RoutineMaker:
    """Return a maker that returns None where LAPACK is not available."""

    def make(operands: tuple[ShapedArray, ...], params: dict[str, Any]) -> Routine | None:
        return maker(operands, params) if is_this_cpu() and has_lapack() else None

    return make


def stack_routine(
    name: str,
    operands: Sequence[ShapedArray],
    results: Sequence[ShapedArray],
    ranks: Sequence[int],
    scratch: Sequence[int],
    operations: float,
    body: Body,
    threads_beyond: int = _SMALL,
    one_thread_up_to: int = _MEDIUM,
) -> Routine:
    """Make the routine that does `body` for each matrix of a stack.

    Args:
        name: the name of its entry points.
        operands, results: what is stacked; their last dimensions, as many as `ranks` say in their order, belong to one matrix.
        scratch: the bytes of the scratch arrays that a matrix needs.
        operations: additions and multiplications that a matrix takes, about.
        threads_beyond: up to how many rows OpenBLAS computes a single matrix on one thread by itself.
        one_thread_up_to: up to how many rows it is to do so.
    """
    arrays = [*operands, *results]
    stack = math.prod(operands[0].shape[: operands[0].ndim - ranks[0]])
    if not stack or not any(r.size for r in results):
        return empty_routine()
    strides = [math.prod(a.shape[a.ndim - rank :]) * a.dtype.itemsize for a, rank in zip(arrays, ranks, strict=True)]
    rounded = [-(-max(size, 1) // _ALIGNMENT) * _ALIGNMENT for size in scratch]
    each = _CALL + operations / _SPEED
    most = max(_FEW_TASKS, min(_MOST_TASKS, _SCRATCH // max(1, sum(rounded))))
    tasks = max(1, min(stack, most, int(stack * each / _TASK)))
    writer = RoutineWriter(name, len(arrays) + bool(scratch))

    def task(f: Function, pointers: list[Value], number: Value) -> None:
        scratch_arrays = [
            f.at(pointers[-1], "i8", f.plus(f.times(number, sum(rounded)), i64(sum(rounded[:k])))) for k in range(len(rounded))
        ]

        def matrix(i: Value, _: list[Value]) -> None:
            addresses = [f.at(p, "i8", f.times(i, stride)) for p, stride in zip(pointers, strides, strict=False)]
            body(f, addresses[: len(operands)], addresses[len(operands) :], scratch_arrays)

        f.loop(*task_range(f, number, stack, tasks), 1, [], matrix)

    rows = max(operands[0].shape[-2:])
    threads = Threads(many=tasks == 1 and rows > one_thread_up_to) if tasks > 1 or rows > threads_beyond else None
    if threads:
        writer.launch(1, 0.0, threads.begin)
    writer.launch(tasks, stack * each, task)
    if threads:
        writer.launch(1, 0.0, threads.end, restores=True)
    return writer.routine(tasks * sum(rounded))


# The LU factorisation.


def lu(operands: tuple[ShapedArray, ...], params: dict[str, Any]) -> Routine:
    """Make the routine of an LU factorisation (getrf)."""
    (x,) = operands
    *stack, m, n = x.shape
    pivots, permutation = (ShapedArray((*stack, size), np.dtype(np.int32)) for size in (min(m, n), m))

    def body(f: Function, matrices: list[Value], results: list[Value], scratch: list[Value]) -> None:
        (matrix,), (packed, exchanged, order), (columns,) = matrices, results, scratch
        transpose(f, x.dtype, columns, matrix, (m, n))
        if m and n:
            call_with_status(f, x.dtype, "getrf", m, n, columns, m, exchanged)
        transpose(f, x.dtype, packed, columns, (n, m))
        # Pivots counted from zero, and the permutation that the exchanges make.
        f.loop(i64(0), i64(m), 1, [], lambda i, _: f.store(f.cast("trunc", i, "i32"), f.at(order, "i32", i), 4))

        def exchange(i: Value, _: list[Value]) -> None:
            pivot = f.binary("sub", f.load("i32", f.at(exchanged, "i32", i), 4), Value("i32", "1"))
            f.store(pivot, f.at(exchanged, "i32", i), 4)
            entry, pivot_entry = f.at(order, "i32", i), f.at(order, "i32", f.cast("sext", pivot, "i64"))
            x, y = f.load("i32", entry, 4), f.load("i32", pivot_entry, 4)
            f.store(y, entry, 4)
            f.store(x, pivot_entry, 4)

        f.loop(i64(0), i64(min(m, n)), 1, [], exchange)

    scratch, operations = [x.dtype.itemsize * m * n], m * n * min(m, n)
    return stack_routine("lu", operands, (x, pivots, permutation), (2, 2, 1, 1), scratch, operations, body, one_thread_up_to=LARGE)


# The QR factorisation.


def qr(operands: tuple[ShapedArray, ...], params: dict[str, Any]) -> Routine:
    """Make the routine of a QR factorisation (geqrf, then orgqr for Q)."""
    (x,), compute_q = operands, params["compute_q"]
    *stack, m, n = x.shape
    k = m if params["full_matrices"] else min(m, n)
    size, reflectors = x.dtype.itemsize, min(m, n)
    work = 1
    if m and k and compute_q:
        work = workspace_size(lapack_name(x.dtype, "orgqr"), m, k, reflectors, None, m, None, dtype=x.dtype)
    if reflectors:
        work = max(work, workspace_size(lapack_name(x.dtype, "geqrf"), m, n, None, m, None, dtype=x.dtype))

    def body(f: Function, matrices: list[Value], results: list[Value], scratch: list[Value]) -> None:
        (matrix,), r, (columns, scales, space) = matrices, results[-1], scratch
        transpose(f, x.dtype, columns, matrix, (m, n))
        if reflectors:
            call_with_status(f, x.dtype, "geqrf", m, n, columns, m, scales, space, work)
        transpose(f, x.dtype, r, columns, (n, k), m, n)
        zero_below(f, x.dtype, r, k, n)
        if not compute_q:
            return
        if m and k:
            call_with_status(f, x.dtype, "orgqr", m, k, reflectors, columns, m, scales, space, work)
        transpose(f, x.dtype, results[0], columns, (k, m))

    r_shape = ShapedArray((*stack, k, n), x.dtype)
    shapes = [ShapedArray((*stack, m, k), x.dtype), r_shape] if compute_q else [r_shape]
    scratch = [size * m * max(n, k), size * max(1, reflectors), size * work]
    return stack_routine("qr", operands, shapes, (2,) * (1 + len(shapes)), scratch, (4 if compute_q else 2) * m * n * k, body)


# Triangular solves, without transposed copies, and Cholesky's factorisation.
#
# To BLAS a row-major matrix is its transpose, whose lower triangle is the upper one.


def cholesky(operands: tuple[ShapedArray, ...], params: dict[str, Any]) -> Routine:
    """Make the routine of Cholesky's factorisation (potrf)."""
    # OpenBLAS finds lower factors in so much less time than upper ones that two transposed copies pay.
    (x,) = operands
    n = x.shape[-1]
    if (by_lanes := _cholesky_by_lanes(x)) is not None:
        return by_lanes

    def body(f: Function, matrices: list[Value], results: list[Value], scratch: list[Value]) -> None:
        (factor,), (columns,) = results, scratch
        transpose(f, x.dtype, columns, matrices[0], (n, n))
        failed = call_with_status(f, x.dtype, "potrf", "L", n, columns, n)
        f.branch(failed, lambda: fill(f, x.dtype, columns, i64(0), i64(n * n), float("nan")))
        transpose(f, x.dtype, factor, columns, (n, n))
        zero_above(f, x.dtype, factor, n)

    return stack_routine("cholesky", operands, operands, (2, 2), [x.dtype.itemsize * n * n], n**3 / 3, body, one_thread_up_to=LARGE)


def triangular_solve(operands: tuple[ShapedArray, ...], params: dict[str, Any]) -> Routine:
    """Make the routine of a triangular solve (trsm, or trsv for single vectors)."""
    # op(A) X = B is Xᵀ op(A)ᵀ = Bᵀ to BLAS, which lacks a conjugate that is not transposed: the conjugate of X solves the system without
    # it.
    a, b = operands
    left, transposes, conjugates = params["left_side"], params["transpose_a"], params["conjugate_a"] and a.dtype.kind == "c"
    n, (rows, columns) = a.shape[-1], b.shape[-2:]
    triangle = "U" if params["lower"] else "L"
    diagonal = "U" if params["unit_diagonal"] else "N"
    single = (columns if left else rows) == 1 and not (conjugates and transposes)
    op = "N" if not transposes else "C" if conjugates else "T"

    def body(f: Function, matrices: list[Value], results: list[Value], scratch: list[Value]) -> None:
        (matrix, right), (x,) = matrices, results
        copy(f, b.dtype, x, right, rows * columns)
        if conjugates and not transposes:
            conjugate(f, b.dtype, x, rows * columns)
        if single:
            call(f, a.dtype, "trsv", triangle, "N" if left == transposes else "T", diagonal, n, matrix, n, x, 1)
        else:
            one = number(f, a.dtype, 1.0)
            call(f, a.dtype, "trsm", "R" if left else "L", triangle, op, diagonal, columns, rows, one, matrix, n, x, columns)
        if conjugates and not transposes:
            conjugate(f, b.dtype, x, rows * columns)

    return stack_routine("triangular_solve", operands, (b,), (2, 2, 2), [], n * rows * columns, body, threads_beyond=0)


# Cholesky's factorisation of small matrices, by vectors that have one number of each of several matrices.
#
# A call of LAPACK takes some hundred nanoseconds, in which a few instructions of vectors factor as many matrices as these have lanes.

#: The most rows: registers hold most numbers of a triangle, and all steps are written out.
_FEW_ROWS = 8
#: Nanoseconds of an operation on a number of each matrix, divided by the lanes, and matrices in the smallest task.
_LANES_STEP, _MATRICES = 0.3, 256


def _cholesky_by_lanes(x: ShapedArray) -> Routine | None:
    """Make the routine of a stack of small real matrices; None for others."""
    n, stack, lanes = x.shape[-1], math.prod(x.shape[:-2]), lanes_for(x.dtype)
    if x.dtype.kind == "c" or not 0 < n <= _FEW_ROWS or stack < lanes:
        return None
    writer, tasks = RoutineWriter("cholesky_by_lanes", 2), chunk_count(stack, _MATRICES)

    def task(f: Function, pointers: list[Value], number: Value) -> None:
        def factor(first: Value, lanes: int, count: Value | None) -> None:
            source, target = [f.at(p, f"[{n * n} x {stored_element(x.dtype)}]", first) for p in pointers]

            def place(array: Value, i: int, j: int) -> Value:
                return f.at(array, stored_element(x.dtype), i64(i * n + j))

            def element(i: int, j: int) -> Lanes:
                return Lanes(f, load(f, x.dtype, place(source, i, j), lanes, count=count, stride=n * n).value)

            lower, is_definite = _factor(n, element)
            for i in range(n):
                for j in range(n):
                    value = is_definite.select(lower[i, j], math.nan) if j <= i else lower[0, 0].like(0.0)
                    store(f, Number(x.dtype, (value.value,)), place(target, i, j), count=count, stride=n * n)

        map_run(f, *task_range(f, number, stack, tasks, lanes), lanes, factor)

    writer.launch(tasks, stack * n * n * (n + 6) * _LANES_STEP / lanes, task)
    return writer.routine()


def _factor(n: int, element: Callable[[int, int], Lanes]) -> tuple[dict[tuple[int, int], Lanes], Lanes]:
    """Emit the lower triangles of factors, and whether there are any."""
    lower: dict[tuple[int, int], Lanes] = {}
    is_definite: Lanes | None = None

    def rest(i: int, j: int) -> Lanes:
        """Emit an element less what the columns before make of it."""
        value = element(i, j)
        for k in range(j):
            value = value - lower[i, k] * lower[j, k]
        return value

    for j in range(n):
        pivot = rest(j, j)
        is_positive = pivot.compare("ogt", 0.0)
        is_definite = is_positive if is_definite is None else is_definite & is_positive
        lower[j, j] = pivot.sqrt()
        inverse = 1.0 / lower[j, j]
        for i in range(j + 1, n):
            lower[i, j] = rest(i, j) * inverse
    assert is_definite is not None, "there are rows"
    return lower, is_definite


# Hessenberg, Schur and tridiagonal forms, reflectors, and tridiagonal systems.


def hessenberg(operands: tuple[ShapedArray, ...], params: dict[str, Any]) -> Routine:
    """Make the routine of the Hessenberg form (gehrd)."""
    (x,) = operands
    n, dtype = x.shape[-1], x.dtype
    leading: tuple[int | None, ...] = (n, 1, n, None, n, None)
    work = workspace_size(lapack_name(dtype, "gehrd"), *leading, dtype=dtype) if n else 1

    def body(f: Function, matrices: list[Value], results: list[Value], scratch: list[Value]) -> None:
        (reduced, factors), (a, space) = results, scratch
        transpose(f, dtype, a, matrices[0], (n, n))
        call_with_status(f, dtype, "gehrd", n, 1, n, a, n, factors, space, work)
        transpose(f, dtype, reduced, a, (n, n))

    shapes = [x, ShapedArray((*x.shape[:-2], max(0, n - 1)), dtype)]
    return stack_routine("hessenberg", operands, shapes, (2, 2, 1), [dtype.itemsize * n * n, dtype.itemsize * work], 4 * n**3, body)


def schur(operands: tuple[ShapedArray, ...], params: dict[str, Any]) -> Routine:
    """Make the routine of the Schur form (gees)."""
    (x,), vectors = operands, params["compute_vectors"]
    n, dtype, real = x.shape[-1], x.dtype, dtypes.real_dtype(x.dtype)
    is_complex, job = dtype.kind == "c", "V" if params["compute_vectors"] else "N"
    values = [None] * (1 if is_complex else 2)
    leading = (job, "N", None, n, None, max(1, n), None, *values, None, max(1, n))
    work = workspace_size(lapack_name(dtype, "gees"), *leading, dtype=dtype, after=2 + is_complex)

    def body(f: Function, matrices: list[Value], results: list[Value], scratch: list[Value]) -> None:
        a, q, space, first, second = scratch
        transpose(f, dtype, a, matrices[0], (n, n))
        outputs: list[Argument] = [first] if is_complex else [first, second]
        more: list[Argument] = [second] if is_complex else []
        null, selected = Value("ptr", "null"), f.alloca("i32", align=8)

        def compute() -> Value:
            return call_with_status(f, dtype, "gees", job, "N", null, n, a, n, selected, *outputs, q, n, space, work, *more, null)

        or_nan(f, is_finite(f, dtype, a, n * n), compute, [(a, dtype, n * n), (q, dtype, n * n)])
        for result, columns in zip(results, (a, q), strict=False):
            transpose(f, dtype, result, columns, (n, n))

    size = dtype.itemsize
    scratch = [size * n * n, size * n * n, size * work, size * n, real.itemsize * n]
    shapes = [x] * (1 + vectors)
    return stack_routine("schur", operands, shapes, (2,) * (2 + vectors), scratch, 25 * n**3, body)


def tridiagonal(operands: tuple[ShapedArray, ...], params: dict[str, Any]) -> Routine:
    """Make the routine of the tridiagonal form (sytrd)."""
    (x,), triangle = operands, "L" if params["lower"] else "U"
    *stack, n, _ = x.shape
    dtype, real, less = x.dtype, dtypes.real_dtype(x.dtype), max(0, x.shape[-1] - 1)
    leading = (triangle, n, None, max(1, n), None, None, None)
    work = workspace_size(lapack_name(dtype, "sytrd"), *leading, dtype=dtype)

    def body(f: Function, matrices: list[Value], results: list[Value], scratch: list[Value]) -> None:
        (reduced, *vectors), (a, space) = results, scratch
        transpose(f, dtype, a, matrices[0], (n, n))
        call_with_status(f, dtype, "sytrd", triangle, n, a, n, *vectors, space, work)
        transpose(f, dtype, reduced, a, (n, n))

    shapes = [x, *[ShapedArray((*stack, size), kind) for size, kind in ((n, real), (less, real), (less, dtype))]]
    scratch = [dtype.itemsize * n * n, dtype.itemsize * work]
    return stack_routine("tridiagonal", operands, shapes, (2, 2, 1, 1, 1), scratch, 2 * n**3, body)


def householder_product(operands: tuple[ShapedArray, ...], params: dict[str, Any]) -> Routine:
    """Make the routine of a product of reflections (orgqr)."""
    a, taus = operands
    (m, n), k, dtype = a.shape[-2:], taus.shape[-1], a.dtype
    work = workspace_size(lapack_name(dtype, "orgqr"), m, n, k, None, max(1, m), None, dtype=dtype)

    def body(f: Function, matrices: list[Value], results: list[Value], scratch: list[Value]) -> None:
        (reflectors, factors), (columns, space) = matrices, scratch
        transpose(f, dtype, columns, reflectors, (m, n))
        call_with_status(f, dtype, "orgqr", m, n, k, columns, m, factors, space, work)
        transpose(f, dtype, results[0], columns, (n, m))

    scratch = [dtype.itemsize * m * n, dtype.itemsize * work]
    return stack_routine("householder_product", operands, (a,), (2, 1, 2), scratch, 4 * m * n * k, body)


def tridiagonal_solve(operands: tuple[ShapedArray, ...], params: dict[str, Any]) -> Routine:
    """Make the routine of a tridiagonal solve (gtsv)."""
    b = operands[3]
    (n, k), dtype = b.shape[-2:], b.dtype

    def body(f: Function, arrays: list[Value], results: list[Value], scratch: list[Value]) -> None:
        (lower, diagonal, upper, right), (dl, d, du, columns) = arrays, scratch
        for to, source in ((dl, lower), (d, diagonal), (du, upper)):
            copy(f, dtype, to, source, n)
        transpose(f, dtype, columns, right, (n, k))
        failed = call_with_status(f, dtype, "gtsv", n, k, bytes_at(f, dl, dtype.itemsize), d, du, columns, n)
        f.branch(failed, lambda: fill(f, dtype, columns, i64(0), i64(n * k), float("nan")))
        transpose(f, dtype, results[0], columns, (k, n))

    scratch = [dtype.itemsize * n] * 3 + [dtype.itemsize * n * k]
    return stack_routine("tridiagonal_solve", operands, (b,), (1, 1, 1, 2, 2), scratch, 10 * n * (k + 1), body)


# Eigenvalues, eigenvectors and singular values.
#
# Matrices with numbers that are not finite give NaN without a call: some versions of LAPACK would not return.


def eigh(operands: tuple[ShapedArray, ...], params: dict[str, Any]) -> Routine:
    """Make the routine of eigenvectors and eigenvalues of Hermitian matrices (syevd)."""
    (x,) = operands
    n, dtype = x.shape[-1], x.dtype
    real, lower, triangle = dtypes.real_dtype(dtype), params["lower"], "L" if params["lower"] else "U"
    is_complex = dtype.kind == "c"
    sizes = [1 + 5 * n + 2 * n * n] * is_complex + [3 + 5 * n]
    work = workspace_size(lapack_name(dtype, "syevd"), "V", triangle, n, None, max(1, n), None, dtype=dtype, after=2 * len(sizes) + 1)

    def body(f: Function, matrices: list[Value], results: list[Value], scratch: list[Value]) -> None:
        (vectors, values), (columns, *spaces) = results, scratch
        transpose(f, dtype, columns, matrices[0], (n, n))
        # The other triangle is not read, so that it may hold anything. As rows, `columns` is the transpose.
        if lower:
            zero_below(f, dtype, columns, n, n)
        else:
            zero_above(f, dtype, columns, n)

        def compute() -> Value:
            more = [argument for pair in zip(spaces, [work, *sizes], strict=True) for argument in pair]
            return call_with_status(f, dtype, "syevd", "V", triangle, n, columns, n, values, *more)

        or_nan(f, is_finite(f, dtype, columns, n * n), compute, [(values, real, n), (columns, dtype, n * n)])
        transpose(f, dtype, vectors, columns, (n, n))

    scratch = [dtype.itemsize * n * n, dtype.itemsize * work, *[real.itemsize * size for size in sizes[:-1]], 4 * sizes[-1]]
    shapes = [x, ShapedArray(x.shape[:-1], real)]
    return stack_routine("eigh", operands, shapes, (2, 2, 1), scratch, 9 * n**3, body)


def svd(operands: tuple[ShapedArray, ...], params: dict[str, Any]) -> Routine | None:
    """Make gesdd's routine; there is none for the vectors of empty matrices."""
    (x,) = operands
    *stack, m, n = x.shape
    dtype, real, k = x.dtype, dtypes.real_dtype(x.dtype), min(m, n)
    vectors, full = params["compute_uv"], params["full_matrices"]
    rows, columns = ((m, n) if full else (k, k)) if vectors else (1, 1)
    if vectors and not k:
        return None
    job = "N" if not vectors else "A" if full else "S"
    sizes = [max(7 * k, 5 * k * k + 5 * k, 2 * max(m, n) * k + 2 * k * k + k)] if dtype.kind == "c" else []
    leading = (job, m, n, None, max(1, m), None, None, max(1, m), None, max(1, columns))
    work = workspace_size(lapack_name(dtype, "gesdd"), *leading, dtype=dtype, after=len(sizes) + 2) if k else 1

    def body(f: Function, matrices: list[Value], results: list[Value], scratch: list[Value]) -> None:
        values, (a, u, vt, space, integers, *reals) = results[0], scratch
        transpose(f, dtype, a, matrices[0], (m, n))

        def compute() -> Value:
            return call_with_status(f, dtype, "gesdd", job, m, n, a, m, values, u, m, vt, columns, space, work, *reals, integers)

        nan = [(values, real, k), (u, dtype, m * rows), (vt, dtype, n * columns)]
        or_nan(f, is_finite(f, dtype, a, m * n), compute, nan if vectors else nan[:1])
        if vectors:
            transpose(f, dtype, results[1], u, (rows, m))
            transpose(f, dtype, results[2], vt, (n, columns))

    size = dtype.itemsize
    scratch = [size * m * n, size * m * rows, size * n * columns, size * work, 4 * 8 * k, *[real.itemsize * s for s in sizes]]
    shapes = [ShapedArray((*stack, k), real)]
    if vectors:
        shapes += [ShapedArray((*stack, m, rows), dtype), ShapedArray((*stack, columns, n), dtype)]
    return stack_routine("svd", operands, shapes, (2, 1, 2, 2)[: len(shapes) + 1], scratch, 20 * m * n * k, body)


def eig(operands: tuple[ShapedArray, ...], params: dict[str, Any]) -> Routine:
    """Make the routine of eigenvalues and right eigenvectors (geev)."""
    (x,), vectors = operands, params["compute_vectors"]
    n, dtype = x.shape[-1], x.dtype
    result, real = dtypes.complex_dtype(dtype), dtypes.real_dtype(dtype)
    is_complex = dtype.kind == "c"
    values = [None] * (1 if is_complex else 2)
    job = "V" if vectors else "N"
    leading = ("N", job, n, None, max(1, n), *values, None, 1, None, max(1, n))
    work = workspace_size(lapack_name(dtype, "geev"), *leading, dtype=dtype, after=1 + is_complex)

    def body(f: Function, matrices: list[Value], results: list[Value], scratch: list[Value]) -> None:
        w, (a, columns, space, first, second) = results[0], scratch
        transpose(f, dtype, a, matrices[0], (n, n))
        outputs, more = ([w], [second]) if is_complex else ([first, second], [])

        def compute() -> Value:
            return call_with_status(f, dtype, "geev", "N", job, n, a, n, *outputs, a, 1, columns, n, space, work, *more)

        nan = [(w, result, n)] if is_complex else [(first, real, n), (second, real, n)]
        or_nan(f, is_finite(f, dtype, a, n * n), compute, [*nan, (columns, dtype, n * n)])
        if not is_complex:
            _pair_values(f, real, w, first, second, n)
        if vectors and is_complex:
            transpose(f, dtype, results[1], columns, (n, n))
        elif vectors:
            _pair_vectors(f, real, results[1], columns, second, n)

    size = dtype.itemsize
    scratch = [size * n * n, size * n * n, size * work, real.itemsize * n, real.itemsize * 2 * n]
    shapes = [ShapedArray(x.shape[:-1], result), ShapedArray(x.shape, result)]
    count = 1 + vectors
    return stack_routine("eig", operands, shapes[:count], (2, 1, 2)[: count + 1], scratch, 25 * n**3, body)


def _pair_values(f: Function, real: np.dtype, w: Value, re: Value, im: Value, n: int) -> None:
    """Emit complex eigenvalues from their real and their imaginary parts."""
    type_, size = ("float", 4) if real.itemsize == 4 else ("double", 8)

    def value(j: Value, _: list[Value]) -> None:
        for k, component in enumerate((re, im)):
            f.store(f.load(type_, f.at(component, type_, j), size), f.at(w, type_, f.plus(f.times(j, 2), i64(k))), size)

    f.loop(i64(0), i64(n), 1, [], value)


def _pair_vectors(f: Function, real: np.dtype, v: Value, columns: Value, im: Value, n: int) -> None:
    """Emit complex eigenvectors."""
    # LAPACK gives the real and the imaginary parts of a conjugate pair's vectors as two columns; the first eigenvalue of the pair has the
    # positive imaginary part.
    type_, size = ("float", 4) if real.itemsize == 4 else ("double", 8)
    zero, one, none = Value(type_, "0.0"), i64(1), i64(0)

    def column(j: Value, _: list[Value]) -> None:
        y = f.load(type_, f.at(im, type_, j), size)
        first, second = f.compare("fcmp ogt", y, zero), f.compare("fcmp olt", y, zero)
        real_column = f.times(f.minus(j, f.select(second, one, none)), n)
        other = f.times(f.plus(j, f.select(first, one, none)), n)

        def row(i: Value, _: list[Value]) -> None:
            a = f.load(type_, f.at(columns, type_, f.plus(real_column, i)), size)
            b = f.load(type_, f.at(columns, type_, f.plus(other, i)), size)
            b = f.select(second, f.let(type_, f"fneg {b}"), f.select(first, b, zero))
            at = f.times(f.plus(f.times(i, n), j), 2)
            f.store(a, f.at(v, type_, at), size)
            f.store(b, f.at(v, type_, f.plus(at, i64(1))), size)

        f.loop(i64(0), i64(n), 1, [], row)

    f.loop(i64(0), i64(n), 1, [], column)


# All routines, by the names of primitives.

_MAKERS: tuple[RoutineMaker, ...] = (
    *(cholesky, eig, eigh, hessenberg, householder_product, lu, qr, schur, svd),
    *(triangular_solve, tridiagonal, tridiagonal_solve),
)

#: Makers of routines, by the names of primitives. Without SciPy they return None, and NumPy computes the equations.
ROUTINES: dict[str, RoutineMaker] = {maker.__name__: if_available(maker) for maker in _MAKERS}

#: The operands whose memory the result may be, by the names of primitives.
IN_PLACE: dict[str, int] = {"cholesky": 0, "triangular_solve": 1}
