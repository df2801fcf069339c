"""Index vectors as offsets: where in the operand each window of a gather or scatter begins, and whether it lies inside."""

from __future__ import annotations

from volta_fn.codegen.geometry.window_offsets import Starts, WindowStart, window_start
from volta_fn.runtime.llvm.index_arith import clamped, widened
from volta_fn.runtime.llvm.text import Function, Value, i64


def start_of(f: Function, starts: Starts, indices: Value, number: Value) -> WindowStart[Value]:
    """Emit the start of the window of a number, by the index vectors at an address."""
    kind = starts.indices.dtype
    type_ = f"i{8 * kind.itemsize}"

    def clamp(position: Value, limit: int) -> tuple[Value, Value | None]:
        index = widened(f, f.load(type_, f.at(indices, type_, position), kind.itemsize), kind.kind == "i")
        inside = clamped(f, index, limit)
        return inside, None if starts.clips else f.compare("icmp ule", index, i64(limit))

    return window_start(f, starts, clamp, lambda x, y: f.binary("and", x, y), number)
