"""The functions of llvmlite that take long, for several threads at once.

llvmlite has one lock around all of its functions, under which threads would compile one after another. LLVM asks for less: that modules
which threads work on at once belong to different contexts. These functions are called in the same library, without the lock.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any

from volta_fn.targets.cpu.llvm.host import llvm


@functools.cache
def _library() -> Any:
    library = ctypes.CDLL(llvm().ffi.lib._name)
    pointer = ctypes.c_void_p
    for name, result, arguments in (
        ("ParseAssembly", pointer, [pointer, ctypes.c_char_p, pointer]),
        ("RunNewModulePassManager", None, [pointer, pointer, pointer]),
        ("TargetMachineEmitToMemory", pointer, [pointer, pointer, ctypes.c_int, pointer]),
        ("GetBufferStart", pointer, [pointer]),
        ("GetBufferSize", ctypes.c_size_t, [pointer]),
        ("DisposeMemoryBuffer", None, [pointer]),
    ):
        function = getattr(library, f"LLVMPY_{name}")
        function.restype, function.argtypes = result, arguments
    return library


def parse(text: str) -> Any:
    """The module of a text, in a context of its own.

    Raises:
        RuntimeError: the text is no LLVM IR.
    """
    binding = llvm()
    context = binding.create_context()
    with binding.ffi.OutputString() as said:
        address = _library().LLVMPY_ParseAssembly(context, text.encode(), said)
        if said or not address:
            raise RuntimeError(f"LLVM cannot read this: {said}\n{text}")
    return binding.ModuleRef(ctypes.cast(address, binding.ffi.LLVMModuleRef), context)


def run_passes(passes: Any, module: Any, builder: Any) -> None:
    """Have a pass manager go over a module."""
    _library().LLVMPY_RunNewModulePassManager(passes, module, builder)


def emit(machine: Any, module: Any) -> bytes:
    """A module as an object.

    Raises:
        RuntimeError: LLVM has no code for something in it.
    """
    library = _library()
    with llvm().ffi.OutputString() as said:
        memory = library.LLVMPY_TargetMachineEmitToMemory(machine, module, 1, said)
        if not memory:
            raise RuntimeError(f"LLVM cannot compile this: {said}")
    try:
        return ctypes.string_at(library.LLVMPY_GetBufferStart(memory), library.LLVMPY_GetBufferSize(memory))
    finally:
        library.LLVMPY_DisposeMemoryBuffer(memory)
