"""Moving elements without looking at them: an element is an integer of its size."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from volta_fn.codegen.geometry.strides import Dims
from volta_fn.runtime.llvm.index_arith import nest
from volta_fn.runtime.llvm.text import Function, Value, i64


def unit(itemsize: int) -> str:
    """Return the type that moves elements of so many bytes."""
    return f"i{8 * itemsize}" if itemsize <= 8 else "<2 x i64>"


def bits(value: object, dtype: np.dtype) -> Value:
    """Return a number of a dtype as a constant of its `unit`."""
    data = np.asarray(value).astype(dtype).tobytes()
    if dtype.itemsize <= 8:
        return Value(unit(dtype.itemsize), str(int.from_bytes(data, "little")))
    low, high = (int.from_bytes(data[k : k + 8], "little") for k in (0, 8))
    return Value("<2 x i64>", f"<i64 {low}, i64 {high}>")


def size_of(type_: str) -> int:
    """Return the bytes of a `unit`."""
    return 16 if type_.startswith("<") else int(type_[1:]) // 8


def alignment(type_: str) -> int:
    """Return the least alignment of elements of a `unit`."""
    return min(8, size_of(type_))


def copy_bytes(f: Function, target: Value, source: Value, count: Value, align: int) -> None:
    """Copy so many bytes to memory that is not the source."""
    f.module.declare("llvm.memcpy.p0.p0.i64", "declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)")
    f.do(f"call void @llvm.memcpy.p0.p0.i64(ptr align {align} {target.name}, ptr align {align} {source.name}, {count}, i1 false)")


def copy_block(
    f: Function,
    type_: str,
    target: Value,
    source: Value,
    loops: Sequence[Dims],
    first: tuple[Value, Value] | None = None,
) -> None:
    """Copy a block of `merged` loops: sizes, strides of the target and of the source.

    `first` is the range of the outermost loop to copy.
    """
    sizes, target_strides, source_strides = loops
    runs = bool(sizes) and target_strides[-1] == source_strides[-1] == 1
    depth = len(sizes) - runs

    def run(indices: list[Value]) -> None:
        to = f.at(target, type_, f.dotted(indices, target_strides[:depth]))
        at = f.at(source, type_, f.dotted(indices, source_strides[:depth]))
        if not runs:
            f.store(f.load(type_, at, alignment(type_)), to, alignment(type_))
        elif depth or first is None:
            copy_bytes(f, to, at, i64(sizes[-1] * size_of(type_)), alignment(type_))
        else:
            begin, end = first
            count = f.times(f.minus(end, begin), size_of(type_))
            copy_bytes(f, f.at(to, type_, begin), f.at(at, type_, begin), count, alignment(type_))

    nest(f, sizes[:depth], run, first if depth else None)


def fill_block(
    f: Function,
    value: Value,
    target: Value,
    sizes: Sequence[int],
    strides: Sequence[int],
    first: tuple[Value, Value] | None = None,
) -> None:
    """Store a constant throughout a block, of the given `merged` loops."""
    type_ = value.type

    def one(indices: list[Value]) -> None:
        f.store(value, f.at(target, type_, f.dotted(indices, strides)), alignment(type_))

    nest(f, sizes, one, first)
