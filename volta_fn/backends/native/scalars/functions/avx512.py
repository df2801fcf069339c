"""Instructions of AVX-512 that take floats apart and put them together: exponents and significands, of subnormal numbers too."""

from __future__ import annotations

from collections.abc import Callable

from volta_fn.backends.native.llvm.host import host
from volta_fn.backends.native.llvm.text import Value
from volta_fn.backends.native.scalars.lanes import Lanes

#: The rounding mode that is set.
_CURRENT = Value("i32", "4")
#: A significand in [3/4, 3/2); NaN for negative numbers.
_FROM_THREE_QUARTERS = Value("i32", "15")


def has_instructions(x: Lanes) -> bool:
    """Whether this machine has them for vectors such as `x`, which fill a register or several."""
    return host().vector_bytes == 64 and x.lanes * x.bits >= 512


def scale(x: Lanes, n: Lanes) -> Lanes:
    """x 2^n for whole n, rounded once."""
    return _by_register("scalef", lambda a, b: [a.value, b.value, a.value, _all(a), _CURRENT], x, n)


def exponent(x: Lanes) -> Lanes:
    """The exponent of |x| as a float: -inf of 0, inf of infinities."""
    return _by_register("getexp", lambda a: [a.value, a.value, _all(a), _CURRENT], x)


def significand(x: Lanes) -> Lanes:
    """The number in [3/4, 3/2) that is x times a power of 2: 1 for zeros and inf, NaN for negative numbers."""
    return _by_register("getmant", lambda a: [a.value, _FROM_THREE_QUARTERS, a.value, _all(a), _CURRENT], x)


def _all(x: Lanes) -> Value:
    return Value(f"i{x.lanes}", "-1")


def _by_register(name: str, operands: Callable[..., list[Value]], *args: Lanes) -> Lanes:
    x = args[0]
    if x.lanes * x.bits > 512:
        parts = [range(x.lanes // 2), range(x.lanes // 2, x.lanes)]
        low, high = [_by_register(name, operands, *[a.taken(part) for a in args]) for part in parts]
        return low.taken(range(x.lanes), high)
    suffix = "ps" if x.bits == 32 else "pd"
    return x.new(x.f.intrinsic(f"llvm.x86.avx512.mask.{name}.{suffix}.512", x.type, *operands(*args)))
