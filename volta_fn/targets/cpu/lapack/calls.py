"""Calls of LAPACK and BLAS: stacks of matrices, threads, and copies of matrices."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from volta_fn.core.aval import ShapedArray
from volta_fn.runtime.llvm.host import host, is_this_cpu
from volta_fn.runtime.llvm.machine import GET_THREADS, LAPACK_PREFIX, SET_THREADS, THREADS, WORDS, has_lapack
from volta_fn.runtime.llvm.text import Function, SharedFunction, Value, i64, least, locked, rounded_down, shared_function, vector_of
from volta_fn.targets.cpu.library.movement import alignment, bits, unit
from volta_fn.targets.cpu.loops.routine import transposed
from volta_fn.targets.cpu.routine import Routine, RoutineWriter, empty_routine, task_range

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
