"""The LU factorisation."""

from __future__ import annotations

from typing import Any

import numpy as np

from volta_fn.core.aval import ShapedArray
from volta_fn.runtime.llvm.text import Function, Value, i64
from volta_fn.targets.cpu.lapack.calls import call_with_status
from volta_fn.targets.cpu.lapack.copies import transpose
from volta_fn.targets.cpu.lapack.stacks import LARGE, stack_routine
from volta_fn.targets.cpu.routine import Routine


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
        _permute(f, exchanged, order, m, min(m, n))

    scratch, operations = [x.dtype.itemsize * m * n], m * n * min(m, n)
    return stack_routine("lu", operands, (x, pivots, permutation), (2, 2, 1, 1), scratch, operations, body, one_thread_up_to=LARGE)


def _permute(f: Function, exchanged: Value, order: Value, m: int, count: int) -> None:
    """Emit pivots counted from zero, and the permutation that the exchanges make."""
    f.loop(i64(0), i64(m), 1, [], lambda i, _: f.store(f.cast("trunc", i, "i32"), f.at(order, "i32", i), 4))

    def exchange(i: Value, _: list[Value]) -> None:
        pivot = f.binary("sub", f.load("i32", f.at(exchanged, "i32", i), 4), Value("i32", "1"))
        f.store(pivot, f.at(exchanged, "i32", i), 4)
        here, there = f.at(order, "i32", i), f.at(order, "i32", f.cast("sext", pivot, "i64"))
        x, y = f.load("i32", here, 4), f.load("i32", there, 4)
        f.store(y, here, 4)
        f.store(x, there, 4)

    f.loop(i64(0), i64(count), 1, [], exchange)
