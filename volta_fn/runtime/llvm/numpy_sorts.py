"""NumPy's sorts as functions that machine code calls.

They sort contiguous numbers of one dtype in place by vector instructions, in a fourth of the time of a radix sort, and need neither an
array nor Python's lock. An object names them by symbols that begin with `PREFIX`; a process binds these to its own addresses when it loads
the object. NumPy publishes their addresses for extensions, in the table of functions that each dtype has.
"""

from __future__ import annotations

import ctypes
import functools
import re
from collections.abc import Iterable

import numpy as np

from volta_fn.runtime.internals.result_allocator import numpy_function
from volta_fn.runtime.llvm.host import llvm

#: What the symbols of functions begin with.
PREFIX = "volta_numpy_sort_"
_SYMBOL = re.compile(PREFIX.encode() + rb"([fiu][248])")
#: PyDataType_GetArrFuncs in NumPy's table of functions for extensions, and where a dtype's own table has its first sort.
_TABLE_OF, _SORT = 365, 33

#: ``int sort(void *start, intptr_t count, void *array)``, of which numbers ignore the array.
_KIND = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_void_p)


@functools.cache
def address(dtype: np.dtype) -> int | None:
    """Return the address of the sort of a dtype; None where it is not known."""
    try:
        table = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object)(numpy_function(_TABLE_OF))(dtype)
    except (AttributeError, LookupError, TypeError, ValueError):
        return None
    found = ctypes.c_size_t.from_address(table + _SORT * ctypes.sizeof(ctypes.c_size_t)).value
    return found if found and _sorts(found, dtype) else None


def _sorts(function: int, dtype: np.dtype) -> bool:
    """Try the function on numbers in falling order."""
    numbers = np.arange(100, dtype=dtype)[::-1].copy()
    return not _KIND(function)(numbers.ctypes.data, numbers.size, None) and np.array_equal(numbers, np.arange(100))


def symbol(dtype: np.dtype) -> str:
    """Return the name by which objects call the sort of a dtype."""
    return f"{PREFIX}{dtype.kind}{dtype.itemsize}"


def bind_symbols(codes: Iterable[bytes]) -> None:
    """Bind the functions that objects call to their addresses in this process."""
    for name in {match.decode() for code in codes for match in _SYMBOL.findall(code)}:
        found = address(np.dtype(name))
        assert found is not None, "objects of another version of NumPy are not loaded"
        llvm().add_symbol(PREFIX + name, found)
