"""Vectors of strided elements, of which only the existing ones are touched."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from volta_fn.runtime.llvm.text import Function, Value, lanes_of, vector_of
from volta_fn.targets.cpu.library.copy_ops import unit
from volta_fn.targets.cpu.scalars import Number, apply
from volta_fn.targets.cpu.scalars.values import Lanes, overload

#: Up to this stride all memory from the first to the last element is loaded, under a mask.
_NEAR = 4


class StridedLanes(NamedTuple):
    """The first element's address, the stride, and a mask of elements to touch."""

    pointer: Value
    stride: int
    mask: Value


def flags(f: Function, lanes: int, start: Value, stride: int, size: int, count: Value | None) -> Value:
    """Emit which of the first `count` of ``start, start + stride, …`` are in range."""
    there = f.compare(
        "icmp ult", f.binary("add", f.splat(narrow(f, start), lanes), steps(lanes, stride)), f.splat(Value("i32", str(size)), lanes)
    )
    return there if count is None else f.binary("and", there, first_lanes(f, lanes, count))


def first_lanes(f: Function, lanes: int, count: Value | None) -> Value:
    """Emit a mask of the first `count` lanes; of all if there is no count."""
    if count is None:
        return Value(vector_of("i1", lanes), "splat (i1 true)")
    return f.compare("icmp slt", steps(lanes, 1), f.splat(narrow(f, count), lanes))


def steps(lanes: int, stride: int) -> Value:
    """Return 0, stride, 2 stride, … in 32 bits."""
    return Value(vector_of("i32", lanes), f"<{', '.join(f'i32 {k * stride}' for k in range(lanes))}>")


def narrow(f: Function, x: Value) -> Value:
    """Emit an index in 32 bits."""
    return f.cast("trunc", x, "i32") if f.known(x) is None else Value("i32", x.name)


def read(f: Function, dtype: np.dtype, where: StridedLanes) -> Number:
    """Emit the load of the elements; those that are not touched are 0."""
    raw = _read(f, unit(dtype.itemsize), where, dtype.itemsize)
    return apply(f, "bitcast_convert_type", (Number(np.dtype(f"u{dtype.itemsize}"), (raw,)),), dtype, {"new_dtype": dtype})


def _read(f: Function, element: str, where: StridedLanes, align: int) -> Value:
    lanes = lanes_of(where.mask.type)
    type_ = vector_of(element, lanes)
    if where.stride > _NEAR:
        pointers = _addresses(f, element, where, lanes)
        name = f"llvm.masked.gather.{overload(type_)}.v{lanes}p0"
        return f.intrinsic(name, type_, pointers, Value("i32", str(align)), where.mask, Value(type_, "zeroinitializer"))
    wide = vector_of(element, lanes * where.stride)
    mask = _spread(f, where.mask, where.stride)
    name = f"llvm.masked.load.{overload(wide)}.p0"
    found = f.intrinsic(name, wide, where.pointer, Value("i32", str(align)), mask, Value(wide, "zeroinitializer"))
    return found if where.stride == 1 else Lanes(f, found).taken(range(0, lanes * where.stride, where.stride)).value


def _spread(f: Function, x: Value, stride: int) -> Value:
    """Emit lanes a stride from each other, with zeros between them."""
    if stride == 1:
        return x
    lanes = lanes_of(x.type)
    order = [k // stride if k % stride == 0 else lanes for k in range(lanes * stride)]
    return Lanes(f, x).taken(order, Lanes(f, Value(x.type, "zeroinitializer"))).value


def _addresses(f: Function, element: str, where: StridedLanes, lanes: int) -> Value:
    offsets = f"<{lanes} x i64> <{', '.join(f'i64 {k * where.stride}' for k in range(lanes))}>"
    return f.let(f"<{lanes} x ptr>", f"getelementptr {element}, {where.pointer}, {offsets}")
