"""Numbers in routines: lanes, conversions, and loops over runs of them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from volta_fn import dtypes
from volta_fn.dtypes import accumulator
from volta_fn.runtime.llvm.host import host
from volta_fn.runtime.llvm.text import Function, Value, i64
from volta_fn.targets.cpu.scalars import Number, apply

_HALF = (np.dtype(np.float16), np.dtype(dtypes.bfloat16))


def lanes_for(dtype: np.dtype) -> int:
    """Return how many numbers a vector has: a register's worth, but at most 16."""
    return min(16, host().lanes(accumulator(dtype).itemsize))


def converted(f: Function, x: Number, dtype: np.dtype) -> Number:
    """Emit numbers in another dtype; float16 and bfloat16 are held as float32 already."""
    if x.dtype == dtype:
        return x
    if x.dtype in _HALF and dtype == np.float32:
        return Number(dtype, x.components)
    return apply(f, "convert_element_type", (x,), dtype, {"new_dtype": dtype, "weak_type": False})


def map_run(f: Function, begin: Value, end: Value, lanes: int, write: Callable[[Value, int, Value | None], None]) -> None:
    """Call ``write(i, lanes, count)`` for vectors from `begin` up to `end`.

    Of the last one perhaps only `count` lanes exist.
    """

    def full(i: Value, _: list[Value]) -> None:
        write(i, lanes, None)

    size = f.minus(end, begin)
    rest = f.remainder(size, lanes)
    last = f.minus(end, rest)
    if f.known(last) is None or f.known(last) != f.known(begin):
        f.loop(begin, last, lanes, [], full)
    if f.known(rest) == 0:
        return

    def partly() -> None:
        write(last, lanes, rest)

    partly() if f.known(rest) else f.branch(f.compare("icmp sgt", rest, i64(0)), partly)
