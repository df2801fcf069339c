"""The examples of meta-learning, of privacy and of serving in their quick form."""

from __future__ import annotations

import importlib
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Runs an example in its quick form, its files going to `tmp_path`, and gives what it returns."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return lambda name: importlib.import_module(name).main(["--quick", "--out", str(tmp_path)])


def test_meta_learning_makes_a_few_steps_worth_more(example: Any, tmp_path: Path) -> None:
    losses = example("maml")
    before, one, five = losses["meta-learnt start"]
    assert before > one > five
    assert five < 0.6 * min(losses["random start"])
    assert (tmp_path / "maml.png").stat().st_size > 0


def test_privacy_costs_some_accuracy_but_not_all(example: Any) -> None:
    result = example("dp_sgd")
    assert result["open"] > 0.93
    assert 0.8 < result["private"] <= result["open"]
    assert 1 < result["epsilon"] < 5


def test_epsilon_agrees_with_closed_forms(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    module = importlib.import_module("dp_sgd")
    # Where (almost) all examples are drawn it is the Gaussian mechanism, whose Rényi divergence of order a is a / (2 noise²).
    assert module._renyi(1 - 1e-12, 2.0, 8) == pytest.approx(8 / (2 * 2.0**2), rel=1e-6)
    # Of order 2 the sum is log(1 + rate² (e^(1 / noise²) - 1)).
    assert module._renyi(0.1, 1.5, 2) == pytest.approx(math.log1p(0.01 * math.expm1(1 / 1.5**2)), rel=1e-9)
    steps = [module.epsilon(0.01, 1.0, n) for n in (10, 100, 1000)]
    assert np.all(np.diff(steps) > 0)


def test_the_server_answers_as_one_thread_does(example: Any) -> None:
    result = example("inference_server")
    assert result["answers"] == 320
    assert result["wrong"] == 0
    assert result["steps"] > 0
