"""`integrate.trapezoid` is NumPy's function."""

from __future__ import annotations

import numpy as np
import scipy.integrate

import volta_fn as vf
from tests.numpy.oracle import assert_close, sample


def test_trapezoid() -> None:
    y, x = sample((3, 5), np.float32), np.sort(sample((5,), np.float32, 1))
    trapezoid = vf.scipy.integrate.trapezoid
    assert trapezoid is vf.numpy.trapezoid
    assert_close(trapezoid(y, x), scipy.integrate.trapezoid(y.astype(float), x.astype(float)))
    assert_close(trapezoid(y, dx=0.5, axis=0), scipy.integrate.trapezoid(y.astype(float), dx=0.5, axis=0))
    vf.test_util.check_grads(trapezoid, (y, x), 2)
