"""Values and slopes at the ends of the range, beside mpmath."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as vnp


@pytest.mark.wide
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_sinc_near_its_zeros_and_far_out(dtype):
    most = float(np.finfo(dtype).max)
    x = np.array([0.0, 1e-30, 0.3, 1 - 1e-7, 2.5, -3.25, 100.0000076, 1e10, most / 2, most], dtype)
    with mpmath.workdps(400):
        wanted = [float(mpmath.sincpi(mpmath.mpf(float(v)))) for v in x]
    for compute in (vnp.sinc, vf.jit(vnp.sinc)):
        np.testing.assert_allclose(compute(x), wanted, rtol=8 * np.finfo(dtype).eps, atol=0)
    np.testing.assert_array_equal(vnp.sinc(np.float16([65504.0])), [0.0])


@pytest.mark.wide
@pytest.mark.parametrize(("dtype", "ends"), [(np.float32, (1e-25, 1e-21, 1.0, 1e25)), (np.float64, (1e-250, 1e-170, 1.0, 1e250))])
def test_slopes_of_arctan2_at_all_sizes(dtype, ends):
    for y, x in [(dtype(a * s), dtype(b)) for a in ends for b in ends for s in (3, -4)]:
        actual = vf.grad(vnp.arctan2, (0, 1))(y, x)
        square = mpmath.mpf(float(x)) ** 2 + mpmath.mpf(float(y)) ** 2
        info = np.finfo(dtype)
        for slope, part in zip(actual, (mpmath.mpf(float(x)), -mpmath.mpf(float(y))), strict=True):
            with np.errstate(over="ignore"):
                wanted = dtype(float(part / square))
            np.testing.assert_allclose(slope, wanted, rtol=8 * info.eps, atol=8 * float(info.tiny))
