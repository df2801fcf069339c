"""llvmlite's slow functions, called so that several threads compile at once.

llvmlite has one lock around all of its functions, under which threads compile one after another. LLVM asks for less: that modules which
threads work on at once belong to different contexts. These functions are called in the same library, without the lock. Two threads compile
the routines of a program in about half the time.

Where llvmlite's library lacks these functions, or they have other parameters, llvmlite's own are called, and threads wait for one another.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any

from volta_fn.runtime.llvm.host import llvm

_POINTER = ctypes.c_void_p
#: Functions of llvmlite's library: name, type of the result, types of the arguments.
_FUNCTIONS = (
    ("ParseAssembly", _POINTER, [_POINTER, ctypes.c_char_p, _POINTER]),
    ("RunNewModulePassManager", None, [_POINTER, _POINTER, _POINTER]),
    ("TargetMachineEmitToMemory", _POINTER, [_POINTER, _POINTER, ctypes.c_int, _POINTER]),
    ("GetBufferStart", _POINTER, [_POINTER]),
    ("GetBufferSize", ctypes.c_size_t, [_POINTER]),
    ("DisposeMemoryBuffer", None, [_POINTER]),
)


@functools.cache
def _library() -> Any:
    """Load llvmlite's library; None unless it declares all functions as here."""
    ffi = llvm().ffi
    try:
        library = ctypes.CDLL(ffi.lib._name)
        for name, result, arguments in _FUNCTIONS:
            declared = getattr(ffi.lib, f"LLVMPY_{name}").argtypes
            if declared is None or len(declared) != len(arguments):
                return None
            function = getattr(library, f"LLVMPY_{name}")
            function.restype, function.argtypes = result, arguments
    except (AttributeError, OSError, TypeError):
        return None
    return library


def parse(text: str) -> Any:
    """Parse LLVM IR into a module with a context of its own.

    Raises:
        RuntimeError: The text is not LLVM IR.
    """
    binding, library = llvm(), _library()
    context = binding.create_context()
    if library is None:
        return binding.parse_assembly(text, context)
    with binding.ffi.OutputString() as message:
        address = library.LLVMPY_ParseAssembly(context, text.encode(), message)
        if message or not address:
            raise RuntimeError(f"LLVM cannot parse this module: {message}\n{text}")
    return binding.ModuleRef(ctypes.cast(address, binding.ffi.LLVMModuleRef), context)


def run_passes(passes: Any, module: Any, builder: Any) -> None:
    """Run a pass manager over a module."""
    library = _library()
    if library is None:
        passes.run(module, builder)
    else:
        library.LLVMPY_RunNewModulePassManager(passes, module, builder)


def emit(machine: Any, module: Any) -> bytes:
    """Compile a module to an object file.

    Raises:
        RuntimeError: LLVM has no code for something in it.
    """
    library = _library()
    if library is None:
        compiled: bytes = machine.emit_object(module)
        return compiled
    with llvm().ffi.OutputString() as message:
        memory = library.LLVMPY_TargetMachineEmitToMemory(machine, module, 1, message)
        if not memory:
            raise RuntimeError(f"LLVM cannot compile this module: {message}")
    try:
        return ctypes.string_at(library.LLVMPY_GetBufferStart(memory), library.LLVMPY_GetBufferSize(memory))
    finally:
        library.LLVMPY_DisposeMemoryBuffer(memory)
