"""Memory that processes share: two of them as threads, with a stand-in for the driver."""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.targets.nvidia.fake_cuda import INVALID_VALUE, OUT_OF_MEMORY, FakeCuda, replaced
from volta_fn.core.devices import distribution
from volta_fn.errors import DeviceError, DistributedError
from volta_fn.targets.nvidia import peers as memory
from volta_fn.targets.nvidia.library import CallErrors, Context, functions
from volta_fn.targets.nvidia.peers import Peers


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCuda]:
    """A machine with two GPUs, whose work is done at once."""
    monkeypatch.setattr(memory, "SIZE", memory.SLOTS + 64)
    with replaced(monkeypatch) as fake:
        fake.names, fake.eager = ("NVIDIA H200",) * 2, True
        yield fake


class Processes:
    """Two processes, each a thread with its own GPU."""

    def __init__(self, devices: tuple[int, int] = (0, 1), drivers: tuple[str, str] = ("nvidia", "nvidia")) -> None:
        self.local, self.rows, self.barrier = threading.local(), dict[int, np.ndarray](), threading.Barrier(2)
        self.gathers = 0
        loaded = functions()
        self.peers = []
        for device in devices:
            errors = CallErrors(loaded)
            self.peers.append(Peers(loaded, errors, Context(loaded, device, errors), 0, device))
        self.watched: list[Any] = []
        self.world: Any = SimpleNamespace(
            rank=0,
            size=2,
            drivers=drivers,
            limit=7.5,
            member="process",
            communicator=lambda ranks: self,
            watch_device=self.watched.append,
            check_members=lambda ranks, awaited: None,
        )

    @property
    def index(self) -> int:
        """The position of the thread's process."""
        position: int = self.local.index
        return position

    def gather(self, array: np.ndarray, description: str) -> np.ndarray:
        """Stack the arrays of both."""
        self.rows[self.index] = array
        self.gathers += 1
        self.barrier.wait(10)
        stacked = np.stack([self.rows[0], self.rows[1]])
        self.barrier.wait(10)
        return stacked

    def connect(self) -> list[bool]:
        """Connect both, twice."""
        answers: dict[int, bool] = {}

        def work(position: int) -> None:
            self.local.index = position
            answers[position] = self.peers[position].connect((0, 1)) and self.peers[position].connect((0, 1))

        distribution.set_current(self.world)
        try:
            threads = [threading.Thread(target=work, args=(position,)) for position in range(2)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        finally:
            distribution.set_current(distribution.ALONE)
        return [answers[0], answers[1]]


def test_a_table_tells_where_all_regions_are(fake: FakeCuda) -> None:
    processes = Processes()
    assert processes.connect() == [True, True]
    tables = [peers.table((0, 1)) for peers in processes.peers]
    for position, table in enumerate(tables):
        words = np.frombuffer(ctypes.string_at(table, memory.COUNTERS), np.uint64)
        assert words[0] == position
        assert words[1] == 7_500_000_000
        assert words[memory.FAILED // 8] == 0
        assert words[memory.REGIONS // 8 :][:3].tolist() == [*tables, 0]
        assert not any(ctypes.string_at(table + memory.COUNTERS, memory.SLOTS - memory.COUNTERS)), "counters and flags begin at 0"
    assert processes.gathers == 4, "the second time nothing is exchanged"
    processes.world.drivers = ("nvidia", "")
    assert processes.connect() == [False, False], "one of them compiles its program for the CPU"
    processes.world.drivers = ("nvidia", "nvidia")
    assert processes.connect() == [True, True]
    assert processes.gathers == 4


def test_a_kernel_that_waited_too_long_is_an_error_that_names_the_missing_process(fake: FakeCuda) -> None:
    processes = Processes()
    processes.connect()
    peers = processes.peers[0]
    peers.check()
    report = np.frombuffer(ctypes.string_at(peers.table((0, 1)), 64), np.uint64)[memory.REPORT // 8]
    words = (ctypes.c_uint32 * 3).from_address(int(report))
    assert [memory.waiting() for memory in processes.watched] == [[], []]
    words[:] = 0, 2, 9
    (first,), (again,) = peers.waiting(), peers.waiting()
    assert first == again
    assert (first.ranks, first.number) == ((0, 1), 9)
    words[:] = 2, 0, 9
    assert peers.waiting() == []
    with pytest.raises(DistributedError, match=r"has waited longer than .* of the processes \[0, 1\].*: process 1 has not come"):
        peers.check()


def test_words_are_not_read_once_another_thread_closes_the_device(fake: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    processes = Processes()
    processes.connect()
    peers = processes.peers[0]
    peers._regions[0, 1].words[0] = 2  # as memory that was released may hold

    @contextlib.contextmanager
    def after_closing() -> Iterator[None]:
        peers._regions.clear()
        yield

    monkeypatch.setattr(peers, "_reading", after_closing())
    peers.check()


@pytest.mark.parametrize(("devices", "drivers"), [((0, 0), ("nvidia", "nvidia")), ((0, 1), ("nvidia", "wgpu"))])
def test_processes_that_share_a_gpu_or_use_another_driver_are_not_connected(
    fake: FakeCuda, devices: tuple[int, int], drivers: tuple[str, str]
) -> None:
    processes = Processes(devices, drivers)
    assert processes.connect() == [False, False]
    assert fake.live_memory() == 0
    with pytest.raises(DeviceError, match="share no memory"):
        processes.peers[0].table((0, 1))


@pytest.mark.parametrize(
    ("function", "status"),
    [
        ("cuMemAlloc_v2", OUT_OF_MEMORY), ("cuIpcGetMemHandle", INVALID_VALUE), ("cuIpcOpenMemHandle_v2", INVALID_VALUE),
        ("cuMemHostAlloc", OUT_OF_MEMORY), ("cuDeviceGetUuid", INVALID_VALUE),
    ],
)  # fmt: skip
def test_a_refusal_in_one_process_lets_all_go_through_the_host(fake: FakeCuda, function: str, status: int) -> None:
    processes = Processes()
    fake.failures[function] = [status]
    assert processes.connect() == [False, False]
    assert fake.live_memory() == 0


def test_a_variable_sends_collectives_through_the_host(fake: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VOLTA_PEER_MEMORY", "0")
    assert Processes().connect() == [False, False]
    assert fake.live_memory() == 0


def test_seconds_fit_in_a_word() -> None:
    assert memory._nanoseconds(1.5) == 1_500_000_000
    assert memory._nanoseconds(float("inf")) == memory._nanoseconds(1e30) == 1 << 62
