"""64-bit index arithmetic in LLVM text, with what is known while writing folded away."""

from __future__ import annotations

from volta_fn.backends.native.llvm.text import Function, Value, i64


def known(x: Value) -> int | None:
    """The number that a constant is; None for other values."""
    return None if x.name.startswith("%") else int(x.name)


def plus(f: Function, x: Value, y: Value) -> Value:
    """The sum."""
    a, b = known(x), known(y)
    if a is not None and b is not None:
        return i64(a + b)
    return y if a == 0 else x if b == 0 else f.binary("add nsw", x, y)


def times(f: Function, x: Value, factor: int) -> Value:
    """The product with a known number."""
    a = known(x)
    if a is not None:
        return i64(a * factor)
    return x if factor == 1 else f.binary("mul nsw", x, i64(factor))


def minus(f: Function, x: Value, y: Value) -> Value:
    """The difference."""
    a, b = known(x), known(y)
    if a is not None and b is not None:
        return i64(a - b)
    return x if b == 0 else f.binary("sub nsw", x, y)


def least(f: Function, x: Value, y: Value) -> Value:
    """The smaller number."""
    a, b = known(x), known(y)
    if a is not None and b is not None:
        return i64(min(a, b))
    return f.intrinsic("llvm.smin.i64", "i64", x, y)


def greatest(f: Function, x: Value, y: Value) -> Value:
    """The larger number."""
    a, b = known(x), known(y)
    if a is not None and b is not None:
        return i64(max(a, b))
    return f.intrinsic("llvm.smax.i64", "i64", x, y)


def divided(f: Function, x: Value, divisor: int) -> tuple[Value, Value]:
    """Quotient and remainder of a number that is not negative."""
    a = known(x)
    if a is not None:
        return i64(a // divisor), i64(a % divisor)
    if divisor == 1:
        return x, i64(0)
    quotient = f.binary("udiv", x, i64(divisor))
    return quotient, f.binary("sub nsw", x, times(f, quotient, divisor))


def rounded_down(f: Function, x: Value, unit: int) -> Value:
    """The greatest multiple of a unit, a power of two, up to a number."""
    a = known(x)
    return i64(a // unit * unit) if a is not None else x if unit == 1 else f.binary("and", x, i64(-unit))
