"""Interpolation of rotations against SciPy's."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.spatial.transform import Rotation as ScipyRotation
from scipy.spatial.transform import Slerp as ScipySlerp

import volta_fn as vf
from volta_fn.errors import ArgumentTypeError, ShapeError
from volta_fn.scipy.spatial.transform import Rotation, Slerp

pytestmark = pytest.mark.wide

QUATERNIONS = np.random.default_rng(0).normal(size=(5, 4))
TIMES = np.array([-1.0, 0.0, 0.5, 2.0, 10.0])
SLERP = Slerp.init(TIMES, Rotation.from_quat(QUATERNIONS))
AT = np.array([-1.0, -0.3, 0.0, 0.4, 1.1, 9.0, 10.0])


def test_values_are_scipys():
    expected = ScipySlerp(TIMES, ScipyRotation.from_quat(QUATERNIONS))(AT).as_matrix()
    np.testing.assert_allclose(SLERP(AT).as_matrix(), expected, atol=1e-13)
    np.testing.assert_allclose(vf.jit(lambda s, t: s(t).as_matrix())(SLERP, AT), expected, atol=1e-13)
    np.testing.assert_allclose(vf.vmap(lambda t: SLERP(t).as_matrix())(AT), expected, atol=1e-13)
    single = SLERP(0.4)
    assert single.single
    np.testing.assert_allclose(single.as_matrix(), expected[3], atol=1e-13)
    assert Slerp.init([0, 1], Rotation.identity(2)).times.dtype == np.float32


def test_slopes():
    slopes = vf.jacfwd(lambda t: SLERP(t).as_matrix())(0.4)
    expected = (SLERP(0.4 + 1e-6).as_matrix() - SLERP(0.4 - 1e-6).as_matrix()) / 2e-6
    np.testing.assert_allclose(slopes, expected, rtol=1e-6, atol=1e-8)
    still = Slerp.init(np.array([0.0, 1.0]), Rotation.identity(2, np.float64))
    assert np.isfinite(vf.jacrev(lambda t: still(t).as_matrix())(np.float64(0.5))).all()


def test_wrong_arguments_are_named():
    for call, error, words in [
        (lambda: Slerp.init([0.0, 1.0], QUATERNIONS), ArgumentTypeError, "ndarray"),
        (lambda: Slerp.init([0.0], Rotation.identity(1)), ShapeError, "at least two"),
        (lambda: Slerp.init([0.0, 1.0], Rotation.identity()), ShapeError, "at least two"),
        (lambda: Slerp.init([0.0, 1.0], Rotation.identity(3)), ShapeError, "one for each rotation"),
        (lambda: SLERP(np.ones((2, 2))), ShapeError, "scalar or a vector"),
        (lambda: SLERP(1j), ArgumentTypeError, "complex"),
    ]:
        with pytest.raises(error, match=words):
            call()
