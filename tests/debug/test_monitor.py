"""How a device is, what it was given to do, and waiting for it."""

from __future__ import annotations

import numpy as np
import pytest

import volta_fn as vf
from volta_fn import numpy as jnp
from volta_fn.core.devices.device import Device, MemoryStats, WorkStats
from volta_fn.errors import ArgumentError, DeviceError, DeviceTimeoutError

GPU = vf.devices("gpu")[0]


class _Waits:
    """A backend whose first waits end with a time-out."""

    def __init__(self, timeouts: int = 0, memory: MemoryStats = MemoryStats(0, 0, 0, None)) -> None:
        self.left = timeouts
        self.timeouts: list[float | None] = []
        self.stats = memory

    def synchronize(self, timeout: float | None) -> None:
        self.timeouts.append(timeout)
        if len(self.timeouts) <= self.left:
            raise DeviceTimeoutError("too slow")

    def memory(self) -> MemoryStats:
        return self.stats

    def work(self) -> WorkStats:
        return WorkStats(waits=len(self.timeouts), timeouts=min(self.left, len(self.timeouts)))


def device(backend: _Waits) -> Device:
    return Device("other", 0, "a test", backend)  # type: ignore[arg-type]  # as much of one as is needed


def test_waiting_again_after_a_time_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("volta_fn.core.devices.device._BETWEEN_WAITS", 0.0)
    patient = _Waits(timeouts=2)
    vf.synchronize(device(patient), timeout=3.0, retries=2)
    assert patient.timeouts == [3.0, 3.0, 3.0]
    hasty = _Waits(timeouts=2)
    with pytest.raises(DeviceTimeoutError) as caught:
        vf.synchronize(device(hasty), retries=1)
    assert isinstance(caught.value, DeviceError) and isinstance(caught.value, TimeoutError)
    assert vf.debug.health(device(hasty)).reasons[-1] == "2 of 2 waits ended with a time-out"
    with pytest.raises(ArgumentError, match="must not be negative, got -1"):
        vf.synchronize("cpu", retries=-1)
    assert vf.synchronize("cpu") is None


@pytest.mark.parametrize(("in_use", "status"), [(0, "healthy"), (699, "healthy"), (700, "warning"), (899, "warning"), (900, "critical")])
def test_health_by_memory(in_use: int, status: str) -> None:
    report = vf.debug.health(device(_Waits(memory=MemoryStats(in_use, in_use, in_use, 1000))))
    assert report.status == status
    assert bool(report.reasons) == (status != "healthy")


def test_where_nothing_is_known_nothing_is_claimed() -> None:
    report = vf.debug.health("cpu")
    assert report.status == "unknown" and "no limit" in report.reasons[0]
    late = _Waits(timeouts=1)
    with pytest.raises(DeviceTimeoutError):
        vf.synchronize(device(late))
    assert vf.debug.health(device(late)).status == "warning"


def test_a_monitor_of_the_gpu() -> None:
    with vf.default_device(GPU):
        step = vf.jit(lambda x: (x * 0.5, (x @ x).sum()))
        x, loss = step(jnp.ones((64, 64)))
        with vf.debug.Monitor() as monitor:
            for _ in range(10):
                x, loss = step(x)
            assert np.isfinite(float(loss))
            monitor.checkpoint("read")
            retained = [step(x) for _ in range(5)]
            vf.synchronize()
        stats = monitor.stats()
        del retained
    assert [c.label for c in monitor.checkpoints] == ["begin", "read", "end"]
    assert stats.dispatches >= 30 and stats.batches >= 2 and stats.reads >= 1 and stats.timeouts == 0
    assert 0 < stats.waited <= stats.seconds and stats.dispatches_per_second == stats.dispatches / stats.seconds
    assert stats.peak >= 5 * 64 * 64 * 4
    assert monitor.checkpoints[-1].work.under_way == 0
    monitor.reset()
    assert monitor.stats().dispatches == 0
