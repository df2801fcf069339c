"""Eigenvalues, eigenvectors and singular values.

Matrices with numbers that are not finite give NaN without a call: some versions of LAPACK would not return.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from volta_fn import dtypes
from volta_fn.core.aval import ShapedArray
from volta_fn.runtime.llvm.lapack import workspace_size
from volta_fn.runtime.llvm.text import Function, Value, i64
from volta_fn.targets.cpu.lapack.calls import call_with_status, lapack_name
from volta_fn.targets.cpu.lapack.copies import is_finite, or_nan, transpose
from volta_fn.targets.cpu.lapack.stacks import stack_routine
from volta_fn.targets.cpu.routine import Routine


def eigh(operands: tuple[ShapedArray, ...], params: dict[str, Any]) -> Routine:
    """Make the routine of eigenvectors and eigenvalues of Hermitian matrices (syevd)."""
    (x,) = operands
    n, dtype = x.shape[-1], x.dtype
    real, triangle = dtypes.real_dtype(dtype), "L" if params["lower"] else "U"
    is_complex = dtype.kind == "c"
    sizes = [1 + 5 * n + 2 * n * n] * is_complex + [3 + 5 * n]
    work = workspace_size(lapack_name(dtype, "syevd"), "V", triangle, n, None, max(1, n), None, dtype=dtype, after=2 * len(sizes) + 1)

    def body(f: Function, matrices: list[Value], results: list[Value], scratch: list[Value]) -> None:
        (vectors, values), (columns, *spaces) = results, scratch
        transpose(f, dtype, columns, matrices[0], (n, n))

        def compute() -> Value:
            more = [argument for pair in zip(spaces, [work, *sizes], strict=True) for argument in pair]
            return call_with_status(f, dtype, "syevd", "V", triangle, n, columns, n, values, *more)

        or_nan(f, is_finite(f, dtype, columns, n * n), compute, [(values, real, n), (columns, dtype, n * n)])
        transpose(f, dtype, vectors, columns, (n, n))

    scratch = [dtype.itemsize * n * n, dtype.itemsize * work, *[real.itemsize * size for size in sizes[:-1]], 4 * sizes[-1]]
    shapes = [x, ShapedArray(x.shape[:-1], real)]
    return stack_routine("eigh", operands, shapes, (2, 2, 1), scratch, 9 * n**3, body)


def svd(operands: tuple[ShapedArray, ...], params: dict[str, Any]) -> Routine | None:
    """Make the routine of the singular value decomposition (gesdd).

    There is none for the vectors of empty matrices.
    """
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
    """Emit complex eigenvectors.

    LAPACK gives the real and the imaginary parts of a conjugate pair's vectors as two columns; the first eigenvalue of the pair has the
    positive imaginary part.
    """
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
