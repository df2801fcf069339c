"""Some of PyTorch's operators on its samples, and mistakes that are to be seen."""

from __future__ import annotations

import numpy as np
import pytest

from tools import torch_operators
from tools.torch_operators import Operator, difference, operators, outcome

pytest.importorskip("torch")

#: An operator of each kind of call, and those by which mistakes have been found.
NAMES = ["nn\\.functional\\.softsign", "tanh", "atanh", "linalg\\.solve", "cumsum", "nn\\.functional\\.conv1d", "index_put", "std"]


@pytest.fixture(scope="module")
def sampled() -> list[Operator]:
    return operators(NAMES)


@pytest.mark.wide
@pytest.mark.parametrize(
    ("mode", "dtype"), [("eager", "complex64"), ("jit", "float32"), ("vmap", "float64"), ("grad", "complex128"), ("jvp", "float64")]
)
def test_samples(sampled: list[Operator], mode: str, dtype: str) -> None:
    results = {}
    for operator in sampled:
        if dtype in operator.dtypes(mode):
            for sample in operator.samples(dtype, 2, reference=False, seed=0, derivative=mode in torch_operators.DERIVATIVES):
                results[operator.name, str(sample)] = outcome(operator, sample, dtype, mode, limit=60.0)
    assert any(result == "pass" for result, _ in results.values())
    assert not {key: text for key, (result, text) in results.items() if result == "fail"}


def test_every_call_is_of_an_operator() -> None:
    from tools.torch_operator_calls import CALLS

    assert not CALLS.keys() - {operator.name for operator in operators([])}


@pytest.mark.wide
def test_a_wrong_number_a_wrong_slope_and_a_wrong_shape_are_found(sampled: list[Operator]) -> None:
    right = next(operator for operator in sampled if operator.name == "tanh")
    wrong = Operator(right.info, lambda x: right.call(x) * (1 + 1e-5 * x))
    turned = Operator(right.info, lambda x: right.call(x)[None])
    sample = next(iter(right.samples("float64", 1, reference=False, seed=0)))
    assert outcome(right, sample, "float64", "eager", 60.0) == ("pass", "")
    for mode in ("eager", "grad", "jvp"):
        assert outcome(wrong, sample, "float64", mode, 60.0)[0] == "fail"
    assert "shape" in outcome(turned, sample, "float64", "eager", 60.0)[1]


def test_differences_of_numbers() -> None:
    exact = np.array([1.0, np.inf, np.nan, 0.0])
    assert difference(exact, exact, None, "float32", True, 1.0) == ""
    assert difference(exact + 1e-7, exact, None, "float32", True, 2.0).startswith("1 of 4, first at (3,)")
    assert difference(exact + 1e-3, exact, exact + 1e-3, "float32", True, 1.0) == ""  # PyTorch is no closer
    assert "nan" in difference(np.array([np.nan]), np.array([1.0]), None, "float32", True, 1.0)
    assert difference(np.array([True]), np.array([False]), None, "bool", True, 1.0).startswith("1 of 1")
