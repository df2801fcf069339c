"""Training steps of the examples and of the benchmarks on the GPU: between the first dispatch and the last the host computes and reads
nothing."""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import volta_fn as vf
from benchmarks.workloads import large, named
from benchmarks.workloads.case import contestant
from tests.laws.common import on_gpu
from volta_fn.core.devices import device
from volta_fn.targets.gpu.device import Counters

GPU = vf.devices("gpu")[0]

#: The examples that train, and what the jitted function is called that ends a step.
TRAINING = {
    **dict.fromkeys("dp_sgd mnist_rnn regression vae xor".split(), "step"),
    **dict.fromkeys("dcgan digits maml mnist_cnn super_resolution time_series".split(), "step"),
    **dict.fromkeys(["char_lstm", "char_transformer"], "update"),
}

#: Compiling all of them takes a GPU in software minutes; `make test-gpu EVERY=1` does. These have a gradient of each example, no
#: convolution, and random numbers; an LSTM, a convolution and attention are in `tests/targets/wgsl/test_training.py`.
CHOSEN = list(TRAINING) if on_gpu() else ["dp_sgd", "regression", "vae"]

#: The benchmarks' models, at tiny sizes.
MODELS = [w.name for w in large.TRAINING] if on_gpu() else ["train/resnet block"]


class EnoughError(Exception):
    """The example has taken enough steps."""


class Cost(NamedTuple):
    """What a call had the host do."""

    reads: int
    host_steps: dict[str, int]


def cost_since(before: Counters) -> Cost:
    after = GPU.backend.counters
    done = {name: n - before.host_steps.get(name, 0) for name, n in after.host_steps.items()}
    return Cost(after.reads - before.reads, {name: n for name, n in done.items() if n})


class DriverErrors:
    """A jitted function that notes what each call after the first costs; three steps are enough."""

    def __init__(self, compiled: Callable[..., Any], is_step: bool, costs: list[Cost]) -> None:
        self.compiled, self.is_step, self.costs = compiled, is_step, costs
        self.calls = 0

    def __get__(self, instance: Any, owner: type) -> Callable[..., Any]:
        return functools.partial(self, instance)

    def __call__(self, *args: Any) -> Any:
        before = GPU.backend.counters
        result = self.compiled(*args)
        self.calls += 1
        if self.calls > 1:
            self.costs.append(cost_since(before))
        if self.is_step and self.calls == 3:
            raise EnoughError
        return result


@pytest.fixture
def costs(monkeypatch: pytest.MonkeyPatch) -> list[Cost]:
    """What calls of jitted functions cost in modules that are loaded meanwhile."""
    results: list[Cost] = []
    jit = vf.jit

    def watching(function: Callable[..., Any], **options: Any) -> DriverErrors:
        return DriverErrors(jit(function, **options), function.__name__ in TRAINING.values(), results)

    monkeypatch.setattr(vf, "jit", watching)
    monkeypatch.setattr(device, "_process_default", GPU)
    for name in TRAINING:
        monkeypatch.setitem(sys.modules, name, sys)  # so that what was there, or nothing, will be there again
        del sys.modules[name]
    return results


@pytest.mark.parametrize("name", CHOSEN)
def test_training_stays_on_the_device(name: str, costs: list[Cost], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [name])
    with pytest.raises(EnoughError):
        importlib.import_module(name).main(*([] if name == "digits" else [["--quick", "--out", str(tmp_path)]]))
    assert costs
    assert all(cost == Cost(0, {}) for cost in costs)


@pytest.mark.parametrize("name", MODELS)
def test_training_of_the_benchmarks_stays_on_the_device(name: str) -> None:
    with vf.default_device(GPU):
        step = contestant("volta_fn", named(name).case(quick=True)).call
        first = step()
        before = GPU.backend.counters
        for _ in range(3):
            last = step()
        cost, dispatches = cost_since(before), GPU.backend.counters.dispatches - before.dispatches
        assert cost == Cost(0, {})
        assert dispatches > 20
        assert float(vf.tree.leaves(last)[0]) != float(vf.tree.leaves(first)[0])
