"""LLVM IR compiled to objects, and objects loaded."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from volta_fn.core.caches import Finalized
from volta_fn.errors import CompilerError
from volta_fn.runtime.internals.threads import emit, parse, run_passes
from volta_fn.runtime.llvm.host import Host, bind_half_rounding, host, llvm
from volta_fn.runtime.llvm.libraries import bind_lapack_symbols, bind_sort_symbols

#: Code that is never freed, and engines, which are freed some time after their code.
_permanent: list[LoadedCode] = []
_engines: Finalized[Any] = Finalized()
_lock = threading.Lock()
#: Machines that no thread compiles by now: a new one takes longer to describe the CPU than a small module takes.
_idle: list[tuple[Host | None, Any]] = []


def _target_machine() -> Any:
    # The loader relocates full addresses. It could not load several objects with an offset table each, as "pic" has.
    cpu_info = host()
    target = llvm().Target.from_triple(cpu_info.triple)
    return target.create_target_machine(cpu=cpu_info.cpu, features=cpu_info.features, opt=3, reloc="static", jit=True)


def compile_object(text: str, suffix: str = "", *, clean: bool = True) -> bytes:
    """Compile a module for this machine, with a suffix on all names that it defines.

    The text is expected to have the vectors and loops that it wants: the passes only clean up, unless `clean` is False.
    """
    cpu_info = host()
    try:
        made_for, machine = _idle.pop()
    except IndexError:
        made_for, machine = None, None
    if made_for is not cpu_info:
        machine = _target_machine()
        machine._owned = True  # by the list: llvmlite must not free it at the end of the process
    try:
        module = parse(text)
        module.triple = cpu_info.triple
        module.data_layout = str(machine.target_data)
        module.verify()
    except RuntimeError as error:
        raise CompilerError.of("code generation", f"LLVM refuses the module: {str(error).strip()}") from error
    if suffix:
        for named in (*module.functions, *module.global_variables):
            if not named.is_declaration:
                named.name += suffix
    if clean:
        _clean_up(machine, module)
    code = emit(machine, module)
    _idle.append((cpu_info, machine))
    return code


def _clean_up(machine: Any, module: Any) -> None:
    binding = llvm()
    builder = binding.create_pass_builder(machine, binding.create_pipeline_tuning_options(speed_level=1))
    passes = binding.create_new_module_pass_manager()
    passes.add_always_inliner_pass()
    passes.add_sroa_pass()
    passes.add_instruction_combine_pass()
    passes.add_simplify_cfg_pass()
    run_passes(passes, module, builder)


class LoadedCode:
    """The addresses of functions in loaded objects, which are freed after it."""

    def __init__(self, addresses: list[int]) -> None:
        self.addresses = addresses


def load_objects(codes: Sequence[bytes], symbols: Sequence[str]) -> LoadedCode:
    """Load objects, whose names differ, and return the addresses of functions.

    The objects stay loaded as long as the result lives.
    """
    binding = llvm()
    bind_half_rounding(codes, lambda text, symbols: load_object(compile_object(text), symbols))
    with _lock:  # engines are made one at a time
        _free_dropped()
        bind_lapack_symbols(codes)
        bind_sort_symbols(codes)
        engine = binding.create_mcjit_compiler(binding.parse_assembly(""), _target_machine())
        engine._owned = True  # by the code below: llvmlite must not free it, on whatever thread, and not at the end of the process
        for code in codes:
            engine.add_object_file(binding.object_file.ObjectFileRef.from_data(code))
        engine.finalize_object()
        loaded = LoadedCode([engine.get_function_address(symbol) for symbol in symbols])
        _engines.add(loaded, engine)
        return loaded


def _free_dropped() -> None:
    """Free the objects that nothing uses any more.

    That waits until others are loaded, since it takes llvmlite's lock, and the last reference may go in the main thread (see `compiling`).
    """
    for engine in _engines.drain():
        engine._owned = False
        engine.close()


def load_object(code: bytes, symbols: Sequence[str]) -> list[int]:
    """Load an object for as long as the process lives; see `load_objects`."""
    _permanent.append(load_objects([code], symbols))
    return _permanent[-1].addresses
