"""Watching a device: `debug.health`, how it is now, and `debug.Monitor`, what a piece of a program had it do."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

from volta_fn.core.device import Device, MemoryStats, WorkStats, current_default_device, device_memory_stats, device_work_stats, find_device

#: Parts of the memory's limit from which on there is a warning, and little room is left.
_MUCH, _NEARLY_ALL = 0.7, 0.9


class Health(NamedTuple):
    """How a device is.

    `status` is "healthy", "warning", "critical", or "unknown" where no limit is known for its memory; `reasons` say why.
    """

    status: str
    reasons: tuple[str, ...]
    memory: MemoryStats
    work: WorkStats


def health(device: str | Device | None = None) -> Health:
    """How a device (default: the default device) is: its memory beside its limit, and whether it answered in time.

    How much memory there is cannot be asked of a GPU in all systems: `volta_fn.set_memory_limit` says it. See also
    `volta_fn.errors.MemoryGrowthWarning`, which comes by itself when memory grows from step to step.

    >>> import volta_fn as vf
    >>> vf.debug.health("cpu").status
    'unknown'
    """
    memory, work = device_memory_stats(device), device_work_stats(device)
    if memory.limit is None:
        status, reasons = "unknown", ["no limit of memory is known; volta_fn.set_memory_limit sets one"]
    else:
        used = memory.in_use / max(memory.limit, 1)
        status = "critical" if used >= _NEARLY_ALL else "warning" if used >= _MUCH else "healthy"
        reasons = [] if status == "healthy" else [f"{used:.0%} of the memory's limit is in use"]
    if work.timeouts:
        status = "critical" if status == "critical" else "warning"
        reasons.append(f"{work.timeouts} of {work.waits} waits ended with a time-out")
    return Health(status, tuple(reasons), memory, work)


class Checkpoint(NamedTuple):
    """A moment: its label, seconds since the beginning, and what the device held and had been given to do."""

    label: str
    seconds: float
    memory: MemoryStats
    work: WorkStats


class MonitorStats(NamedTuple):
    """What was done up to the last checkpoint: seconds, most bytes in use at a checkpoint, and differences of `WorkStats`."""

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
        """How many kernels were started in a second."""
        return self.dispatches / self.seconds if self.seconds else 0.0


class Monitor:
    """Notes what a device does; a ``with`` block begins, and ends with a checkpoint.

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
        """Begin anew."""
        self._start = time.perf_counter()
        self.checkpoints.clear()
        self.checkpoint("begin")

    def checkpoint(self, label: str) -> Checkpoint:
        """Note how things stand, without waiting for the device."""
        seconds = time.perf_counter() - self._start
        found = Checkpoint(label, seconds, device_memory_stats(self.device), device_work_stats(self.device))
        self.checkpoints.append(found)
        return found

    def stats(self) -> MonitorStats:
        """What was done between the first checkpoint and the last."""
        first, last = self.checkpoints[0], self.checkpoints[-1]
        done = {name: getattr(last.work, name) - getattr(first.work, name) for name in MonitorStats._fields[2:]}
        return MonitorStats(last.seconds, max(c.memory.in_use for c in self.checkpoints), **done)

    def __enter__(self) -> Monitor:
        self.reset()
        return self

    def __exit__(self, *error: Any) -> None:
        self.checkpoint("end")
