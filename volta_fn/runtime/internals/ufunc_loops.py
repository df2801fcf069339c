"""The inner loops of NumPy's ufuncs, as functions that machine code calls.

Around its loop a ufunc looks at its operands, finds the loop by their dtypes and asks for the error state, which takes as long as a
thousand cube roots. NumPy gives compilers such as Numba a loop with what it needs, in a capsule of a documented layout.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any, NamedTuple

import numpy as np

_CAPSULE = b"numpy_1.24_ufunc_call_info"
_WORD = ctypes.sizeof(ctypes.c_void_p)
#: ``int loop(context, char **data, intptr_t *size, intptr_t *strides, auxiliary)``
_KIND = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 5)


class UfuncLoop(NamedTuple):
    """A loop over contiguous numbers; `kept` owns what the addresses point to."""

    function: int
    context: int
    auxiliary: int
    kept: Any


@functools.cache
def loop_of(ufunc: np.ufunc, dtype: np.dtype) -> UfuncLoop | None:
    """Return the loop of a ufunc whose operands and only result are of a dtype.

    None where there is none, or where it needs Python's objects.
    """
    try:
        types, capsule = ufunc._resolve_dtypes_and_context((*[dtype] * ufunc.nin, None))  # type: ignore[attr-defined]  # not for users
        ufunc._get_strided_loop(capsule, fixed_strides=(dtype.itemsize,) * ufunc.nargs)  # type: ignore[attr-defined]
        find = ctypes.pythonapi.PyCapsule_GetPointer
        find.restype, find.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
        address = find(capsule, _CAPSULE)
    except (AttributeError, TypeError, ValueError):
        return None
    function, context, auxiliary = (ctypes.c_size_t.from_address(address + k * _WORD).value for k in range(3))
    needs_python = ctypes.c_ubyte.from_address(address + 3 * _WORD).value
    found = UfuncLoop(function, context, auxiliary, capsule)
    return found if set(types) == {dtype} and not needs_python and _computes(found, ufunc, dtype) else None


def _computes(loop: UfuncLoop, ufunc: np.ufunc, dtype: np.dtype) -> bool:
    """Try the loop on a few numbers."""
    operands = [np.linspace(-0.9, 1.9, 37).astype(dtype) for _ in range(ufunc.nin)]  # some of which are outside of the domains
    result = np.zeros_like(operands[0])
    data = np.array([array.ctypes.data for array in (*operands, result)], np.intp)
    size, strides = np.array([result.size], np.intp), np.full(ufunc.nargs, dtype.itemsize, np.intp)
    status = _KIND(loop.function)(loop.context, data.ctypes.data, size.ctypes.data, strides.ctypes.data, loop.auxiliary)
    with np.errstate(all="ignore"):
        return status == 0 and np.array_equal(result, ufunc(*operands), equal_nan=True)
