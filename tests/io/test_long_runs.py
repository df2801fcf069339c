"""Checkpoints of long runs: written by a thread, verified, with the loader's position, and at SIGTERM."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as jnp
from tests.fuzz import kills
from volta_fn import data, io
from volta_fn.errors import ArgumentError, ArgumentTypeError, CorruptFileError, DamagedCheckpointWarning
from volta_fn.io import checkpoint as checkpoint_module


def loader(**options: Any) -> data.DataLoader:
    return data.DataLoader(data.ArrayDataset(np.arange(11, dtype=np.int32)), 2, shuffle=True, key=3, **options)


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Files are not written before this is set."""
    event, write = threading.Event(), checkpoint_module.write_tensors

    def waiting(*args: Any) -> None:
        assert event.wait(60)
        write(*args)

    monkeypatch.setattr(checkpoint_module, "write_tensors", waiting)
    yield event
    event.set()


def test_training_goes_on_while_a_file_is_written(tmp_path: Path, held: threading.Event) -> None:
    checkpoints = io.Checkpointer(tmp_path, asynchronous=True)
    donating = vf.jit(lambda x: x + 1, donate_argnums=0)
    host, x = np.zeros(3), jnp.zeros(100_000)
    state = {"x": x, "host": host, "n": 1}
    checkpoints.save(1, state)
    del state
    host += 5
    for _ in range(3):
        x = donating(x)
    assert checkpoints.all_steps() == []
    held.set()
    checkpoints.wait_until_finished()
    restored = checkpoints.restore({"x": x, "host": host, "n": 0})
    assert (float(jnp.abs(restored["x"]).max()), restored["host"].tolist(), restored["n"]) == (0.0, [0, 0, 0], 1)


def test_the_error_of_a_thread_is_raised_by_the_next_call(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    checkpoints = io.Checkpointer(tmp_path / "file", asynchronous=True)
    checkpoints.save(1, {"x": 1})
    with pytest.raises(OSError, match="file"):
        checkpoints.save(2, {"x": 1})
    checkpoints.wait_until_finished()
    with pytest.raises(ArgumentTypeError):
        checkpoints.save(3, {"x": object()})


def test_which_steps_are_saved_and_kept(tmp_path: Path) -> None:
    checkpoints = io.Checkpointer(tmp_path, keep=2, keep_every=20, save_every=5)
    for step in range(53):
        checkpoints.save(step, {"x": step})
    checkpoints.save(52, {"x": 52}, force=True)
    assert checkpoints.all_steps() == [0, 20, 40, 50, 52]
    for options in ({"save_every": 0}, {"keep_every": True}, {"save_every": None}):
        with pytest.raises(ArgumentError, match="at least 1"):
            io.Checkpointer(tmp_path, **options)  # type: ignore[arg-type]


def test_damaged_checkpoints_are_passed_over_with_a_warning(tmp_path: Path) -> None:
    checkpoints = io.Checkpointer(tmp_path)
    for step in (1, 2, 3):
        checkpoints.save(step, {"x": np.full(50, step)})

    def damage(step: int) -> None:
        path = tmp_path / f"step_{step:010}.safetensors"
        path.write_bytes(path.read_bytes()[:-9] + bytes(9))

    damage(3)
    with pytest.warns(DamagedCheckpointWarning, match="step 3 is passed over.*checksum") as caught:
        assert checkpoints.restore({"x": np.zeros(50, int)})["x"][0] == 2
    assert len(caught) == 1
    with pytest.raises(CorruptFileError):
        checkpoints.restore({"x": np.zeros(50, int)}, 3)
    damage(2), damage(1)
    with pytest.warns(DamagedCheckpointWarning), pytest.raises(CorruptFileError):
        checkpoints.restore({"x": np.zeros(50, int)})


def in_epochs(loader: data.DataLoader) -> Iterator[Any]:
    while True:
        yield from loader


def by_hand(loader: data.DataLoader) -> Iterator[Any]:
    while True:
        batches = iter(loader)
        with contextlib.suppress(StopIteration):
            while True:
                yield next(batches)


WAYS: dict[str, Callable[[data.DataLoader], Iterator[Any]]] = {
    "for": in_epochs,
    "next": by_hand,
    "chain": lambda loader: itertools.chain.from_iterable(itertools.repeat(loader)),
    "enumerate": lambda loader: (batch for epoch in itertools.count() for _, batch in enumerate(loader)),
    "zip": lambda loader: (batch for epoch in itertools.count() for _, batch in zip(range(99), loader, strict=False)),
    "progress": lambda loader: iter(data.progress(itertools.chain.from_iterable(itertools.repeat(loader)), "training", total=1000)),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("workers", [0, 2])
def test_a_resumed_loop_gets_the_remaining_batches(way: str, workers: int, tmp_path: Path) -> None:
    wanted = [batch.tolist() for batch in itertools.islice(WAYS[way](loader()), 20)]
    for stop in (1, 5, 6, 7, 12, 13):  # an epoch has six batches
        actual, first = [], loader(workers=workers)
        checkpoints = io.Checkpointer(tmp_path / str(stop), loader=first)
        for step, batch in zip(range(1, stop + 1), WAYS[way](first), strict=False):
            actual.append(batch.tolist())
            checkpoints.save(step, {"step": step})
        second = loader()
        state = io.Checkpointer(tmp_path / str(stop), loader=second).restore({"step": 0})
        assert state == {"step": stop}
        actual += [batch.tolist() for batch in itertools.islice(WAYS[way](second), 20 - stop)]
        assert actual == wanted


TERMINATED = """
import os, signal, sys
from volta_fn import io
with io.Checkpointer(sys.argv[1], save_every=1000, asynchronous=True) as checkpoints:
    for step in range(1, 100):
        if step == 7:
            os.kill(os.getpid(), signal.SIGTERM)
            print(checkpoints.reached_preemption(), flush=True)
        if sys.argv[2] == "save":
            checkpoints.save(step, {"step": step})
print("not reached")
"""


@pytest.mark.skipif(os.name != "posix", reason="signals are those of POSIX")
@pytest.mark.parametrize("way", ["save", "no save"])
def test_sigterm_saves_and_ends(way: str, tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", TERMINATED, str(tmp_path), way], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (143, "True\n", "")
    assert io.Checkpointer(tmp_path).all_steps() == ([7] if way == "save" else [])


def test_the_handler_is_put_back(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with io.Checkpointer(tmp_path) as checkpoints:
        assert signal.getsignal(signal.SIGTERM) != before
        assert not checkpoints.reached_preemption()
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.skipif(os.name != "posix", reason="signals are those of POSIX")
def test_killed_runs_go_on() -> None:
    report = kills.check(2)
    assert (report.kills, report.wrong) == (2, [])
    assert report.finished == 1
