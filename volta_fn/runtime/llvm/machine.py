"""Objects: LLVM IR compiled and loaded, and functions of NumPy and SciPy for it."""

from __future__ import annotations

import ctypes
import functools
import os
import re
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from volta_fn.core.caches import Finalized
from volta_fn.errors import CompilerError
from volta_fn.lazy_imports import is_installed, load
from volta_fn.runtime.llvm.host import Host, bind_half_rounding, host, llvm
from volta_fn.runtime.native_calls import emit, parse, run_passes
from volta_fn.runtime.result_allocator import numpy_function
from volta_fn.runtime.threads import thread_count

# NumPy's sorts as functions that machine code calls.
#
# They sort contiguous numbers of one dtype in place by vector instructions, in a fourth of the time of a radix sort, and need neither
# an array nor Python's lock. An object names them by symbols that begin with `SORT_PREFIX`; a process binds these to its own addresses when
# it loads the object. NumPy publishes their addresses for extensions, in the table of functions that each dtype has.

#: The prefix of the symbols of sorts.
SORT_PREFIX = "volta_numpy_sort_"
_SORT_SYMBOL = re.compile(SORT_PREFIX.encode() + rb"([fiu][248])")
#: PyDataType_GetArrFuncs in NumPy's table of functions for extensions, and where a dtype's own table has its first sort.
_TABLE_OF, _SORT = 365, 33

#: ``int sort(void *start, intptr_t count, void *array)``, of which numbers ignore the array.
_SORT_FUNCTION = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_void_p)


@functools.cache
def sort_address(dtype: np.dtype) -> int | None:
    """Return the address of the sort of a dtype; None where it is not known."""
    try:
        table = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object)(numpy_function(_TABLE_OF))(dtype)
    except (AttributeError, LookupError, TypeError, ValueError):
        return None
    address = ctypes.c_size_t.from_address(table + _SORT * ctypes.sizeof(ctypes.c_size_t)).value
    return address if address and _sorts(address, dtype) else None


def _sorts(function: int, dtype: np.dtype) -> bool:
    """Try the function on numbers in falling order."""
    numbers = np.arange(100, dtype=dtype)[::-1].copy()
    return not _SORT_FUNCTION(function)(numbers.ctypes.data, numbers.size, None) and np.array_equal(numbers, np.arange(100))


def sort_symbol(dtype: np.dtype) -> str:
    """Return the name by which objects call the sort of a dtype."""
    return f"{SORT_PREFIX}{dtype.kind}{dtype.itemsize}"


def bind_sort_symbols(codes: Iterable[bytes]) -> None:
    """Bind the functions that objects call to their addresses in this process."""
    for name in {match.decode() for code in codes for match in _SORT_SYMBOL.findall(code)}:
        address = sort_address(np.dtype(name))
        assert address is not None, "objects of another version of NumPy are not loaded"
        llvm().add_symbol(SORT_PREFIX + name, address)


# SciPy's BLAS and LAPACK as functions that machine code calls.
#
# SciPy publishes their addresses for C (`scipy.linalg.cython_blas` and `cython_lapack`, in Fortran's convention: all arguments are
# pointers). An object names those that it calls by symbols that begin with `LAPACK_PREFIX`; a process binds these to its own addresses
# when it loads the object, so that objects on disk hold no addresses. The functions need no lock of Python's, and may run on any thread.
#
# OpenBLAS, which SciPy's wheels bring, has threads of its own. Routines that share their matrices among the threads of a program have it
# compute on the calling thread meanwhile, and those of single large matrices on as many threads as a program has.

#: The prefix of the symbols of LAPACK's and BLAS's functions.
LAPACK_PREFIX = "volta_lapack_"
#: The symbols of OpenBLAS's functions that set and return its number of threads, and of the record in which routines keep it.
SET_THREADS, GET_THREADS, THREADS = (f"{LAPACK_PREFIX}{name}" for name in ("setthreads", "getthreads", "threads"))
#: The record's words: a lock, OpenBLAS's number of threads before the first of the routines at work, the most that these may have it use,
#: how many of them have it compute on one thread, and how many on more.
WORDS = 5
_BEFORE, _MOST, _COUNTS = 1, 2, slice(3, 5)
_threads = np.zeros(WORDS, np.int64)
_LAPACK_SYMBOL = re.compile(LAPACK_PREFIX.encode() + rb"([a-z0-9]+)")
#: The type of integers in the signatures of functions that take 32-bit ones.
_INTEGERS = b"int *"


@functools.cache
def has_lapack() -> bool:
    """Return True if SciPy is installed and its functions take 32-bit integers."""
    return is_installed("scipy") and _INTEGERS in _signature(_capsule("dgetrf"))


@functools.cache
def lapack_address(name: str) -> int:
    """Return the address of a function, as ``dgetrf``.

    Raises:
        KeyError: SciPy has no such function.
    """
    capsule = _capsule(name)
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    address: int = pointer(capsule, _signature(capsule))
    return address


def bind_lapack_symbols(codes: Iterable[bytes]) -> None:
    """Bind the functions that objects call to their addresses in this process."""
    _threads[_MOST] = thread_count()
    for name in {match.decode() for code in codes for match in _LAPACK_SYMBOL.findall(code)}:
        symbol = LAPACK_PREFIX + name
        llvm().add_symbol(symbol, _thread_control()[symbol] if symbol in (SET_THREADS, GET_THREADS, THREADS) else lapack_address(name))


def _thread_control() -> dict[str, int]:
    """Return the addresses for the number of threads; without OpenBLAS, of no effect."""
    # A function without arguments ignores them, and this one says 1.
    library = ctypes.CDLL(load("scipy.linalg.cython_lapack").__file__)
    idle = ctypes.pythonapi.Py_IsInitialized
    setter, getter = (getattr(library, f"scipy_openblas_{name}_num_threads", idle) for name in ("set", "get"))
    return {
        SET_THREADS: ctypes.cast(setter, ctypes.c_void_p).value or 0,
        GET_THREADS: ctypes.cast(getter, ctypes.c_void_p).value or 0,
        THREADS: _threads.ctypes.data,
    }


def _forget_routines() -> None:
    """Restore OpenBLAS's number of threads in a forked child."""
    # It inherits none of the routines at work.
    if _threads[_COUNTS].any():
        ctypes.CFUNCTYPE(None, ctypes.c_int)(_thread_control()[SET_THREADS])(int(_threads[_BEFORE]))
    _threads[0] = 0
    _threads[_COUNTS] = 0


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_routines)


def workspace_size(name: str, *arguments: str | int | None, dtype: np.dtype, after: int = 1) -> int:
    """Ask a function how many elements of `dtype` it wants as workspace.

    The arguments are those before the workspace, None for arrays; `after` counts those that follow the workspace's size.
    """
    answer = np.zeros(1, dtype)
    pointers: list[Any] = [ctypes.byref(_argument(value)) for value in [*arguments, None, -1, *[-1] * after]]
    pointers[len(arguments)] = ctypes.c_void_p(answer.ctypes.data)
    ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * len(pointers))(lapack_address(name))(*pointers)
    return max(1, int(answer[0].real))


def _argument(value: str | int | None) -> Any:
    if isinstance(value, str):
        return ctypes.create_string_buffer(value.encode())
    return ctypes.c_int64(-1 if value is None else value)


def _capsule(name: str) -> Any:
    for module in ("scipy.linalg.cython_lapack", "scipy.linalg.cython_blas"):
        capsules = load(module).__pyx_capi__
        if name in capsules:
            return capsules[name]
    raise KeyError(name)


def _signature(capsule: Any) -> bytes:
    name = ctypes.pythonapi.PyCapsule_GetName
    name.restype, name.argtypes = ctypes.c_char_p, [ctypes.py_object]
    signature: bytes = name(capsule)
    return signature


# LLVM IR compiled to objects, and objects loaded.

#: Code that is never freed, and engines, which are freed some time after their code.
_permanent: list[LoadedCode] = []
_engines: Finalized[Any] = Finalized()
_lock = threading.Lock()
#: Target machines, by their hosts, that no thread uses: a new one takes longer to describe the CPU than a small module takes.
_idle: dict[Host, list[Any]] = {}


def _target_machine() -> Any:
    # The loader relocates full addresses. It could not load several objects with an offset table each, as "pic" has.
    cpu_info = host()
    target = llvm().Target.from_triple(cpu_info.triple)
    return target.create_target_machine(cpu=cpu_info.cpu, features=cpu_info.features, opt=3, reloc="static", jit=True)


def compile_object(text: str, suffix: str = "", *, clean: bool = True) -> bytes:
    """Compile a module for this machine, with a suffix on all names that it defines.

    The text is expected to have the vectors and loops that it wants: the passes only clean up, unless `clean` is False.

    Raises:
        CompilerError: The text is not LLVM IR, or LLVM has no code for something in it.
    """
    idle = _idle.setdefault(host(), [])
    try:
        machine = idle.pop()
    except IndexError:
        machine = _target_machine()
        machine._owned = True  # by the list: llvmlite must not free it at the end of the process
    try:
        with compiler_errors():
            module = parse(text)
            module.triple = machine.triple  # with another format of objects than the process's on Windows
            module.data_layout = str(machine.target_data)
            module.verify()
            if suffix:
                for named in (*module.functions, *module.global_variables):
                    if not named.is_declaration:
                        named.name += suffix
            if clean:
                passes, builder = cleaning_passes(machine)
                run_passes(passes, module, builder)
            return emit(machine, module)
    finally:
        idle.append(machine)


@contextmanager
def compiler_errors() -> Iterator[None]:
    """Raise errors of LLVM within the block as those of the compiler."""
    try:
        yield
    except RuntimeError as error:
        raise CompilerError.of("code generation", f"LLVM refuses the module: {str(error).strip()}") from error


def cleaning_passes(machine: Any) -> tuple[Any, Any]:
    """Return passes that inline functions and simplify, and what they run with."""
    binding = llvm()
    passes = binding.create_new_module_pass_manager()
    passes.add_always_inliner_pass()
    passes.add_sroa_pass()
    passes.add_instruction_combine_pass()
    passes.add_simplify_cfg_pass()
    return passes, binding.create_pass_builder(machine, binding.create_pipeline_tuning_options(speed_level=1))


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
    """Free the objects that nothing uses any more."""
    # That waits until others are loaded, since it takes llvmlite's lock, and the last reference may go in the main thread (see
    # `threads`).
    for engine in _engines.drain():
        engine._owned = False
        engine.close()


def load_object(code: bytes, symbols: Sequence[str]) -> list[int]:
    """Load an object for as long as the process lives; see `load_objects`."""
    _permanent.append(load_objects([code], symbols))
    return _permanent[-1].addresses
