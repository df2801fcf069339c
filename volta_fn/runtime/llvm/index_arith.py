"""Arithmetic of 64-bit indices in LLVM IR, with constants folded.

What shapes decide therefore costs nothing when the code runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from volta_fn.runtime.llvm.text import Function, Value, i64, vector_of


def rounded_down(f: Function, x: Value, unit: int) -> Value:
    """Emit the greatest multiple of `unit`, a power of two, up to x."""
    a = f.known(x)
    return i64(a // unit * unit) if a is not None else x if unit == 1 else f.binary("and", x, i64(-unit))


def least(f: Function, x: Value, y: Value) -> Value:
    """Emit the minimum of x and y."""
    a, b = f.known(x), f.known(y)
    return i64(min(a, b)) if a is not None and b is not None else f.intrinsic("llvm.smin.i64", "i64", x, y)


def greatest(f: Function, x: Value, y: Value) -> Value:
    """Emit the maximum of x and y."""
    a, b = f.known(x), f.known(y)
    return i64(max(a, b)) if a is not None and b is not None else f.intrinsic("llvm.smax.i64", "i64", x, y)


def clamped(f: Function, x: Value, limit: int) -> Value:
    """Emit x clamped to [0, limit]."""
    return least(f, greatest(f, x, i64(0)), i64(limit))


def widened(f: Function, x: Value, signed: bool) -> Value:
    """Emit an integer as one of 64 bits; too large unsigned ones become the largest."""
    if x.type == "i64":
        return x if signed else f.intrinsic("llvm.umin.i64", "i64", x, i64(2**63 - 1))
    return f.cast("sext" if signed else "zext", x, "i64")


def counting(lanes: int, type_: str = "i64") -> Value:
    """Return the constant vector 0, 1, 2, …, or the number 0 for one lane."""
    if lanes == 1:
        return Value(type_, "0")
    return Value(vector_of(type_, lanes), f"<{', '.join(f'{type_} {k}' for k in range(lanes))}>")


def nest(f: Function, sizes: Sequence[int], body: Callable[[list[Value]], None], first: tuple[Value, Value] | None = None) -> None:
    """Emit nested loops, whose `body` gets one index per size.

    `first` is the range of the outermost loop, if it is not all of it.
    """

    def level(depth: int, indices: list[Value]) -> None:
        if depth == len(sizes):
            body(indices)
            return
        begin, end = first if first and not depth else (i64(0), i64(sizes[depth]))
        if f.known(begin) is not None and f.known(end) == (f.known(begin) or 0) + 1:
            level(depth + 1, [*indices, begin])
            return

        def iteration(i: Value, _: list[Value]) -> list[Value]:
            level(depth + 1, [*indices, i])
            return []

        f.loop(begin, end, 1, [], iteration)

    level(0, [])
