"""Watch a device: its state now (`debug.health`), and its work (`debug.Monitor`)."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

from volta_fn.core.device import Device, MemoryStats, WorkStats, current_default_device, device_memory_stats, device_work_stats, find_device

#: Fractions of the memory limit from which on the status is "warning" and "critical".
_WARNING, _CRITICAL = 0.7, 0.9


class Health(NamedTuple):
    """The state of a device.

    `status` is "healthy", "warning", "critical", or "unknown" if its memory has no known limit; `reasons` say why.
    """

    status: str
    reasons: tuple[str, ...]
    memory: MemoryStats
    work: WorkStats


def health(device: str | Device | None = None) -> Health:
    """Return the state of a device: its memory, its limit, and time-outs.

    Not every system tells how much memory a GPU has; `volta_fn.set_memory_limit` sets a limit. See also
    `volta_fn.errors.MemoryGrowthWarning`, which is issued when memory grows from step to step.

    >>> import volta_fn as vf
    >>> vf.debug.health("cpu").status
    'unknown'
    """
    memory, work = device_memory_stats(device), device_work_stats(device)
    if memory.limit is None:
        status, reasons = "unknown", ["no limit of memory is known; volta_fn.set_memory_limit sets one"]
    else:
        used = memory.in_use / max(memory.limit, 1)
        status = "critical" if used >= _CRITICAL else "warning" if used >= _WARNING else "healthy"
        reasons = [] if status == "healthy" else [f"{used:.0%} of the memory's limit is in use"]
    if work.timeouts:
        status = "critical" if status == "critical" else "warning"
        reasons.append(f"{work.timeouts} of {work.waits} waits ended with a time-out")
    return Health(status, tuple(reasons), memory, work)


class Checkpoint(NamedTuple):
    """A moment: a label, seconds since the start, and the device's memory and work."""

    label: str
    seconds: float
    memory: MemoryStats
    work: WorkStats


class MonitorStats(NamedTuple):
    """Seconds, peak memory at checkpoints, and differences of `WorkStats`."""

    seconds: float
    peak: int
    dispatches: int
    batches: int
    reads: int
    waits: int
    waited: float
    timeouts: int

    @property
    def dispatches_per_second(self) -> float:
        """Kernels dispatched per second."""
        return self.dispatches / self.seconds if self.seconds else 0.0


class Monitor:
    """Records a device's work; a ``with`` block starts and ends with a checkpoint.

    >>> import volta_fn as vf
    >>> with vf.debug.Monitor("cpu") as monitor:
    ...     x = vf.numpy.arange(3.0).sum()
    ...     _ = monitor.checkpoint("summed")
    >>> [c.label for c in monitor.checkpoints], monitor.stats().dispatches
    (['begin', 'summed', 'end'], 0)
    """

    def __init__(self, device: str | Device | None = None) -> None:
        self.device = current_default_device() if device is None else find_device(device)
        self.checkpoints: list[Checkpoint] = []
        self.reset()

    def reset(self) -> None:
        """Drop all checkpoints and start again."""
        self._start = time.perf_counter()
        self.checkpoints.clear()
        self.checkpoint("begin")

    def checkpoint(self, label: str) -> Checkpoint:
        """Record the device's state, without waiting for it."""
        seconds = time.perf_counter() - self._start
        found = Checkpoint(label, seconds, device_memory_stats(self.device), device_work_stats(self.device))
        self.checkpoints.append(found)
        return found

    def stats(self) -> MonitorStats:
        """Return the differences between the first checkpoint and the last."""
        first, last = self.checkpoints[0], self.checkpoints[-1]
        done = {name: getattr(last.work, name) - getattr(first.work, name) for name in MonitorStats._fields[2:]}
        return MonitorStats(last.seconds, max(c.memory.in_use for c in self.checkpoints), **done)

    def __enter__(self) -> Monitor:
        self.reset()
        return self

    def __exit__(self, *error: Any) -> None:
        self.checkpoint("end")
