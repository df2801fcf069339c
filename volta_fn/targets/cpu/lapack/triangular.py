"""Triangular solves, without transposed copies, and Cholesky's factorisation.

BLAS sees the transposes of matrices that lie row by row, whose lower triangles are upper ones.
"""

from __future__ import annotations

from typing import Any

from volta_fn.core.aval import ShapedArray
from volta_fn.runtime.llvm.text import Function, Value, i64
from volta_fn.targets.cpu.lapack.calls import call, call_with_status, number
from volta_fn.targets.cpu.lapack.copies import conjugate, copy, fill, transpose, zero_above
from volta_fn.targets.cpu.lapack.stacks import LARGE, stack_routine
from volta_fn.targets.cpu.routine import Routine


def cholesky(operands: tuple[ShapedArray, ...], params: dict[str, Any]) -> Routine:
    """Make the routine of Cholesky's factorisation (potrf).

    OpenBLAS finds lower factors in so much less time than upper ones that two transposed copies pay.
    """
    (x,) = operands
    n = x.shape[-1]

    def body(f: Function, matrices: list[Value], results: list[Value], scratch: list[Value]) -> None:
        (factor,), (columns,) = results, scratch
        transpose(f, x.dtype, columns, matrices[0], (n, n))
        failed = call_with_status(f, x.dtype, "potrf", "L", n, columns, n)
        f.branch(failed, lambda: fill(f, x.dtype, columns, i64(0), i64(n * n), float("nan")))
        transpose(f, x.dtype, factor, columns, (n, n))
        zero_above(f, x.dtype, factor, n)

    return stack_routine("cholesky", operands, operands, (2, 2), [x.dtype.itemsize * n * n], n**3 / 3, body, one_thread_up_to=LARGE)


def triangular_solve(operands: tuple[ShapedArray, ...], params: dict[str, Any]) -> Routine:
    """Make the routine of a triangular solve (trsm, or trsv for single vectors).

    op(A) X = B is Xᵀ op(A)ᵀ = Bᵀ to BLAS, which lacks a conjugate that is not transposed: the conjugate of X solves the system without it.
    """
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
