"""Machine code at zero and infinity: quotients, remainders and complex functions as the Array API standard has them."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as vnp
from tests.laws import limits

pytest.importorskip("llvmlite")


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
def test_quotients_remainders_and_signs(dtype: type) -> None:
    limits.check_divisions(vf.jit(vnp.divmod), dtype)
    limits.check_sign(vf.jit(vnp.sign), dtype)


@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
@pytest.mark.parametrize("name", limits.COMPLEX)
def test_complex_functions(name: str, dtype: type) -> None:
    limits.check_complex(name, vf.jit(getattr(vnp, name)), dtype)
