"""AVX-512 instructions that split floats into exponent and significand."""

from __future__ import annotations

from collections.abc import Callable

from volta_fn.runtime.llvm.host import host
from volta_fn.runtime.llvm.text import Function, Value, element_of, lanes_of

#: The rounding mode that is set.
_CURRENT = Value("i32", "4")
#: A significand in [3/4, 3/2); NaN for negative numbers.
_FROM_THREE_QUARTERS = Value("i32", "15")
_WIDTH = {"float": 32, "double": 64}


def has_instructions(x: Value) -> bool:
    """Return True if this machine has them for vectors such as `x`."""
    return host().vector_bytes == 64 and lanes_of(x.type) * _WIDTH[element_of(x.type)] >= 512


def scale(f: Function, x: Value, n: Value) -> Value:
    """Return x 2^n for integers n, rounded once."""
    return _by_register(f, "scalef", lambda a, b: [a, b, a, _all(a), _CURRENT], x, n)


def exponent(f: Function, x: Value) -> Value:
    """Return the exponent of |x| as a float: -inf of 0, inf of infinities."""
    return _by_register(f, "getexp", lambda a: [a, a, _all(a), _CURRENT], x)


def significand(f: Function, x: Value) -> Value:
    """Return the number in [3/4, 3/2) that is x times a power of 2.

    It is 1 for zeros and inf, NaN for negative numbers.
    """
    return _by_register(f, "getmant", lambda a: [a, _FROM_THREE_QUARTERS, a, _all(a), _CURRENT], x)


def _all(x: Value) -> Value:
    return Value(f"i{lanes_of(x.type)}", "-1")


def _by_register(f: Function, name: str, operands: Callable[..., list[Value]], *args: Value) -> Value:
    lanes, width = lanes_of(args[0].type), _WIDTH[element_of(args[0].type)]
    if lanes * width > 512:
        halves = [range(lanes // 2), range(lanes // 2, lanes)]
        low, high = [_by_register(f, name, operands, *[f.taken(a, half) for a in args]) for half in halves]
        return f.taken(low, range(lanes), high)
    suffix = "ps" if width == 32 else "pd"
    return f.intrinsic(f"llvm.x86.avx512.mask.{name}.{suffix}.512", args[0].type, *operands(*args))
