"""The examples' training steps on the GPU: between the first dispatch and the last nothing that the host computes or reads."""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import volta_fn as vf
from tests.laws.common import on_gpu
from volta_fn.core import device

GPU = vf.devices("gpu")[0]

#: The examples that train, and what the jitted function is called that ends a step.
TRAINING = {
    **dict.fromkeys("dp_sgd mnist_rnn regression vae xor".split(), "step"),
    **dict.fromkeys("dcgan digits maml mnist_cnn super_resolution time_series".split(), "step"),
    **dict.fromkeys(["char_lstm", "char_transformer"], "update"),
}

#: Compiling all of them takes a GPU in software minutes; `make test-gpu` does.
CHOSEN = list(TRAINING) if on_gpu() else list(TRAINING)[:5]


class EnoughError(Exception):
    """The example has taken enough steps."""


class Cost(NamedTuple):
    """What a call had the host do."""

    reads: int
    host_steps: dict[str, int]


class Watched:
    """A jitted function that notes what each call after the first costs; three steps are enough."""

    def __init__(self, compiled: Callable[..., Any], is_step: bool, costs: list[Cost]) -> None:
        self.compiled, self.is_step, self.costs = compiled, is_step, costs
        self.calls = 0

    def __get__(self, instance: Any, owner: type) -> Callable[..., Any]:
        return functools.partial(self, instance)

    def __call__(self, *args: Any) -> Any:
        before = GPU.backend.counters
        result = self.compiled(*args)
        after = GPU.backend.counters
        self.calls += 1
        if self.calls > 1:
            done = {name: n - before.host_steps.get(name, 0) for name, n in after.host_steps.items()}
            self.costs.append(Cost(after.reads - before.reads, {name: n for name, n in done.items() if n}))
        if self.is_step and self.calls == 3:
            raise EnoughError
        return result


@pytest.fixture
def costs(monkeypatch: pytest.MonkeyPatch) -> list[Cost]:
    """What calls of jitted functions cost in modules that are loaded meanwhile."""
    found: list[Cost] = []
    jit = vf.jit

    def watching(function: Callable[..., Any], **options: Any) -> Watched:
        return Watched(jit(function, **options), function.__name__ in TRAINING.values(), found)

    monkeypatch.setattr(vf, "jit", watching)
    monkeypatch.setattr(device, "_process_default", GPU)
    for name in TRAINING:
        monkeypatch.setitem(sys.modules, name, sys)  # so that what was there, or nothing, will be there again
        del sys.modules[name]
    return found


@pytest.mark.parametrize("name", CHOSEN)
def test_training_stays_on_the_device(name: str, costs: list[Cost], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [name])
    with pytest.raises(EnoughError):
        importlib.import_module(name).main(*([] if name == "digits" else [["--quick", "--out", str(tmp_path)]]))
    assert costs
    assert all(cost == Cost(0, {}) for cost in costs)
