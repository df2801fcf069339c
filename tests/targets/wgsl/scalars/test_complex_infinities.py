"""Complex numbers that are not finite, where compilers would simplify as if they were."""

from __future__ import annotations

from collections.abc import Callable

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
