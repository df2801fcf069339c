"""Numbers between memory and registers.

In memory bool is a byte, bfloat16 its bits, float16 `half`, and a complex number its two components one after another.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from volta_fn.runtime.llvm.host import host
from volta_fn.runtime.llvm.text import Function, Value, element_of, i64, lanes_of, vector_of
from volta_fn.targets.cpu.scalars.number import BFLOAT16, FLOAT16, Number, counting, element
from volta_fn.targets.cpu.scalars.values import Lanes, overload

#: Strides up to which vectors of neighbours are shuffled, which takes less time than reading numbers one by one.
_SHUFFLED = 4

#: The most lanes of a mask that fits a general register.
_HIDDEN = 64


class _Stride(NamedTuple):
    """Where the numbers of a vector lie: lane k at `first + k * step`.

    What lies up to `last` from each `k * step` may be read, too.
    """

    step: int
    first: int = 0
    last: int = 0


def stored_element(dtype: np.dtype) -> str:
    """Return the LLVM type of a number, or a complex one's component, in memory."""
    if dtype.kind == "b":
        return "i8"
    return {BFLOAT16: "i16", FLOAT16: "half"}.get(dtype) or element(dtype)


def load(
    f: Function,
    dtype: np.dtype,
    pointer: Value,
    lanes: int,
    *,
    count: Value | None = None,
    stride: int = 1,
    first: int = 0,
    last: int = 0,
) -> Number:
    """Load numbers, the first at `pointer`, each `stride` elements further.

    Of `count` (an i64) only so many lanes are read, at most all; the others are 0. `first` is added to the offset of each number. All
    offsets up to `last` must be readable, too: loads that differ in `first` alone then load the same vectors, and LLVM loads them once.
    """
    type_ = stored_element(dtype)
    size = dtype.itemsize
    if dtype.kind != "c":
        numbers = _read(f, type_, pointer, lanes, count, _Stride(stride, first, last), size)
        return Number(dtype, (_from_memory(dtype, numbers).value,))
    if stride != 1 or lanes == 1:
        components = [_Stride(2 * stride, 2 * first + k, 2 * last + 1) for k in (0, 1)]
        return Number(dtype, tuple([_read(f, type_, pointer, lanes, count, each, size // 2).value for each in components]))
    both = _read(f, type_, pointer, 2 * lanes, _twice(f, count), _Stride(1), size // 2)
    return Number(dtype, tuple([both.taken(range(k, 2 * lanes, 2)).value for k in (0, 1)]))


def store(f: Function, x: Number, pointer: Value, *, count: Value | None = None, stride: int = 1) -> None:
    """Store numbers, laid out as `load` reads them; of `count` only so many lanes."""
    dtype, lanes, size = x.dtype, x.lanes, x.dtype.itemsize
    components = [_to_memory(dtype, Lanes(f, p)) for p in x.components]
    if len(components) == 1:
        return _write(components[0], pointer, count, stride, size)
    if stride != 1 or lanes == 1:
        _write(components[0], pointer, count, 2 * stride, size // 2)
        return _write(components[1], f.at(pointer, stored_element(dtype), i64(1)), count, 2 * stride, size // 2)
    order = [k // 2 + lanes * (k % 2) for k in range(2 * lanes)]
    return _write(components[0].taken(order, components[1]), pointer, _twice(f, count), 1, size // 2)


def _twice(f: Function, count: Value | None) -> Value | None:
    return None if count is None else f.binary("shl", count, i64(1))


def _from_memory(dtype: np.dtype, x: Lanes) -> Lanes:
    if dtype.kind == "b":
        return x.compare("ne", 0)
    if dtype == BFLOAT16:
        return (x.cast("zext", "i32") << 16).as_float()
    return x.cast("fpext", "float") if dtype == FLOAT16 else x


def _to_memory(dtype: np.dtype, x: Lanes) -> Lanes:
    if dtype.kind == "b":
        return x.cast("zext", "i8")
    if dtype == BFLOAT16:
        return x.as_bits().shift_right(16).cast("trunc", "i16")
    return x.cast("fptrunc", "half") if dtype == FLOAT16 else x


def _read(f: Function, type_: str, pointer: Value, lanes: int, count: Value | None, stride: _Stride, align: int) -> Lanes:
    vector, step = vector_of(type_, lanes), stride.step
    if lanes > 1 and count is None and 2 <= step <= _SHUFFLED:
        return Lanes(f, _shuffled(f, type_, pointer, lanes, stride, align))
    if stride.first:
        pointer = f.at(pointer, type_, i64(stride.first))
    if lanes == 1:
        return Lanes(f, _read_one(f, type_, pointer, count, align))
    if step == 0:
        some = None if count is None else f.compare("icmp sgt", count, i64(0))
        return Lanes(f, _masked(f, f.splat(_read_one(f, type_, pointer, some, align), lanes), count))
    if step == 1 and count is None:
        return Lanes(f, f.load(vector, pointer, align))
    if step == -1 and count is None:
        return Lanes(f, f.taken(f.load(vector, f.at(pointer, type_, i64(1 - lanes)), align), range(lanes)[::-1]))
    zero = Value(vector, "zeroinitializer")
    width, mask = Value("i32", str(align)), _mask(f, lanes, count, type_)
    if step == 1:
        return Lanes(f, masked_load(f, vector, pointer, align, mask))
    where = _addresses(f, type_, pointer, lanes, step)
    return Lanes(f, f.intrinsic(f"llvm.masked.gather.{overload(vector)}.v{lanes}p0", vector, where, width, mask, zero))


def _shuffled(f: Function, type_: str, pointer: Value, lanes: int, stride: _Stride, align: int) -> Value:
    """Load vectors of neighbours, and shuffle them to have every so many numbers."""
    step, end = stride.step, (lanes - 1) * stride.step + stride.last + 1
    positions = [min(k * lanes, end - lanes) for k in range(step)]  # nothing is read beyond the end
    vectors = [f.load(vector_of(type_, lanes), f.at(pointer, type_, i64(position)), align) for position in positions]
    wanted = [lane * step + stride.first for lane in range(lanes)]
    found = vectors[0]
    if step % 2 and end == lanes * step:  # as lanes are a power of two, no two wanted numbers are in the same lane
        for position, vector in zip(positions[1:], vectors[1:], strict=True):
            found = f.taken(found, [k + lanes * (position + k in wanted) for k in range(lanes)], vector)
        return f.taken(found, [number % lanes for number in wanted])
    lane_of = wanted  # where the vector so far has the numbers that are wanted
    for vector, before, position in zip(vectors[1:], positions, positions[1:], strict=False):
        order = [n if k < before + lanes else lanes + min(k - position, lanes - 1) for n, k in zip(lane_of, wanted, strict=True)]
        found, lane_of = f.taken(found, order, vector), list(range(lanes))
    return found


def _write(x: Lanes, pointer: Value, count: Value | None, stride: int, align: int) -> None:
    f, lanes = x.f, x.lanes
    if lanes == 1:
        return _if_any(f, count, lambda: f.store(x.value, pointer, align))
    if stride == 1 and count is None:
        return f.store(x.value, pointer, align)
    width, mask = Value("i32", str(align)), _mask(f, lanes, count, element_of(x.type))
    if stride == 1:
        return masked_store(f, x.value, pointer, align, mask)
    name = f"llvm.masked.scatter.{overload(x.type)}.v{lanes}p0"
    where = _addresses(f, element_of(x.type), pointer, lanes, stride)
    f.module.declare(name, f"declare void @{name}({x.type}, {where.type}, i32, {mask.type})")
    return f.run(name, x.value, where, width, mask)


def masked_load(f: Function, vector: str, pointer: Value, align: int, mask: Value) -> Value:
    """Load a vector, zero where the mask leaves lanes out, which are not touched."""
    name = f"llvm.masked.load.{overload(vector)}.p0"
    f.module.declare(name, f"declare {vector} @{name}(ptr, {mask.type}, {vector})")
    return f.let(vector, f"call {vector} @{name}(ptr align {align} {pointer.name}, {mask}, {vector} zeroinitializer)")


def masked_store(f: Function, value: Value, pointer: Value, align: int, mask: Value) -> None:
    """Store the lanes of a vector that the mask has.

    LLVM (22, for AVX-512) makes of a truncation and a store with a mask of one known lane a store of the untruncated number, beyond the
    lane's bytes. So a lane known here is extracted, and masks of narrow integers that LLVM may find out later are hidden from it.
    """
    known = _known(mask)
    if sum(known) == 1:
        type_, lane = element_of(value.type), known.index(True)
        f.store(f.let(type_, f"extractelement {value}, i64 {lane}"), f.at(pointer, type_, i64(lane)), align)
    elif known and host().vector_registers < 32 and known == sorted(known, reverse=True):  # AMD's take ten cycles for a masked store of AVX
        _store_first(f, value, pointer, align, sum(known))
    else:
        if not known and host().vector_bytes == 64 and element_of(value.type) in ("i8", "i16", "i32"):
            if (lanes := lanes_of(mask.type)) > _HIDDEN:
                for start in range(0, lanes, _HIDDEN):
                    chunk = range(start, min(start + _HIDDEN, lanes))
                    there = f.at(pointer, element_of(value.type), i64(start))
                    masked_store(f, f.taken(value, chunk), there, align, f.taken(mask, chunk))
                return
            mask = _hidden(f, mask)
        name = f"llvm.masked.store.{overload(value.type)}.p0"
        f.module.declare(name, f"declare void @{name}({value.type}, ptr, {mask.type})")
        f.do(f"call void @{name}({value}, ptr align {align} {pointer.name}, {mask})")


def _hidden(f: Function, mask: Value) -> Value:
    """Emit a mask of which LLVM knows nothing; it passes through a general register."""
    bits = f"i{lanes_of(mask.type)}"
    word = f.cast("zext", f.cast("bitcast", mask, bits), "i64")
    hidden = f.let("i64", f'call i64 asm "", "=r,0"({word}) nounwind memory(none)')
    return f.cast("bitcast", f.cast("trunc", hidden, bits), mask.type)


def first_of(count: int, lanes: int) -> Value:
    """Return the mask of the first `count` lanes."""
    bits = ", ".join(f"i1 {'true' if lane < count else 'false'}" for lane in range(lanes))
    return Value(vector_of("i1", lanes), f"<{bits}>")


def _known(mask: Value) -> list[bool]:
    """Return which lanes a known mask has; nothing of an unknown one."""
    return [lane.endswith("true") for lane in mask.name.strip("<>").split(",")] if mask.name.startswith("<") else []


def _store_first(f: Function, value: Value, pointer: Value, align: int, count: int) -> None:
    """Store the first lanes, as vectors of so many as are powers of two."""
    type_, start = element_of(value.type), 0
    for size in (1 << k for k in range(count.bit_length() - 1, -1, -1)):
        if count & size:
            if size > 1:
                component = f.taken(value, range(start, start + size))
            else:
                component = f.let(type_, f"extractelement {value}, i64 {start}")
            f.store(component, f.at(pointer, type_, i64(start)), align)
            start += size


def _read_one(f: Function, type_: str, pointer: Value, condition: Value | None, align: int) -> Value:
    """Load a number, or 0 unless `condition` (an i1, or a count)."""
    if condition is None:
        return f.load(type_, pointer, align)
    some = condition if condition.type == "i1" else f.compare("icmp sgt", condition, i64(0))
    zero = Value(type_, "0" if type_.startswith("i") else "0xH0000" if type_ == "half" else "0.0")
    return f.branch(some, lambda: [f.load(type_, pointer, align)], lambda: [zero])[0]


def _if_any(f: Function, count: Value | None, write: Callable[[], None]) -> None:
    def written() -> list[Value]:
        write()
        return []

    if count is None:
        write()
    else:
        f.branch(f.compare("icmp sgt", count, i64(0)), written)


def _masked(f: Function, x: Value, count: Value | None) -> Value:
    if count is None:
        return x
    mask = _mask(f, lanes_of(x.type), count, "i32")
    return f.select(mask, x, Value(x.type, "zeroinitializer"))


def _mask(f: Function, lanes: int, count: Value | None, type_: str) -> Value:
    """Return a mask of the first `count` lanes.

    It compares integers as wide as the numbers.
    """
    if count is None:
        return f.splat(Value("i1", "true"), lanes)
    if count.name.isdigit():
        return first_of(int(count.name), lanes)
    integer = {"half": "i16", "float": "i32", "double": "i64"}.get(type_, type_)
    if integer == "i8" and lanes >= 256:
        integer = "i32"
    return counting(f, integer, lanes).compare("ult", Lanes(f, f.splat(f.cast("trunc", count, integer), lanes))).value


def _addresses(f: Function, type_: str, pointer: Value, lanes: int, stride: int) -> Value:
    offsets = counting(f, "i64", lanes) * stride
    return f.let(f"<{lanes} x ptr>", f"getelementptr inbounds {type_}, {pointer}, {offsets.value}")
