"""The current learning rate, read from the states of optimizers."""

from __future__ import annotations

from typing import Any

import pytest

import volta_fn as vf
from volta_fn import optim
from volta_fn.errors import ArgumentError

SCHEDULE = optim.warmup_cosine_decay_schedule(0.0, 1.0, 3, 10)
W = {"w": vf.numpy.ones(2)}


def state_after(optimizer: Any, steps: int) -> Any:
    state = optimizer.init(W)
    for _ in range(steps):
        _, state = optimizer.update(W, state, W)
    return state


@pytest.mark.parametrize("name", ["sgd", "adam", "adamw", "lamb", "rmsprop", "lion"])
def test_the_rate_is_the_schedules(name: str) -> None:
    optimizer = optim.chain(optim.clip_by_global_norm(1.0), getattr(optim, name)(SCHEDULE))
    for steps in (0, 2, 5):
        state = vf.jit(lambda s: s)(state_after(optimizer, steps))
        assert float(optim.current_learning_rate(state, SCHEDULE)) == pytest.approx(float(SCHEDULE(steps)))


def test_a_constant_rate_and_injected_ones() -> None:
    assert float(optim.current_learning_rate(state_after(optim.adam(0.1), 2), 0.1)) == pytest.approx(0.1)
    injected = optim.inject_hyperparams(optim.adam)(learning_rate=SCHEDULE)
    assert float(optim.current_learning_rate(state_after(injected, 3))) == pytest.approx(float(SCHEDULE(2)))
    changed = state_after(optim.inject_hyperparams(optim.sgd)(learning_rate=0.5), 1)
    changed.hyperparams["learning_rate"] = vf.numpy.float32(0.25)
    assert float(optim.current_learning_rate(changed)) == 0.25


def test_an_unknown_rate_is_an_error() -> None:
    state = state_after(optim.adam(0.1), 1)
    with pytest.raises(ArgumentError, match="give the number or schedule"):
        optim.current_learning_rate(state)
    with pytest.raises(ArgumentError, match="no count of steps"):
        optim.current_learning_rate(state, SCHEDULE)
