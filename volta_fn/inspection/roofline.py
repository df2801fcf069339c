"""How fast a device can compute and move bytes, measured with its own kernels.

The bytes in a second depend on how many there are, since caches are faster than memory; so several sizes are measured.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from volta_fn.core.array import Array
from volta_fn.core.device import Device
from volta_fn.core.memory.transfer import block_until_ready, device_put
from volta_fn.jit import jit

#: Rows and columns of the products, and the bytes of the arrays that are measured: for CPUs, and for devices that are slow to start.
_ROWS = (512, 1024)
_BYTES = (1 << 16, 1 << 20, 1 << 24, 1 << 26)
#: Seconds that a measurement takes at least, and the most calls.
_SECONDS, _CALLS = 0.02, 50


class Roofline(NamedTuple):
    """A device's measured rates.

    `flops` is in operations per second, of float32; `bandwidths` are pairs (bytes, bytes per second), from few to many.
    """

    device: str
    flops: float
    bandwidths: tuple[tuple[int, float], ...]

    def bandwidth(self, moved: int) -> float:
        """Return the bytes per second for a kernel that moves that many."""
        return next((rate for size, rate in self.bandwidths if moved <= size), self.bandwidths[-1][1])

    def seconds(self, flops: int, moved: int) -> float:
        """Return the least seconds for so many operations and bytes."""
        return max(flops / self.flops, moved / self.bandwidth(moved))


@functools.cache
def roofline_of(device: Device) -> Roofline:
    """Measure a device, once in a process; it takes about a second."""
    flops = max(2 * n**3 / _seconds(lambda x: x @ x, _square(n, device)) for n in _ROWS)
    rates = []
    for size in _BYTES:
        x = device_put(np.ones(size // 8, np.float32), device)  # as many bytes are read as written
        rates.append((size, size / _seconds(lambda x: x + 1, x)))
    return Roofline(repr(device), flops, tuple(rates))


def _square(n: int, device: Device) -> Array:
    made: Array = device_put(np.ones((n, n), np.float32), device)
    return made


def _seconds(function: Callable[..., Any], x: Array) -> float:
    """Return the seconds of the fastest of some calls."""
    run = jit(function)
    return fastest(lambda: block_until_ready(run(x)))


def samples(call: Callable[[], Any], seconds: float = _SECONDS, most: int = _CALLS) -> Sequence[float]:
    """Return the seconds of some calls, after one that may compile."""
    call()
    found: list[float] = []
    while len(found) < 3 or (sum(found) < seconds and len(found) < most):
        start = time.perf_counter()
        call()
        found.append(time.perf_counter() - start)
    return found


def fastest(call: Callable[[], Any]) -> float:
    """Return the seconds of the fastest of some calls."""
    return max(min(samples(call)), 1e-9)
