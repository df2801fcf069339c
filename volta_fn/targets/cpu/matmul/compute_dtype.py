"""The dtype in which a product computes, and conversions from and to others.

float32, float64 and the integers of 32 and 64 bits compute in themselves; float16 and bfloat16 in float32, rounded once at the end;
narrower integers in 32 bits, of which the low ones are theirs; bools in "any of (a and b)".
"""

from __future__ import annotations

from typing import NamedTuple

import ml_dtypes
import numpy as np

from volta_fn.runtime.llvm.host import host
from volta_fn.runtime.llvm.text import Function, Value, i64, vector_of
from volta_fn.targets.cpu.scalars.memory import first_of, masked_load, masked_store
from volta_fn.targets.cpu.scalars.values import overload

_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
_FLOATS = {np.dtype(np.float16): "half", np.dtype(np.float32): "float", np.dtype(np.float64): "double"}


class ComputeType(NamedTuple):
    """The type of sums, its size in bytes, and how many fill a vector register."""

    type: str
    itemsize: int
    lanes: int
    boolean: bool = False

    @property
    def vector(self) -> str:
        """The type of a full register."""
        return vector_of(self.type, self.lanes)

    def zero(self, lanes: int | None = None) -> Value:
        """Return a vector of zeros."""
        return Value(vector_of(self.type, lanes or self.lanes), "zeroinitializer")

    def add(self, f: Function, x: Value, y: Value) -> Value:
        """Emit the sum of two sums."""
        return f.binary("or" if self.boolean else "fadd" if self.type in ("float", "double") else "add", x, y)

    def multiply_add(self, f: Function, x: Value, y: Value, total: Value) -> Value:
        """Emit ``total + x * y``, rounded once where the machine has an instruction."""
        if self.type in ("float", "double"):
            if host().triple.startswith("x86") and "+fma" not in host().features:
                return f.binary("fadd", total, f.binary("fmul", x, y))
            return f.intrinsic(f"llvm.fma.{overload(total.type)}", total.type, x, y, total)
        return self.add(f, total, f.binary("and" if self.boolean else "mul", x, y))


def compute_type(dtype: np.dtype) -> ComputeType | None:
    """Return what products with results of a dtype compute in; None for complex."""
    if dtype.kind in "iu":
        itemsize = max(4, dtype.itemsize)
        return ComputeType(f"i{itemsize * 8}", itemsize, host().lanes(itemsize))
    if dtype == np.bool_:
        return ComputeType("i32", 4, host().lanes(4), boolean=True)
    if dtype == np.float64:
        return ComputeType("double", 8, host().lanes(8))
    return ComputeType("float", 4, host().lanes(4)) if dtype == np.float32 or _half(dtype) else None


def readable(dtype: np.dtype) -> bool:
    """Return True if `read` and `write` support a dtype on this machine."""
    if dtype == np.float16:
        return "+f16c" in host().features or not host().triple.startswith("x86")
    return dtype == np.bool_ or dtype == _BFLOAT16 or dtype in _FLOATS or dtype.kind in "iu"


def stored_as(dtype: np.dtype) -> str:
    """Return the LLVM type of a dtype's elements in memory."""
    return _FLOATS.get(dtype, f"i{dtype.itemsize * 8}")


def is_itself(work: ComputeType, dtype: np.dtype) -> bool:
    """Return True if numbers of a dtype need no conversion to the compute type."""
    return stored_as(dtype) == work.type and dtype != np.bool_


def rounds_to(dtype: np.dtype, other: np.dtype) -> bool:
    """Return True if `write` to another dtype converts sums of a dtype.

    It rounds, or drops high bits. Other conversions need the sums in their own dtype first.
    """
    if dtype == other:
        return True
    if dtype.kind in "iu":
        return other.kind in "iu" and other.itemsize <= dtype.itemsize
    return readable(other) and ((dtype == np.float32 and _half(other)) or (dtype == np.float64 and other == np.float32))


def read(f: Function, work: ComputeType, dtype: np.dtype, pointer: Value, lanes: int, mask: Value | None = None) -> Value:
    """Load `lanes` adjacent numbers in the compute type; zero where masked out."""
    found = load(f, stored_as(dtype), dtype.itemsize, pointer, lanes, mask)
    type_ = vector_of(work.type, lanes)
    if found.type == type_:
        return found
    if dtype == _BFLOAT16:
        wide = f.cast("zext", found, vector_of("i32", lanes))
        found = f.cast("bitcast", f.binary("shl", wide, f.splat(Value("i32", "16"), lanes)), vector_of("float", lanes))
    if dtype.kind == "f" or dtype == _BFLOAT16:
        return f.cast("fpext", found, type_)
    to_float = work.type in ("float", "double")  # because of the other operand's dtype
    return f.cast(("sitofp" if to_float else "sext") if dtype.kind == "i" else ("uitofp" if to_float else "zext"), found, type_)


def write(f: Function, work: ComputeType, dtype: np.dtype, value: Value, lanes: int, pointer: Value, mask: Value | None = None) -> None:
    """Convert numbers of the compute type to a dtype and store them under a mask."""
    type_ = vector_of(stored_as(dtype), lanes)
    if dtype == _BFLOAT16:
        value = _bfloat16_bits(f, value, lanes)
    elif value.type != type_:
        value = f.cast("fptrunc" if dtype.kind == "f" else "trunc", value, type_)
    if mask is None:
        f.store(value, pointer, dtype.itemsize)
    else:
        masked_store(f, value, pointer, dtype.itemsize, mask)


def load(f: Function, type_: str, itemsize: int, pointer: Value, lanes: int, mask: Value | None = None) -> Value:
    """Load a vector, zero where a mask leaves lanes out."""
    vector = vector_of(type_, lanes)
    return f.load(vector, pointer, itemsize) if mask is None else masked_load(f, vector, pointer, itemsize, mask)


def put(f: Function, work: ComputeType, value: Value, pointer: Value, room: int) -> None:
    """Store a register of the compute type, or as many lanes as there is room for."""
    mask = first_lanes(room, work.lanes)
    if mask is None:
        f.store(value, pointer, work.itemsize)
    else:
        masked_store(f, value, pointer, work.itemsize, mask)


def first_lanes(count: int, lanes: int) -> Value | None:
    """Return the mask of the first `count` lanes; None if these are all."""
    return None if count >= lanes else first_of(count, lanes)


def lanes_below(f: Function, count: Value, lanes: int) -> Value:
    """Emit the mask of the first `count` (an i64 that may exceed `lanes`) lanes."""
    numbers = Value(vector_of("i32", lanes), "<" + ", ".join(f"i32 {k}" for k in range(lanes)) + ">")
    capped = f.intrinsic("llvm.smin.i64", "i64", count, i64(lanes))
    return f.compare("icmp slt", numbers, f.splat(f.cast("trunc", capped, "i32"), lanes))


def _half(dtype: np.dtype) -> bool:
    return dtype == np.float16 or dtype == _BFLOAT16


def _bfloat16_bits(f: Function, value: Value, lanes: int) -> Value:
    """Emit the nearest bfloat16 numbers, ties to even, as integers; NaN stays NaN."""
    words = vector_of("i32", lanes)

    def number(n: int) -> Value:
        return f.splat(Value("i32", str(n)), lanes)

    if value.type != vector_of("float", lanes):
        value = f.cast("fptrunc", value, vector_of("float", lanes))
    bits = f.cast("bitcast", value, words)
    odd = f.binary("and", f.binary("lshr", bits, number(16)), number(1))
    rounded = f.binary("lshr", f.binary("add", f.binary("add", bits, number(0x7FFF)), odd), number(16))
    quiet = f.binary("or", f.binary("lshr", bits, number(16)), number(0x40))
    nan = f.compare("fcmp uno", value, value)
    return f.cast("trunc", f.select(nan, quiet, rounded), vector_of("i16", lanes))
