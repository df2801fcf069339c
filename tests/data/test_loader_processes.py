"""Worker processes of a loader: the batches of threads, errors, seeds, and that none remains."""

from __future__ import annotations

import gc
import multiprocessing
import os
import random as python_random
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import volta_fn as vf
from volta_fn import data
from volta_fn.errors import ArgumentError, DataError, ShapeError

METHODS = multiprocessing.get_all_start_methods()
SEGMENTS = Path("/dev/shm")

# Where JAX is loaded it warns of every fork; Python does where there are threads, from 3.12 on. Workers run none of the parent's threads.
pytestmark = [
    pytest.mark.filterwarnings(r"ignore:os.fork\(\) was called:RuntimeWarning"),
    pytest.mark.filterwarnings(r"ignore:.*use of fork\(\):DeprecationWarning"),
]


@pytest.fixture(autouse=True)
def nothing_is_left():
    before = {path.name for path in SEGMENTS.glob("psm_*")}
    assert multiprocessing.active_children() == []
    yield
    gc.collect()
    assert multiprocessing.active_children() == []
    assert {path.name for path in SEGMENTS.glob("psm_*")} <= before


class Images:
    """Examples that say what they are, and who loaded them."""

    def __init__(self, count: int = 20, fail_at: int | None = None) -> None:
        self.count, self.fail_at = count, fail_at

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index == self.fail_at:
            raise ShapeError("this one is broken")
        info = data.worker_info()
        return {
            "image": np.full((3, 4), index, np.uint8),
            "label": (index, np.float64(index)),
            "worker": -1 if info is None else info.id,
            "process": os.getpid(),
            "drawn": np.array([np.random.rand(), python_random.random()]),
        }


def brighter(key: Any, batch: dict[str, Any]) -> dict[str, Any]:
    return {**batch, "noise": vf.random.normal(key, (2,)), "image": np.asarray(batch["image"]) + np.uint8(1)}


def padded(examples: list[Any]) -> np.ndarray:
    return np.concatenate([example["image"] for example in examples])


@pytest.mark.parametrize("method", METHODS)
def test_batches_are_those_of_threads(method):
    options = {"shuffle": True, "key": 3, "augment": brighter}
    alone = list(data.DataLoader(Images(), 6, **options))
    loader = data.DataLoader(Images(), 6, workers=2, processes=method, **options)
    together = list(loader)
    assert len(together) == len(alone) == 4
    for batch, wanted in zip(together, alone, strict=True):
        assert batch["label"][1].dtype == np.float64
        for part in ("image", "label", "noise"):
            vf.tree.map(np.testing.assert_array_equal, batch[part], wanted[part])
    assert {int(batch["worker"][0]) for batch in together} == {0, 1}
    assert os.getpid() not in {int(batch["process"][0]) for batch in together}
    assert "4 batches of" in repr(loader)
    # The next epoch has another order; a position can be restored.
    saved = loader.state()
    second = [np.asarray(batch["label"][0]).tolist() for batch in loader]
    loader.restore(saved)
    assert [np.asarray(batch["label"][0]).tolist() for batch in loader] == second


def test_global_random_numbers_follow_the_key():
    def drawn(workers: int, **options: Any) -> list[bytes]:
        loader = data.DataLoader(Images(), 5, workers=workers, processes=True, **options)
        return [np.asarray(batch["drawn"]).tobytes() for batch in loader]

    assert drawn(1, key=0) == drawn(3, key=0)
    assert len(set(drawn(2, key=0))) == 4
    assert not set(drawn(2, key=0)) & set(drawn(2, key=1))
    assert not set(drawn(2)) & set(drawn(2))


def test_collate_and_batches_that_grow():
    class Growing(Images):
        def __getitem__(self, index: int) -> dict[str, Any]:
            return {"image": np.full((1 + 500 * (index // 4), 2), index, np.float32)}

    batches = list(data.DataLoader(Growing(), 4, collate=padded, workers=1, processes="fork", prefetch=1))
    assert [batch.shape[0] for batch in batches] == [4 * (1 + 500 * i) for i in range(5)]
    for i, batch in enumerate(batches):
        np.testing.assert_array_equal(np.unique(np.asarray(batch)), np.arange(4 * i, 4 * i + 4))


def test_batches_are_in_memory_of_their_own():
    batches = list(data.DataLoader(data.ArrayDataset(np.arange(40.0).reshape(20, 2)), 2, workers=2, processes=True, prefetch=1))
    np.testing.assert_array_equal(np.concatenate([np.asarray(batch) for batch in batches]), np.arange(40.0).reshape(20, 2))


class Empty(Images):
    """Examples without numbers."""

    def __getitem__(self, index: int) -> Any:
        return np.zeros((0, 3), np.float32)


def test_empty_arrays_and_numbers():
    (batch,) = data.DataLoader(Empty(2), 2, workers=1, processes=True)
    assert batch.shape == (2, 0, 3)


@pytest.mark.parametrize("method", METHODS)
def test_errors_have_the_workers_traceback(method):
    loader = data.DataLoader(Images(fail_at=13), 4, workers=2, processes=method)
    numbers = []
    with pytest.raises(ShapeError, match="this one is broken") as caught:
        for batch in loader:
            numbers.append(int(batch["label"][0][0]))
    assert numbers == [0, 4, 8]
    notes = "\n".join(caught.value.__notes__)
    assert "while reading example 13" in notes
    assert "batch 3 of epoch 0, examples 12, 13, 14, 15" in notes
    assert "in __getitem__" in notes


def test_errors_that_cannot_be_sent():
    class Failing(Images):
        def __getitem__(self, index: int) -> Any:
            class LocalError(Exception):
                pass

            raise LocalError("seen once")

    with pytest.raises(DataError, match="LocalError: seen once") as caught:
        list(data.DataLoader(Failing(), 4, workers=1, processes="fork"))
    assert "in __getitem__" in "\n".join(caught.value.__notes__)


def test_workers_that_die_are_told_of():
    class Killed(Images):
        def __getitem__(self, index: int) -> Any:
            if index == 9:
                os.kill(os.getpid(), signal.SIGKILL)
            return np.zeros(3)

    with pytest.raises(DataError, match=r"exit code -9 while loading batch 2 of epoch 0.*memory ran out"):
        list(data.DataLoader(Killed(), 4, workers=2, processes="fork"))


def test_leaving_the_loop_ends_the_workers():
    class Slow(Images):
        def __getitem__(self, index: int) -> Any:
            if index >= 4:
                time.sleep(60)
            return np.zeros(3)

    for _ in data.DataLoader(Slow(), 4, workers=2, processes="fork"):
        break
    assert multiprocessing.active_children() == []


def test_bad_arguments():
    with pytest.raises(ArgumentError, match="say how many"):
        data.DataLoader(Images(), 4, processes=True)
    with pytest.raises(ArgumentError, match="'spawn'"):
        data.DataLoader(Images(), 4, workers=1, processes="thread")
    with pytest.raises(ArgumentError, match="at the top of a module"):
        next(iter(data.DataLoader(Images(), 4, workers=1, processes="spawn", collate=lambda examples: examples)))
    for augment in (data.random_horizontal_flip(), vf.jit(data.random_horizontal_flip())):
        with pytest.raises(ArgumentError, match="by def"):
            next(iter(data.DataLoader(Images(), 4, key=0, workers=1, processes="spawn", augment=augment)))
    with pytest.raises(DataError, match="Python objects"):
        next(iter(data.DataLoader(Images(), 4, workers=1, processes="fork", collate=lambda _: np.array([None]))))


PROGRAM = """
import os, signal, sys, time
import numpy as np
from volta_fn import data

class Slow:
    def __len__(self):
        return 100
    def __getitem__(self, index):
        time.sleep(0.01)
        return np.zeros(3)

if __name__ == "__main__":
    loader = data.DataLoader(Slow(), 1, workers=2, processes="fork")
    try:
        for number, _ in enumerate(loader):
            if number == 3:
                os.killpg(0, {signal})
    except KeyboardInterrupt:
        print("interrupted", flush=True)
"""


@pytest.mark.parametrize(("name", "printed"), [("SIGINT", "interrupted"), ("SIGKILL", "")])
def test_ctrl_c_and_death_of_the_program(name, printed, tmp_path):
    """Ctrl-C reaches the program alone; a program that is killed takes its workers with it, since the pipe to them ends."""
    program = PROGRAM.replace("{signal}", f"signal.{name}")
    if name == "SIGKILL":
        program = program.replace("os.killpg(0", "os.kill(os.getpid()")
    path = tmp_path / "program.py"
    path.write_text(textwrap.dedent(program))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(vf.__file__).parents[1]), *sys.path])}
    # The output ends when no process holds it open.
    result = subprocess.run(
        [sys.executable, path], capture_output=True, text=True, timeout=60, env=environment, start_new_session=True, check=False
    )
    assert result.stdout.strip() == printed
    assert "Traceback" not in result.stderr
