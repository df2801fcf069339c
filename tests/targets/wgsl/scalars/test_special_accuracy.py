"""Special functions on GPUs: a sample of docs/reference/special_accuracy.md, and sums whose rounding errors compilers take out."""

from __future__ import annotations

import math

import numpy as np
import pytest

import volta_fn as vf
from tools.special_accuracy import CASES, measured
from volta_fn import dtypes
from volta_fn.primitives.declare import elementwise
from volta_fn.primitives.formulas.values import Values, exact_product, exact_sum

#: A power or a gamma function in float32 is off by up to 4 units, functions of several of them by their sum.
LIMITS = {
    "gamma": 4.0,
    "factorial": 5.0,
    "fresnel, S": 8.0,
    "fresnel, C": 12.0,
    "boxcox": 4.0,
    "beta": 20.0,
    "poch": 20.0,
    "gammainc": 12.0,
}
#: Points of densities whose (x - loc) / scale is no float32 are tried by the tests of `stats`.
LIMITS |= {"norm.pdf": 4.0, "expon.pdf": 4.0, "cauchy.pdf": 6.0, "gamma.pdf": 12.0, "poisson.pmf": 12.0, "zeta": 12.0}


@pytest.mark.parametrize("name", LIMITS)
def test_worst_errors(name: str) -> None:
    with vf.default_device(vf.devices("gpu")[0]):
        report = measured(CASES[name], vf.jit(CASES[name].function), 2_000, 0, decisions=40, flushes=True)
    assert report.worst <= LIMITS[name], report


def _lost_of_sum_of_products(x: Values, y: Values) -> Values:
    """Return the rounding error of a sum of two rounded products."""
    first, _ = exact_product(x, y)
    second, _ = exact_product(y - x, math.log2(math.e))
    return exact_sum(first, -second)[1]


def test_sums_of_products_keep_their_errors() -> None:
    """Mesa's compilers took a factor of 1.0, which they do not know, out of such sums, and found that nothing is left."""
    lost = elementwise("lost_of_sum", formula=_lost_of_sum_of_products, operands=dtypes.FLOATS, derivatives=[None, None])
    rng = np.random.default_rng(0)
    x, y = (np.exp2(rng.uniform(-2, 6, 400)).astype(np.float32) for _ in range(2))
    first, second = x * y, (y - x) * np.float32(math.log2(math.e))
    with vf.default_device(vf.devices("gpu")[0]):
        actual = np.asarray(vf.jit(lost)(x, y))
    np.testing.assert_array_equal(actual, first.astype(float) - second - (first - second).astype(float))
