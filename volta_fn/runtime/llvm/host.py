"""The CPU that code is compiled for, and rounding that LLVM lacks for some."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple, ParamSpec, TypeVar

from volta_fn.errors import ArgumentError
from volta_fn.lazy_imports import load

_lock = threading.Lock()

P = ParamSpec("P")
T = TypeVar("T")


class Host(NamedTuple):
    """The CPU, as LLVM describes it."""

    triple: str
    cpu: str
    features: str
    #: Bytes of a vector register, and how many of them there are.
    vector_bytes: int
    vector_registers: int

    def has(self, feature: str) -> bool:
        """Return True if LLVM lists a feature of the CPU, as "avx512bf16".

        A feature of registers wider than `vector_bytes` may be listed: whoever asks for one checks the width.
        """
        return f"+{feature}" in self.features.split(",")

    def lanes(self, itemsize: int) -> int:
        """Return how many elements of `itemsize` bytes a vector register holds."""
        return self.vector_bytes // itemsize

    @property
    def has_fma(self) -> bool:
        """Whether an instruction multiplies and adds with one rounding."""
        return self.has("fma") if self.triple.startswith("x86") else self.triple.startswith(("aarch64", "arm64"))

    @property
    def is_windows(self) -> bool:
        """Whether the operating system is Windows."""
        return "-windows-" in self.triple

    @property
    def converts_float16(self) -> bool:
        """Whether instructions convert float16."""
        return self.has("f16c") or self.triple.startswith(("aarch64", "arm64"))


def llvm() -> Any:
    """Import llvmlite's binding on first use.

    Raises:
        ImportError: llvmlite is not installed.
    """
    with _lock:  # options can be set only once
        return _initialized()


@functools.cache
def _initialized() -> Any:
    binding = load("llvmlite.binding")
    # Loop strength reduction would take half of the compile time, and loops are written as they should be.
    binding.set_option("volta_fn", "-disable-lsr")
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    return binding


#: Features to switch off to leave vector registers of at most this many bytes.
_WITHOUT = {16: ",-avx2", 32: ",-avx512f"}


def vector_widths() -> list[int]:
    """Return the vector widths that this CPU computes with, in bytes, ascending."""
    features = llvm().get_host_cpu_features()
    return [16] + [32] * bool(features.get("avx2")) + [64] * bool(features.get("avx512f"))


#: The machine that code is generated for in this context, if that is not this CPU.
_other_machine: ContextVar[Host | None] = ContextVar("other_machine", default=None)


def host() -> Host:
    """Return the machine that code is generated for.

    That is this CPU, unless `generating_for` names another.
    """
    return _other_machine.get() or this_cpu()


def is_this_cpu() -> bool:
    """Return True if code is generated for this CPU.

    Then it may call functions of this process.
    """
    return _other_machine.get() is None


@contextmanager
def generating_for(machine: Host) -> Iterator[None]:
    """Have routines generated for another machine within the block."""
    token = _other_machine.set(machine)
    try:
        yield
    finally:
        _other_machine.reset(token)


def cache_for_host(function: Callable[P, T]) -> Callable[P, T]:
    """Cache what a function returns for each machine and its arguments."""
    results: dict[tuple[Any, ...], T] = {}

    @functools.wraps(function)
    def cached(*args: P.args, **kwargs: P.kwargs) -> T:
        key = (host(), args, tuple(kwargs.items()))
        if key not in results:
            results[key] = function(*args, **kwargs)
        return results[key]

    return cached


@functools.cache
def this_cpu() -> Host:
    """Return this CPU, with vectors of VOLTA_VECTOR_BYTES bytes or else the widest.

    Raises:
        ArgumentError: VOLTA_VECTOR_BYTES is no width that this CPU has.
    """
    binding, widths = llvm(), vector_widths()
    width = os.environ.get("VOLTA_VECTOR_BYTES") or str(widths[-1])
    if width not in map(str, widths):
        raise ArgumentError(f"VOLTA_VECTOR_BYTES is {width!r}; this CPU has vectors of {' or '.join(map(str, widths))} bytes")
    vector_bytes, triple = int(width), binding.get_process_triple()
    features = binding.get_host_cpu_features().flatten()
    features += _WITHOUT[vector_bytes] if vector_bytes < widths[-1] else ",-prefer-256-bit" if vector_bytes == 64 else ""
    registers = 32 if vector_bytes == 64 or triple.startswith(("aarch64", "arm64")) else 16
    return Host(triple, binding.get_host_cpu_name(), features, vector_bytes, registers)


# Rounding of float64 to float16, which LLVM's code for some CPUs calls.
#
# LLVM replaces some roundings in two steps by one, which x86's instructions do not have: it calls a function of the compiler's library,
# which is in no library that Python has loaded. This is that function.

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


def bind_half_rounding(codes: Iterable[bytes], load_module: Callable[[str, Sequence[str]], list[int]]) -> None:
    """Bind the function for objects that call it.

    `load_module` compiles and loads a module, and returns addresses.
    """
    if any(SYMBOL.encode() in code for code in codes):
        _bind(load_module)


@functools.cache
def _bind(load_module: Callable[[str, Sequence[str]], list[int]]) -> None:
    (address,) = load_module(_TEXT, ["volta_fn_half_of_double"])
    llvm().add_symbol(SYMBOL, address)
