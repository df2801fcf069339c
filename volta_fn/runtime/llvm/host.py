"""The CPU that code is compiled for: its name, features and vector width."""

from __future__ import annotations

import functools
import os
import threading
from typing import Any, NamedTuple

from volta_fn.errors import ArgumentError
from volta_fn.lazy_imports import is_installed, load

_lock = threading.Lock()


class Host(NamedTuple):
    """The CPU, as LLVM describes it."""

    triple: str
    cpu: str
    features: str
    #: Bytes of a vector register, and how many of them there are.
    vector_bytes: int
    vector_registers: int

    def lanes(self, itemsize: int) -> int:
        """Return how many elements of `itemsize` bytes a vector register holds."""
        return self.vector_bytes // itemsize


def may_compile() -> bool:
    """Return True if llvmlite is installed and VOLTA_NATIVE is not 0."""
    return os.environ.get("VOLTA_NATIVE", "1") != "0" and os.name == "posix" and is_installed("llvmlite")


def lacks_compiler() -> bool:
    """Return True if only llvmlite is missing for machine code."""
    return os.environ.get("VOLTA_NATIVE", "1") != "0" and os.name == "posix" and not is_installed("llvmlite")


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
    found = llvm().get_host_cpu_features()
    return [16] + [32] * bool(found.get("avx2")) + [64] * bool(found.get("avx512f"))


@functools.cache
def host() -> Host:
    """Return this CPU, with vectors of VOLTA_VECTOR_BYTES bytes or else the widest.

    Raises:
        ArgumentError: VOLTA_VECTOR_BYTES is no width that this CPU has.
    """
    binding, widths = llvm(), vector_widths()
    wanted = os.environ.get("VOLTA_VECTOR_BYTES") or str(widths[-1])
    if wanted not in map(str, widths):
        raise ArgumentError(f"VOLTA_VECTOR_BYTES is {wanted!r}; this CPU has vectors of {' or '.join(map(str, widths))} bytes")
    vector_bytes, triple = int(wanted), binding.get_process_triple()
    features = binding.get_host_cpu_features().flatten()
    features += _WITHOUT[vector_bytes] if vector_bytes < widths[-1] else ",-prefer-256-bit" if vector_bytes == 64 else ""
    registers = 32 if vector_bytes == 64 or triple.startswith(("aarch64", "arm64")) else 16
    return Host(triple, binding.get_host_cpu_name(), features, vector_bytes, registers)
