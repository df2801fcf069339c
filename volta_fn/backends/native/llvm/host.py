"""The CPU that code is compiled for: its name, its features, and how wide its vectors are."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
import threading
from typing import Any, NamedTuple

_lock = threading.Lock()


class Host(NamedTuple):
    """What the compiler is told of the CPU."""

    triple: str
    cpu: str
    features: str
    #: Bytes of a vector register, and how many of them there are.
    vector_bytes: int
    vector_registers: int

    def lanes(self, itemsize: int) -> int:
        """How many elements of so many bytes a vector register holds."""
        return self.vector_bytes // itemsize


def may_compile() -> bool:
    """Whether there may be machine code: llvmlite is there, and VOLTA_NATIVE does not say no."""
    return os.environ.get("VOLTA_NATIVE", "1") != "0" and os.name == "posix" and importlib.util.find_spec("llvmlite") is not None


def llvm() -> Any:
    """llvmlite's binding, imported when it is first wanted. Raises `ImportError` where it is not installed."""
    with _lock:  # an option may be set but once
        return _initialized()


@functools.cache
def _initialized() -> Any:
    binding = importlib.import_module("llvmlite.binding")
    # Reducing the strength of loops' arithmetic would take half of the time of compiling, and loops here say what they want.
    binding.set_option("volta_fn", "-disable-lsr")
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    return binding


@functools.cache
def host() -> Host:
    """This machine."""
    binding = llvm()
    found = binding.get_host_cpu_features()
    wide = bool(found.get("avx512f"))
    features = found.flatten() + (",-prefer-256-bit" if wide else "")
    vector_bytes = 64 if wide else 32 if found.get("avx2") else 16
    triple = binding.get_process_triple()
    registers = 32 if wide or triple.startswith(("aarch64", "arm64")) else 16
    return Host(triple, binding.get_host_cpu_name(), features, vector_bytes, registers)
