"""Kernels of several processes, emulated in threads that share the host's memory."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from tests.targets.nvidia.emulation import Emulator
from volta_fn.targets.nvidia import collectives as kernels
from volta_fn.targets.nvidia import peers as memory
from volta_fn.targets.wgsl.routine import Dispatch

#: Few threads and words, so that blocks have several exchanges of several rounds.
SCHEDULE = kernels.PeerSchedule(threads=32, unroll=2, whole=256, blocks=2, most_blocks=3, many=2048)
_TIMEOUT = 60.0


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give blocks little memory and few words."""
    for module in (memory, kernels):
        monkeypatch.setattr(module, "CAPACITY", 1 << 10)
    monkeypatch.setattr(kernels, "_FEWEST", 1 << 9)
    monkeypatch.setattr(memory, "BLOCKS", 3)


class PeerEmulator(Emulator):
    """A kernel that talks to others: flags are words of the host's memory."""

    def _do(self, code: str, a: list[Any], count: int) -> Sequence[Any]:
        if code == memory.RELEASE:
            address, number = a
            _word(address)[0] = number & 0xFFFFFFFF
            return []
        if code == memory.ACQUIRE:
            address, number, failed, limit, report, code_of_peer, kernel = a
            start = time.monotonic_ns()
            while (int(_word(address)[0]) - number) & 0x80000000 and not _word(failed)[0]:
                time.sleep(1e-5)
                if time.monotonic_ns() - start > min(memory._LONG, limit):
                    _word(report + memory.REPORTED_NUMBER)[0] = kernel
                    _word(report + memory.REPORTED_PEER)[0] = code_of_peer
                if time.monotonic_ns() - start > limit:
                    _word(failed)[0] = _word(report)[0] = code_of_peer
            _word(report + memory.REPORTED_PEER)[0] = 0
            return []
        return super()._do(code, a, count)


def _word(address: int) -> np.ndarray:
    import ctypes

    return np.ctypeslib.as_array(ctypes.cast(address, ctypes.POINTER(ctypes.c_uint32)), (1,))


class Group:
    """The regions of some processes, which several kernels use one after another."""

    def __init__(self, size: int, before: int = 0, seconds: float = _TIMEOUT) -> None:
        self.size = size
        self.regions = [np.zeros(memory.SLOTS + memory.AREAS * memory.BLOCKS * 2 * memory.CAPACITY, np.uint8) for _ in range(size)]
        self.reports = [np.zeros(3, np.uint32) for _ in range(size)]
        for position, (region, report) in enumerate(zip(self.regions, self.reports, strict=True)):
            region[memory.SLOTS :] = 0xFF
            region[memory.COUNTERS : memory.SLOTS].view(np.uint32)[:] = before
            words = region[: memory.COUNTERS].view(np.uint64)
            words[:3] = position, int(seconds * 1e9), report.ctypes.data
            words[memory.REGIONS // 8 :][:size] = [other.ctypes.data for other in self.regions]

    def run(
        self, dispatch: Dispatch, inputs: Sequence[Sequence[np.ndarray]], outs: Sequence[Sequence[np.ndarray]], absent: int = -1
    ) -> None:
        """Run a kernel in all processes at once, on the arrays of each."""
        emulators = [PeerEmulator(dispatch.source) for _ in range(self.size)]
        failures: list[BaseException] = []

        def work(position: int) -> None:
            try:
                arrays = [*inputs[position], *outs[position], self.regions[position]]
                emulators[position].run(arrays, dispatch.workgroups[0])
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=(position,)) for position in range(self.size) if position != absent]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures, failures
