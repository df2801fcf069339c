"""Detect memory leaks: warn when memory grows from call to call of a program.

The warning comes long before none is left.
"""

from __future__ import annotations

import warnings

from volta_fn.errors import MemoryGrowthWarning

#: Samples to compare.
_SAMPLES = 10

#: Growth in bytes that is worth a warning if the limit is unknown.
_MUCH = 1 << 30


class Trend:
    """Samples of the memory in use before calls of one program.

    They are compared after 10 calls and at each doubling. If more was in use at each sample than at the one before, and twice as many calls
    again would reach the limit, it warns. So it detects steady growth before three quarters of the memory are used.
    """

    def __init__(self) -> None:
        self.calls = 0
        #: Calls between samples.
        self.interval = 1
        self.samples: list[int] = []

    def sample(self, in_use: int, limit: int | None) -> None:
        """Record the memory in use before a call."""
        self.calls += 1
        if self.calls % self.interval:
            return
        self.samples.append(in_use)
        if len(self.samples) < _SAMPLES:
            return
        first, last = self.samples[0], in_use
        grows = all(a < b for a, b in zip(self.samples, self.samples[1:], strict=False))
        self.samples = self.samples[1::2]
        self.interval *= 2
        if grows and (last - first > _MUCH if limit is None else 3 * last - 2 * first > limit):
            room = "an unknown limit" if limit is None else f"{limit} at most"
            warnings.warn(
                f"a program has found more of the GPU's memory in use at each call, {first} bytes at first and {last} after {self.calls} "
                f"calls, of {room}. Something keeps arrays from call to call, such as a list of losses: keep float(loss) instead",
                MemoryGrowthWarning,
                stacklevel=4,
            )
