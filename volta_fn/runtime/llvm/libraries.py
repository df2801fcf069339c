"""Functions of NumPy, and of SciPy's BLAS and LAPACK, that machine code calls."""

from __future__ import annotations

import ctypes
import functools
import os
import re
from collections.abc import Iterable
from typing import Any

import numpy as np

from volta_fn.lazy_imports import is_installed, load
from volta_fn.runtime.internals.result_allocator import numpy_function
from volta_fn.runtime.llvm.host import llvm
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
    library = ctypes.CDLL(load("scipy.linalg.cython_lapack").__file__)
    idle = ctypes.CDLL(None).abs
    setter, getter = (getattr(library, f"scipy_openblas_{name}_num_threads", idle) for name in ("set", "get"))
    return {
        SET_THREADS: ctypes.cast(setter, ctypes.c_void_p).value or 0,
        GET_THREADS: ctypes.cast(getter, ctypes.c_void_p).value or 0,
        THREADS: _threads.ctypes.data,
    }


def _forget_routines() -> None:
    """Restore OpenBLAS's number of threads in a forked child.

    It inherits none of the routines at work.
    """
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
