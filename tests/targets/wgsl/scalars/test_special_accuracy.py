"""Special functions on GPUs: a sample of docs/reference/special_accuracy.md, and sums whose rounding errors compilers take out."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import volta_fn as vf
from tools.special_accuracy import CASES, measured
from volta_fn import dtypes
from volta_fn.primitives.declare import elementwise
from volta_fn.primitives.formulas.exponential import exp, expm1, log, log1p
from volta_fn.primitives.formulas.trigonometric import sin, tan
from volta_fn.primitives.formulas.values import Values, exact_product, exact_sum


@pytest.mark.parametrize("name", CASES)
def test_worst_errors(name: str) -> None:
    with vf.default_device(vf.devices("gpu")[0]):
        report = measured(CASES[name], vf.jit(CASES[name].function), 2_000, 0, decisions=40, flushes=True)
    assert report.worst <= 4.0, report


#: Operations on pairs, each less the rounded result: what one float32 does not hold.
RESTS: dict[str, tuple[Callable[[Any, Any], Any], Callable[[Any, Any], Any]]] = {
    "sum": (lambda x, y: x + y, lambda x, y: x + y),
    "difference": (lambda x, y: x - y, lambda x, y: x - y),
    "product": (lambda x, y: x * y, lambda x, y: x * y),
    "quotient": (lambda x, y: x / y, lambda x, y: x / y),
    "root": (lambda x, y: (x * y).sqrt(), lambda x, y: np.sqrt(x * y)),
    "fma": (lambda x, y: x.fma(y, x / 3.0), lambda x, y: x * y + x / 3),
    "polynomial": (lambda x, y: (x / (x + y)).polynomial(range(1, 9)), lambda x, y: np.polyval(range(1, 9), x / (x + y))),
    "log": (lambda x, y: log(x / y), lambda x, y: np.log(x / y)),
    "log1p": (lambda x, y: log1p(x / y), lambda x, y: np.log1p(x / y)),
    "exp": (lambda x, y: exp(x - y), lambda x, y: np.exp(x - y)),
    "expm1": (lambda x, y: expm1(x / y), lambda x, y: np.expm1(x / y)),
    "sin": (lambda x, y: sin(x + y), lambda x, y: np.sin(x + y)),
    "tan": (lambda x, y: tan(x / y), lambda x, y: np.tan(x / y)),
    "floor": (lambda x, y: (x / y).floor() + y, lambda x, y: np.floor(x / y) + y),
    "repeated": (
        lambda x, y: x.repeated([range(1, 4), (0.1, 0.2, 0.3)], lambda k, c, total: [total + c / (x + k)], y)[0],
        lambda x, y: y + sum(c / (x + k) for k, c in ((1, 0.1), (2, 0.2), (3, 0.3))),
    ),
    "outline_each": (
        lambda x, y: x.outline_each("ratio", lambda a, b: a / b, [(x, y), (y, x)])[1],
        lambda x, y: y / x,
    ),
}


@pytest.mark.parametrize("name", RESTS)
def test_pairs_have_twice_the_digits(name: str) -> None:
    ours, exact = RESTS[name]

    def formula(x: Values, y: Values) -> Values:
        value = ours(x.widened(), y.widened())
        return (value - value.narrowed().widened()).narrowed()

    rest = elementwise(f"rest_of_{name}", formula=formula, operands=dtypes.FLOATS, derivatives=[None, None])
    rng = np.random.default_rng(0)
    x, y = (np.exp2(rng.uniform(-2, 2, 400)).astype(np.float32) for _ in range(2))
    with vf.default_device(vf.devices("gpu")[0]):
        actual = np.asarray(vf.jit(rest)(x, y)).astype(float)
    value = exact(x.astype(float), y.astype(float))
    unit = np.spacing(np.abs(value).astype(np.float32)).astype(float)
    error = np.abs((actual - value) / unit - np.rint((actual - value) / unit)) * unit  # value less a float32, whichever it is
    assert np.max(error / np.maximum(np.abs(value), 2.0**-4)) < 2.0**-40


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
