"""Stages of shared memory, which are filled while others are read.

The tensor memory accelerator copies to them.

One thread, of the warp group that copies, fills a stage when it is empty; the warps that multiply read it when it is full. Two barriers
(`mbarrier`) per stage tell so: a phase of the first ends when all bytes have arrived, one of the second when all warps have read them. A
stage is known by its number and the parity of its phases, which changes with every round of the stages.
"""

from __future__ import annotations

from volta_fn.runtime.llvm.text import Value
from volta_fn.targets.nvidia.function import KernelFunction, i32

#: Bytes of a barrier.
BARRIER = 8


class TilePipeline:
    """The barriers of some stages.

    Those that tell of full stages lie at an offset from an address of shared memory, the others follow.
    """

    def __init__(self, f: KernelFunction, base: Value, offset: int, stages: int) -> None:
        self._f, self._stages = f, stages
        self._full, self._empty = [f.plus(base, i32(offset + k * BARRIER * stages)) for k in range(2)]

    def begin(self, warps: int) -> None:
        """Initialise the barriers, by one thread; so many warps read each stage."""
        f = self._f
        for stage in range(self._stages):
            for barriers, arrivals in ((self._full, 1), (self._empty, warps)):
                f.begin_barrier(f.plus(barriers, i32(BARRIER * stage)), arrivals)

    def next(self, stage: Value, parity: Value) -> list[Value]:
        """Return the next stage, and the parity of its phase."""
        f = self._f
        following = f.plus(stage, i32(1))
        wraps = f.equals(following, self._stages)
        return [f.select(wraps, i32(0), following), f.binary("xor", parity, f.cast("zext", wraps, "i32"))]

    def empty(self, stage: Value) -> Value:
        """Return the barrier that tells that a stage is empty.

        It is when the phase of the other parity has ended.
        """
        return self._of_stage(self._empty, stage)

    def expect(self, stage: Value, count: int) -> Value:
        """Return the barrier at which copies of so many bytes to a stage arrive."""
        barrier = self._of_stage(self._full, stage)
        self._f.expect_bytes(barrier, count)
        return barrier

    def wait(self, stage: Value, parity: Value) -> None:
        """Wait until a stage is full."""
        self._f.wait_for_barrier(self._of_stage(self._full, stage), parity)

    def release(self, stage: Value) -> None:
        """Tell that this warp has read a stage."""
        self._f.arrive_in_first_lane(self.empty(stage))

    def _of_stage(self, barriers: Value, stage: Value) -> Value:
        return self._f.plus(barriers, self._f.times(stage, BARRIER))
