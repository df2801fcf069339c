"""The QR factorisation."""

from __future__ import annotations

from typing import Any

from volta_fn.core.aval import ShapedArray
from volta_fn.runtime.llvm.lapack import workspace_size
from volta_fn.runtime.llvm.text import Function, Value
from volta_fn.targets.cpu.lapack.calls import call_with_status, lapack_name
from volta_fn.targets.cpu.lapack.copies import transpose, zero_below
from volta_fn.targets.cpu.lapack.stacks import stack_routine
from volta_fn.targets.cpu.routine import Routine


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
