"""Watch a device.

Its state, its work, and blocks in which NaN and infinities raise.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

from volta_fn import config
from volta_fn.core.device import Device, MemoryStats, WorkStats, current_default_device, device_memory_stats, device_work_stats, find_device
from volta_fn.jit.cache import clear_caches
from volta_fn.settings import current

# ------------------------------------------------------------------------------
# Blocks in which NaN, infinities and indices out of range raise where they arise.
# ------------------------------------------------------------------------------


@contextmanager
def nans(*, infs: bool = False) -> Iterator[None]:
    """Raise `NonFiniteError` for the first NaN in a block, and with `infs` infinity.

    The message has the primitive, the line of the forward computation, the operands' ranges, the iterations of loops, the example that
    `vmap` maps, and what to do. Programs run one equation at a time meanwhile, on their device; other threads' as well.

    >>> import volta_fn as vf
    >>> with vf.debug.nans():
    ...     vf.jit(lambda x: vf.numpy.log(x - 1))(0.5)
    Traceback (most recent call last):
    volta_fn.errors.NonFiniteError: invalid value (nan) encountered in log...
    """
    with ExitStack() as stack:
        stack.enter_context(config.debug_nans(True))
        if infs:
            stack.enter_context(config.debug_infs(True))
        yield


@contextmanager
def indices() -> Iterator[None]:
    """Raise `OutOfBoundsError` for an index out of range in a block, in programs too.

    Programs are traced again in the block, and call back to Python with each index.

    >>> import volta_fn as vf
    >>> with vf.debug.indices():
    ...     vf.jit(lambda x, i: vf.numpy.take(x, i))(vf.numpy.arange(3.0), 5)
    Traceback (most recent call last):
    volta_fn.errors.OutOfBoundsError: ...
    """
    before = current.check_indices
    try:
        current.check_indices = True
        clear_caches()
        yield
    finally:
        current.check_indices = before
        clear_caches()


# ------------------------------------------------------------------------------
# Watch a device: its state now (`debug.health`), and its work (`debug.Monitor`).
# ------------------------------------------------------------------------------

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
