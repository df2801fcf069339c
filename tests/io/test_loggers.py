"""Loggers write what other programs read: csv, and TensorBoard's files of events."""

from __future__ import annotations

import csv
import struct
import sys
from pathlib import Path

import numpy as np
import pytest

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
