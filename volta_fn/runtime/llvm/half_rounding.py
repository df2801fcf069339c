"""Rounding of float64 to float16, which LLVM's code for some CPUs calls.

LLVM replaces some roundings in two steps by one, which x86's instructions do not have: it calls a function of the compiler's library, which
is in no library that Python has loaded. This is that function.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence

from volta_fn.runtime.llvm.host import llvm

#: The name by which objects call it.
SYMBOL = "__truncdfhf2"

#: It rounds to float32 first, to odd where that is inexact, so that the second rounding is as if it were the first.
_TEXT = """
define half @volta_fn_half_of_double(double %x) {
  %near = fptrunc double %x to float
  %wide = fpext float %near to double
  %bits = bitcast float %near to i32
  %size = call double @llvm.fabs.f64(double %x)
  %reached = call double @llvm.fabs.f64(double %wide)
  %beyond = fcmp ogt double %size, %reached
  %up = add i32 %bits, 1
  %down = sub i32 %bits, 1
  %moved = select i1 %beyond, i32 %up, i32 %down
  %last = and i32 %bits, 1
  %even = icmp eq i32 %last, 0
  %inexact = fcmp one double %x, %wide
  %finite = fcmp olt double %reached, 0x7FF0000000000000
  %both = and i1 %even, %inexact
  %moves = and i1 %both, %finite
  %odd = select i1 %moves, i32 %moved, i32 %bits
  %single = bitcast i32 %odd to float
  %half = fptrunc float %single to half
  ret half %half
}

declare double @llvm.fabs.f64(double)
"""


def bind_symbols(codes: Iterable[bytes], load: Callable[[str, Sequence[str]], list[int]]) -> None:
    """Bind the function for objects that call it.

    `load` compiles and loads a module, and returns addresses.
    """
    if any(SYMBOL.encode() in code for code in codes):
        _bind(load)


@functools.cache
def _bind(load: Callable[[str, Sequence[str]], list[int]]) -> None:
    (address,) = load(_TEXT, ["volta_fn_half_of_double"])
    llvm().add_symbol(SYMBOL, address)
