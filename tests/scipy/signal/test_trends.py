"""`detrend`: SciPy's values, derivatives, errors."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.signal

import volta_fn as vf
from tests.numpy.oracle import assert_close, sample
from volta_fn.errors import ArgumentError, ShapeError
from volta_fn.scipy.signal import detrend


@pytest.mark.wide
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128", "int16"])
def test_values(dtype: str) -> None:
    x = sample((10, 11), dtype)
    for axis in (0, 1, -1):
        for kind in ("linear", "constant", "l", "c"):
            for breaks in (0, 3, [2, 5, 9], [0, 10]):
                got = detrend(x, axis, kind, breaks)
                wanted = scipy.signal.detrend(x.astype(np.complex128 if "complex" in dtype else np.float64), axis, kind, breaks)
                assert_close(got, wanted, 1e-5 if got.dtype.itemsize < 8 or dtype == "complex64" else 1e-12, (axis, kind, breaks))


@pytest.mark.wide
def test_derivatives_batches_and_jit() -> None:
    x = sample((3, 6), np.float64)
    for kind in ("linear", "constant"):
        call = vf.jit(lambda x, k=kind: detrend(x, type=k, bp=2))
        vf.test_util.check_grads(call, (x,), 2)
        np.testing.assert_allclose(vf.vmap(call)(x), call(x), rtol=1e-12, atol=1e-12)


def test_errors_and_short_signals() -> None:
    np.testing.assert_allclose(detrend(np.array([[3.0], [4.0]], np.float32)), [[0.0], [0.0]])
    assert detrend(np.zeros((2, 0), np.float32)).shape == (2, 0)
    for wrong in ({"type": "square"}, {"bp": 5}, {"bp": -1}, {"overwrite_data": True}):
        with pytest.raises(ArgumentError):
            detrend(np.ones(4, np.float32), **wrong)  # type: ignore[arg-type]  # on purpose
    with pytest.raises(ShapeError):
        detrend(np.ones(4, np.float32), axis=1)
