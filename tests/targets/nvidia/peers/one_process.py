"""Several emulated GPUs of this process, which share memory."""

from __future__ import annotations

import queue
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from tests.targets.nvidia.fake_cuda import NOT_READY, FakeCuda
from tests.targets.nvidia.peers.emulated_peers import SCHEDULE
from tests.targets.nvidia.peers.process import Compiler, Kernels
from volta_fn.core.devices import device, device_world
from volta_fn.targets.gpu import backend
from volta_fn.targets.nvidia import collectives as kernels
from volta_fn.targets.nvidia import compilation, library
from volta_fn.targets.nvidia import peers as memory


class Streams(FakeCuda):
    """A library whose streams have threads, so that GPUs work at the same time."""

    def __init__(self, count: int) -> None:
        super().__init__(("an emulated GPU",) * count, eager=True)
        self.strict, self.capability, self.kernels = False, (8, 0), Kernels()
        self._pieces: dict[int, queue.SimpleQueue[Callable[[], None] | None]] = {}
        #: By their streams, how many pieces of work are not done.
        self._pending: Counter[int] = Counter()
        self._changed, self._is_closed = threading.Condition(), False

    def _start(self, piece: Callable[[], None], stream: int) -> None:
        if self._is_closed:
            super()._start(piece, stream)
            return
        with self._changed:
            self._pending[stream] += 1
            if stream not in self._pieces:
                self._pieces[stream] = queue.SimpleQueue()
                threading.Thread(target=self._work, args=(stream,), name=f"stream {stream}", daemon=True).start()
        self._pieces[stream].put(piece)

    def _work(self, stream: int) -> None:
        while (piece := self._pieces[stream].get()) is not None:
            try:
                piece()
            except BaseException as error:
                self.broken.append(error)
            with self._changed:
                self._pending[stream] -= 1
                self._changed.notify_all()

    def do_cuStreamQuery(self, stream: int) -> int:
        return NOT_READY if self._pending[stream] else 0

    def do_cuMemFree_v2(self, address: int) -> None:
        with self._changed:  # as the driver waits
            self._changed.wait_for(lambda: not +self._pending)
        super().do_cuMemFree_v2(address)

    def close(self) -> None:
        """End the threads, without which work is done at once."""
        self._is_closed = True
        for pieces in self._pieces.values():
            pieces.put(None)


def install(monkeypatch: pytest.MonkeyPatch, count: int) -> tuple[Streams, list[Any]]:
    """Make emulated GPUs the process's only ones until `monkeypatch` is undone; return the stand-in of the driver, and the devices."""
    fake = Streams(count)
    monkeypatch.setenv("VOLTA_GPU_DRIVER", "nvidia")
    monkeypatch.setattr(library, "open_library", lambda: fake)
    monkeypatch.setattr(compilation, "pool", Compiler)
    monkeypatch.setattr(compilation, "cache_dir", lambda: None)
    monkeypatch.setattr(kernels, "SCHEDULE", SCHEDULE)
    for module in (memory, kernels):
        monkeypatch.setattr(module, "CAPACITY", 1 << 10)
    monkeypatch.setattr(memory, "BLOCKS", SCHEDULE.most_blocks)
    monkeypatch.setattr(kernels, "_FEWEST", 1 << 9)
    monkeypatch.setattr(memory, "SIZE", memory.SLOTS + memory.AREAS * SCHEDULE.most_blocks * memory.KINDS * (1 << 10))
    library._functions.cache_clear()
    backend.adapters.cache_clear()
    monkeypatch.setattr(device_world, "_meetings", device_world._Meetings())
    monkeypatch.setattr(device, "_devices_by_platform", {k: v for k, v in device._devices_by_platform.items() if k != "gpu"})
    return fake, device.local_devices(backend="gpu")
