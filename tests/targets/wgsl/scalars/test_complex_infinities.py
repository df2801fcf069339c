"""Complex numbers that are not finite, where compilers would simplify as if they were."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest

import volta_fn as vf

Z = np.array([complex(np.nan, 1), complex(np.inf, 2), complex(3, -np.inf), complex(1, -2), 0], np.complex64)


@pytest.mark.filterwarnings("ignore:invalid value")  # NumPy's own
@pytest.mark.parametrize(
    "function",
    [lambda z: z - z, lambda z: z * 0.0, lambda z: z * np.float32(2.0), lambda z: z.real[::-1] * z, lambda z: z / 2.0],
    ids=["minus itself", "times 0", "times 2", "times a real number", "halves"],
)
def test_parts_are_numpys(function: Callable[[np.ndarray], np.ndarray]) -> None:
    with vf.default_device(vf.devices("gpu")[0]):
        result = np.asarray(vf.jit(function)(Z))
    np.testing.assert_array_equal(result, function(Z))


def test_squares_overflow_in_the_component_that_is_large() -> None:
    sizes = [float(np.float32(x)) for x in (3.4e38, 3e38, 2.9e38, 1.7e38, 1e30, 1e10, 1.0, 1e-30, 0.0)]
    z = np.array([complex(s * x, y) for x, y, s in itertools.product(sizes, sizes, (1, -1))], np.complex64)

    def rounded(value: Fraction) -> float:
        return float(np.clip(float(value), -1e39, 1e39))

    x, y = ([Fraction(float(v)) for v in component] for component in (z.real, z.imag))
    with np.errstate(over="ignore"):
        re = np.array([rounded(a * a - b * b) for a, b in zip(x, y, strict=True)]).astype(np.float32)
        im = np.array([rounded(2 * a * b) for a, b in zip(x, y, strict=True)]).astype(np.float32)
    for device in (vf.devices("gpu")[0], vf.devices("cpu")[0]):
        with vf.default_device(device):
            for square in (vf.lax.square, lambda z: z**2):
                result = np.asarray(vf.jit(square)(z))
                np.testing.assert_allclose(result.real, re, rtol=1e-6, atol=2e-38)
                np.testing.assert_allclose(result.imag, im, rtol=1e-6, atol=2e-38)
