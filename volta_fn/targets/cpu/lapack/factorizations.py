"""Factorisations, triangular solves, condensed forms, eigenvalues."""

from __future__ import annotations

from typing import Any

import numpy as np

from volta_fn import dtypes
from volta_fn.core.aval import ShapedArray
from volta_fn.runtime.llvm.machine import workspace_size
from volta_fn.runtime.llvm.text import Function, Value, i64
from volta_fn.targets.cpu.lapack.calls import (
    LARGE,
    Argument,
    bytes_at,
    call,
    call_with_status,
    conjugate,
    copy,
    fill,
    is_finite,
    lapack_name,
    number,
    or_nan,
    stack_routine,
    transpose,
    zero_above,
    zero_below,
)
from volta_fn.targets.cpu.routine import Routine

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
