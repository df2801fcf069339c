"""Hessenberg, Schur and tridiagonal forms, reflectors, and tridiagonal systems."""

from __future__ import annotations

from typing import Any

from volta_fn import dtypes
from volta_fn.core.aval import ShapedArray
from volta_fn.runtime.llvm.lapack import workspace_size
from volta_fn.runtime.llvm.text import Function, Value, i64
from volta_fn.targets.cpu.lapack.calls import Argument, bytes_at, call_with_status, lapack_name
from volta_fn.targets.cpu.lapack.copies import copy, fill, is_finite, or_nan, transpose
from volta_fn.targets.cpu.lapack.stacks import stack_routine
from volta_fn.targets.cpu.routine import Routine


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
