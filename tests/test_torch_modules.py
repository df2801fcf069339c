"""Some of PyTorch's modules and optimizers on its samples, and mistakes that are to be seen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tools.torch_operators import DERIVATIVES, Operator, outcome

torch = pytest.importorskip("torch")

from tools.torch_modules import Module, modules  # noqa: E402  # it needs PyTorch
from tools.torch_optimizers import optimizers  # noqa: E402

#: A module of each kind of call, in training and in evaluation.
NAMES = ["nn\\.(CELU|GaussianNLLLoss|Conv2d|BatchNorm1d|GRU|LSTMCell|MultiheadAttention|TransformerDecoderLayer|FractionalMaxPool2d)"]


@pytest.fixture(scope="module")
def sampled() -> list[Operator]:
    return modules(NAMES)


def outcomes(operators: list[Operator], dtype: str, mode: str, most: int) -> dict[str, tuple[str, str]]:
    """Return the outcomes of some samples, by name."""
    return {
        f"{operator.name}({sample})": outcome(operator, sample, dtype, mode, limit=120.0)
        for operator in operators
        for sample in operator.samples(dtype, most, reference=False, seed=0, derivative=mode in DERIVATIVES)
    }


@pytest.mark.wide
@pytest.mark.parametrize(("mode", "dtype"), [("jit", "float32"), ("grad", "float64"), ("grad", "bfloat16")])
def test_modules(sampled: list[Operator], mode: str, dtype: str) -> None:
    results = outcomes(sampled, dtype, mode, 1)
    assert any(result == "pass" for result, _ in results.values())
    assert not {name: text for name, (result, text) in results.items() if result == "fail"}


@pytest.mark.wide
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_optimizers(dtype: str) -> None:
    results = outcomes(optimizers(["Adafactor", "RAdam", "SGD"]), dtype, "jit", 2)
    assert {result for result, _ in results.values()} <= {"pass", "untested"}
    assert any(result == "pass" for result, _ in results.values())


def test_every_call_is_of_a_module() -> None:
    from tools.torch_module_calls import MODULES

    assert not MODULES.keys() - {module.info.name for module in modules([]) if isinstance(module, Module)}


def _scaled(state: Any, factor: float) -> dict[str, Any]:
    return {name: value * factor if name == "weight" else value for name, value in state.items()}


@pytest.mark.wide
def test_a_wrong_value_and_a_wrong_gradient_by_a_parameter_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    from volta_fn import lax

    (linear,) = modules(["nn\\.Linear"])
    right: Callable[..., Any] = linear.call
    sample = next(iter(linear.samples("float64", 1, reference=False, seed=0)))
    assert outcome(linear, sample, "float64", "grad", 60.0) == ("pass", "")
    monkeypatch.setattr(linear, "call", lambda state, *rest, **inputs: right(_scaled(state, 1 + 1e-9), *rest, **inputs))
    assert outcome(linear, sample, "float64", "eager", 60.0)[0] == "fail"
    stopped = lambda state, *rest, **inputs: right({**state, "weight": lax.stop_gradient(state["weight"])}, *rest, **inputs)
    monkeypatch.setattr(linear, "call", stopped)
    assert outcome(linear, sample, "float64", "eager", 60.0) == ("pass", "")
    assert "by argument 0" in outcome(linear, sample, "float64", "grad", 60.0)[1]
