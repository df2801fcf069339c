"""One rule for the hyperparameters of all optimizers and schedules."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

import volta_fn as vf
from volta_fn import optim
from volta_fn.errors import ArgumentError, ArgumentTypeError
from volta_fn.optim import contrib

#: Every public function that makes a transformation or a schedule.
MAKERS = {
    f"{module.__name__}.{name}": function
    for module in (optim, contrib)
    for name, function in vars(module).items()
    if inspect.isfunction(function) and next(iter(inspect.signature(function).parameters), "") == "learning_rate"
}


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("wrong", ["0.1", [0.1], {"rate": 0.1}, b"1"], ids=repr)
def test_a_learning_rate_is_a_number(name: str, wrong: Any) -> None:
    with pytest.raises(ArgumentTypeError, match=r"learning_rate is a number"):
        MAKERS[name](learning_rate=wrong)


@pytest.mark.parametrize("name", MAKERS)
def test_a_learning_rate_is_not_nan(name: str) -> None:
    with pytest.raises(ArgumentError, match="NaN"):
        MAKERS[name](learning_rate=float("nan"))


WRONG: dict[str, Any] = {
    "adam": lambda: optim.adam("0.1"),
    "b1": lambda: optim.adam(0.1, "0.9"),
    "eps": lambda: optim.adamw(0.1, eps=None),
    "weight_decay": lambda: optim.adamw(0.1, weight_decay="1e-4"),
    "b2": lambda: optim.adam(0.1, b2=lambda step: 0.9),
    "max_norm": lambda: optim.clip_by_global_norm("1"),
    "step_size": lambda: optim.scale([1.0]),
    "init_value": lambda: optim.linear_schedule("0", 1.0, 10),
    "transition_steps": lambda: optim.linear_schedule(0.0, 1.0, "10"),
    "decay_rate": lambda: optim.exponential_decay(0.1, 10, decay_rate="0.5"),
}


@pytest.mark.parametrize("name", WRONG)
def test_every_hyperparameter_is_checked(name: str) -> None:
    with pytest.raises(ArgumentTypeError):
        WRONG[name]()


def test_numbers_arrays_and_schedules_are_hyperparameters() -> None:
    for rate in (1, 0.5, np.float32(0.5), np.float64(0.5), np.array(0.5), vf.numpy.array(0.5), lambda step: 0.5):
        assert optim.adam(rate).init({"w": vf.numpy.ones(2)})
    optim.sgd(0.1, momentum=None)
    optim.adam(0.1, mu_dtype="bfloat16")
    update = vf.jit(lambda rate: optim.sgd(rate).update(vf.numpy.ones(2), optim.sgd(rate).init(None))[0])
    np.testing.assert_allclose(update(0.5), [-0.5, -0.5])


def test_a_function_keeps_its_name_and_signature() -> None:
    assert (optim.adam.__name__, next(iter(inspect.signature(optim.adam).parameters))) == ("adam", "learning_rate")
    assert contrib.dpsgd is optim.dpsgd
