"""The gamma function of complex numbers: SciPy's values, its branches and poles, derivatives."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.special

import volta_fn as vf
import volta_fn.numpy as vnp
from volta_fn.errors import DTypeError
from volta_fn.scipy import special

GRID = np.array(
    [x + 1j * y for x in (-20.3, -7.5, -2.5, -0.4, 0.1, 0.5, 1.0, 2.0, 3.7, 15.0, 80.0) for y in (-90.0, -8.5, -0.3, 1e-6, 2.0, 30.0)]
)


@pytest.mark.wide
@pytest.mark.parametrize("jit", [False, True])
def test_the_logarithm_is_scipys(jit: bool) -> None:
    actual = np.asarray((vf.jit(special.loggamma) if jit else special.loggamma)(GRID))
    wanted = scipy.special.loggamma(GRID)
    assert (abs(actual - wanted) <= 1e-12 * np.maximum(abs(wanted), 1)).all()


def test_both_sides_of_the_branch_cut_in_single_precision() -> None:
    z = np.array([-0.5 + 0.0j, -1.5 + 0.0j, -2.5 + 1e-12j, -2.5 - 1e-12j, complex(-3.5, -0.0), 0.5 + 1j, 0.5 - 1j], np.complex64)
    np.testing.assert_allclose(special.loggamma(z), scipy.special.loggamma(z), rtol=2e-5, atol=1e-5)
    np.testing.assert_allclose(special.gamma(z), scipy.special.gamma(z), rtol=2e-5, atol=1e-5)


def test_poles_are_nan() -> None:
    for function in (special.gamma, special.loggamma):
        result = np.asarray(function(np.array([0, -1, -2, -5], np.complex64)))
        assert np.isnan(result.real).all()
        assert np.isnan(result.imag).all()


@pytest.mark.wide
def test_the_derivative_is_the_digamma_function() -> None:
    z = np.array([0.7 + 0.3j, 3.0 - 2.0j, -1.3 + 0.4j])
    for value in z:
        result = vf.grad(special.loggamma, holomorphic=True)(vnp.asarray(value))
        np.testing.assert_allclose(result, scipy.special.digamma(value), rtol=1e-10)


def test_erfcx_is_of_complex_numbers_too_and_others_refuse_them() -> None:
    z = np.array([0.5 + 0.2j, -1.0 + 2.0j, 3.0], np.complex64)
    np.testing.assert_allclose(special.erfcx(z), scipy.special.erfcx(z), rtol=1e-5)
    with pytest.raises(DTypeError, match="takes real numbers"):
        special.betaln(z, z)


def test_arguments_by_name() -> None:
    assert special.beta(a=2.0, b=3.0).round(4) == special.beta(2.0, 3.0).round(4)
    with pytest.raises(TypeError, match="unexpected keyword"):
        special.beta(x=1, y=1)
