"""Training that is split over several CPU devices, against one that computes with all examples."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import volta_fn as vf
from benchmarks.gpu import collectives, parallel, scaling
from benchmarks.gpu.collectives import Gpus
from benchmarks.workloads import named
from benchmarks.workloads.case import Workload
from volta_fn.core.devices import device as core_device

NAME = "gpu train/gpt medium@bfloat16"
#: A GPT whose heads, vocabulary and layers can be split among four devices.
GPT = {"batch": 8, "tokens": 5, "width": 8, "layers": 4, "heads": 4, "vocabulary": 12}


@pytest.fixture
def devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four CPU devices in the place of GPUs, and a tiny GPT."""
    monkeypatch.setitem(core_device._devices_by_platform, "cpu", vf.devices("cpu"))
    vf.set_cpu_devices(max(4, len(vf.devices("cpu"))))
    monkeypatch.setattr(Gpus, "mesh", property(lambda gpus: vf.sharding.Mesh(np.array(vf.devices("cpu")[: gpus.size], object), "i")))
    monkeypatch.setattr(scaling, "host_steps", dict)
    for module in (scaling, collectives):
        monkeypatch.setattr(module, "named", lambda name: (workload := named(name)).__class__(**{**vars(workload), "size": workload.quick}))


def losses(call: Any, steps: int = 6) -> list[float]:
    return [float(np.asarray(call())) for _ in range(steps)]


@pytest.mark.parametrize("call", [parallel.split_call, parallel.states_call])
def test_losses_with_rows_are_those_of_one_device_with_all_examples(devices: None, call: Callable[..., Any]) -> None:
    expected = losses(collectives.training_call(NAME, Gpus(1, (0,)), 4))
    assert expected[0] > expected[-1]
    for count in (2, 4):
        actual = losses(call(collectives.named(NAME), Gpus(count, range(count)), 4 // count))
        np.testing.assert_allclose(actual, expected, rtol=5e-3)  # gradients are rounded to bfloat16 before and after they are summed


def gpt(precision: str) -> Workload:
    return replace(named(NAME), size=GPT, precision=precision)


@pytest.mark.parametrize(
    "call", [parallel.tensor_call, lambda workload, gpus: parallel.pipeline_call(workload, gpus, 4)], ids=["tensor", "pipeline"]
)
def test_losses_of_split_layers_are_those_of_one_device(devices: None, call: Callable[..., Any]) -> None:
    expected = losses(parallel.one_call(gpt("bfloat16")))
    assert expected[0] > expected[-1]
    for count in (1, 2, 4):
        np.testing.assert_allclose(losses(call(gpt("bfloat16"), Gpus(count, range(count)))), expected, rtol=5e-3)


@pytest.mark.parametrize("name", [NAME, "gpu train/resnet-18@bfloat16"])
def test_one_device_with_groups_is_several(devices: None, name: str) -> None:
    workload = collectives.named(name)
    together = losses(parallel.groups_call(workload, 2, 2), 3)
    np.testing.assert_allclose(losses(collectives.training_call(name, Gpus(2, range(2)), 2), 3), together, rtol=1e-2)


@pytest.mark.parametrize("ways", [["data", "split", "states"], ["tensor"], ["pipeline"]])
def test_every_way_prints_its_losses(devices: None, capsys: pytest.CaptureFixture[str], ways: list[str]) -> None:
    scaling.workloads(Gpus(1, range(1)), [NAME], ways)
    output = capsys.readouterr().out
    assert all(f"{NAME} {way}" in output for way in ways), output


def test_a_large_model_learns(devices: None, capsys: pytest.CaptureFixture[str]) -> None:
    scaling.large(Gpus(4, range(4)), width=128, layers=2, batch=1, tokens=8, vocabulary=64, steps=3)
    values = [float(line.split()[3].rstrip(",")) for line in capsys.readouterr().out.splitlines() if line.startswith("step ")]
    assert values[0] > values[1] > values[2]


@pytest.mark.parametrize("count", [1, 3])
def test_rows_have_all_elements(count: int) -> None:
    x = np.arange(10.0, dtype=np.float32).reshape(2, 5)
    rows = parallel.rows_of(x, count)
    assert rows.shape == (count, -(-10 // count))
    np.testing.assert_array_equal(rows.ravel()[:10].reshape(2, 5), x)
