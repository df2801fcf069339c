"""Loggers write what other programs read: csv, and TensorBoard's files of events."""

from __future__ import annotations

import csv
import struct
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as jnp
from volta_fn import io
from volta_fn.errors import ArgumentError, MissingDependencyError, ShapeError


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_rows_of_numbers(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "log.csv"
    with io.CSVLogger(path) as log:
        log(0, loss=jnp.float32(0.25), accuracy=0.5)
        log(np.int64(10), loss=np.float32(2.0), accuracy=jnp.array([1]))
        assert rows(path)[0] == {"step": "0", "loss": "0.25", "accuracy": "0.5"}  # before the file is closed
        log(20, accuracy=float("nan"))
    assert rows(path)[1:] == [{"step": "10", "loss": "2.0", "accuracy": "1"}, {"step": "20", "loss": "", "accuracy": "nan"}]


def test_a_file_is_continued(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    for step in range(3):
        with io.CSVLogger(path) as log:
            log(step, **({"b": step, "a": -step} if step else {"a": 0, "b": 0}))
    assert path.read_text() == "step,a,b\n0,0,0\n1,-1,1\n2,-2,2\n"


def test_wrong_values(tmp_path: Path) -> None:
    with io.CSVLogger(tmp_path / "log.csv") as log:
        log(0, loss=1.0)
        with pytest.raises(ArgumentError, match=r"columns \['step', 'loss'\], so \['other'\]"):
            log(1, other=1.0)
        with pytest.raises(ShapeError, match=r"'loss' has shape \(2,\)"):
            log(1, loss=jnp.ones(2))
    assert len(rows(tmp_path / "log.csv")) == 1


def test_tensorboard_reads_the_numbers(tmp_path: Path) -> None:
    events = pytest.importorskip("tensorboardX.proto.event_pb2")
    with io.TensorBoardLogger(tmp_path) as log:
        for step in range(3):
            log(step, loss=jnp.float32(1.0) / (step + 1), rate=0.1)
    data, result = next(tmp_path.iterdir()).read_bytes(), []
    while data:  # records: the length, its checksum, the event, its checksum
        (length,) = struct.unpack("<Q", data[:8])
        event, data = events.Event.FromString(data[12 : 12 + length]), data[16 + length :]
        result += [(event.step, value.tag, value.simple_value) for value in event.summary.value]
    assert result == [(s, t, pytest.approx(v)) for s in range(3) for t, v in (("loss", 1 / (s + 1)), ("rate", 0.1))]


def test_without_tensorboardx(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(MissingDependencyError, match=r"volta-fn\[tensorboard\]"):
        io.TensorBoardLogger(tmp_path)


class Run:
    """A run of Weights & Biases, and a client of MLflow."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def log(self, numbers: dict[str, float], step: int) -> None:
        self.calls.append((step, numbers))

    log_metrics = log

    def finish(self) -> None:
        self.calls.append("finished")

    def start_run(self, **options: Any) -> None:
        self.calls.append(options)

    end_run = finish


def test_weights_and_biases_get_the_numbers_and_new_runs_are_finished(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run()
    with io.WandbLogger(run) as log:
        log(1, loss=vf.numpy.float32(0.5), accuracy=1)
    assert run.calls == [(1, {"loss": 0.5, "accuracy": 1})]
    monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(init=lambda **options: run.calls.append(options) or run))
    with io.WandbLogger(project="digits") as log:
        log(2, loss=0.25)
    assert run.calls[1:] == [{"project": "digits"}, (2, {"loss": 0.25}), "finished"]
    with pytest.raises(ArgumentError, match="for a new run"):
        io.WandbLogger(run, project="digits")


def test_mlflow_gets_the_numbers_and_new_runs_are_ended() -> None:
    client = Run()
    with io.MLflowLogger(client) as log:
        log(1, loss=0.5)
    with io.MLflowLogger(client, run_name="digits") as log:
        log(2, loss=0.25)
    assert client.calls == [(1, {"loss": 0.5}), {"run_name": "digits"}, (2, {"loss": 0.25}), "finished"]


@pytest.mark.parametrize("logger", [io.WandbLogger, io.MLflowLogger])
def test_a_missing_package_is_named(logger: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("wandb", "mlflow"):
        monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingDependencyError, match="pip install"):
        logger()
