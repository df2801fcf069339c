"""Detecting memory leaks: a warning when memory grows from call to call of a program, long before there is none left."""

from __future__ import annotations

import warnings

from volta_fn.errors import MemoryGrowthWarning

#: Samples that are compared.
_LOOKS = 10

#: Growth in bytes that is worth a warning where the limit is not known.
_MUCH = 1 << 30


class Trend:
    """Samples of the memory in use before calls of one program, compared after 10 calls and whenever there were twice as many.

    If more was in use at each sample than at the one before, and twice as many calls again would reach the limit, there is a warning. So
    steady growth is detected before it has used three quarters of the room.
    """

    def __init__(self) -> None:
        self.calls = 0
        #: Calls from one sample to the next.
        self.apart = 1
        self.looks: list[int] = []

    def look(self, in_use: int, limit: int | None) -> None:
        """Note what is in use before a call."""
        self.calls += 1
        if self.calls % self.apart:
            return
        self.looks.append(in_use)
        if len(self.looks) < _LOOKS:
            return
        first, last = self.looks[0], in_use
        grows = all(a < b for a, b in zip(self.looks, self.looks[1:], strict=False))
        self.looks = self.looks[1::2]
        self.apart *= 2
        if grows and (last - first > _MUCH if limit is None else 3 * last - 2 * first > limit):
            room = "an unknown limit" if limit is None else f"{limit} at most"
            warnings.warn(
                f"a program has found more of the GPU's memory in use at each call, {first} bytes at first and {last} after {self.calls} "
                f"calls, of {room}. Something keeps arrays from call to call, such as a list of losses: keep float(loss) instead",
                MemoryGrowthWarning,
                stacklevel=4,
            )
