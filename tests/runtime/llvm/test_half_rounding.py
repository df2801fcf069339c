"""Rounding of float64 to float16 in one step, against NumPy's."""

import ctypes

import numpy as np
import pytest

from volta_fn.runtime.llvm import host, machine

pytest.importorskip("llvmlite")

#: A loop over an array that calls the function as LLVM's own code does.
_LOOP = """
define void @rounds(ptr %from, ptr %to, i64 %count) {
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  %at = getelementptr double, ptr %from, i64 %i
  %x = load double, ptr %at
  %half = fptrunc double %x to half
  %into = getelementptr half, ptr %to, i64 %i
  store half %half, ptr %into
  %next = add i64 %i, 1
  %more = icmp ult i64 %next, %count
  br i1 %more, label %loop, label %end
end:
  ret void
}
"""


def numbers() -> np.ndarray:
    """Return all of float16, the middles between neighbours, and what is just beside these."""
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float64)
    finite = np.sort(halves[np.isfinite(halves)])
    middles = (finite[1:] + finite[:-1]) / 2
    beside = [np.nextafter(middles, side * np.inf) for side in (-1, 1)]
    return np.concatenate([halves, middles, *beside, [65519.99, 65520.0, 1e300, -1e300, 1e-300, 5e-324, 2.0**-25, -(2.0**-25)]])


def test_it_is_numpys() -> None:
    code = machine.compile_object(_LOOP)
    x = numbers()
    result = np.empty(x.shape, np.float16)
    (address,) = machine.load_object(code, ["rounds"])
    ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)(address)(x.ctypes.data, result.ctypes.data, x.size)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(result, x.astype(np.float16))
    zeros = x == 0
    np.testing.assert_array_equal(np.signbit(result[zeros]), np.signbit(x[zeros]))


def test_objects_that_do_not_call_it_need_nothing() -> None:
    def load(text: str, symbols: object) -> list[int]:
        raise AssertionError("the function is not needed")

    host.bind_half_rounding([b"an object"], load)
