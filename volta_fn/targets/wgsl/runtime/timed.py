"""Programs that note when each of their dispatches begins and ends, for profilers.

Each dispatch is a compute pass of its own, whose begin and end the device notes (WebGPU's timestamp queries).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from volta_fn.compiler.target import Item, LoweredProgram
from volta_fn.core.jaxpr import ClosedJaxpr
from volta_fn.errors import DeviceError
from volta_fn.targets.wgsl.runtime.command_lists import CommandList, Step, play
from volta_fn.targets.wgsl.runtime.commands import Run
from volta_fn.targets.wgsl.runtime.device.gpu import Gpu
from volta_fn.targets.wgsl.runtime.device.memory import Lease
from volta_fn.targets.wgsl.runtime.program import Call, Program

if TYPE_CHECKING:
    from volta_fn.compiler.target import Pipeline

#: Queries of a set, of which each dispatch takes two.
_QUERIES = 4096
_QUERY_RESOLVE, _COPY_SRC = 0x200, 0x4


class Timestamps:
    """The begin and the end of dispatches, in the device's memory until they are read."""

    def __init__(self, gpu: Gpu) -> None:
        if "timestamp-query" not in gpu.opened.features:
            raise DeviceError(f"the GPU {gpu.opened.name} has no timestamp queries, so the times of its dispatches are unknown")
        self.gpu = gpu
        self.sets: list[Any] = []
        self.count = 0

    def begin(self) -> None:
        """Begin a compute pass for the next dispatch."""
        first = 2 * self.count % _QUERIES
        if not first:
            self.sets.append(self.gpu.opened.device.create_query_set(type="timestamp", count=_QUERIES))
        self.gpu.queue.begin_timed(self.sets[-1]._internal, first)
        self.count += 1

    def read(self) -> np.ndarray:
        """Wait for the dispatches; return begin and end of each.

        They are in nanoseconds from the first begin on.
        """
        device, queue = self.gpu.opened.device, self.gpu.queue
        buffers = []
        for query_set in self.sets:
            buffer = device.create_buffer(size=8 * _QUERIES, usage=_QUERY_RESOLVE | _COPY_SRC)
            with queue.lock:
                queue.resolve(query_set._internal, _QUERIES, buffer._internal)
            buffers.append(buffer)
        queue.wait()
        raw = [np.frombuffer(device.queue.read_buffer(buffer), np.uint64) for buffer in buffers]
        if not self.count:
            return np.zeros((0, 2), np.int64)
        moments = np.concatenate(raw)[: 2 * self.count].reshape(-1, 2)
        period = queue.lib.wgpuQueueGetTimestampPeriod(queue.queue)
        return ((moments - moments.min()).astype(np.float64) * period).astype(np.int64)


class _TimedCall(Call):
    """A call that writes each dispatch to a compute pass of its own."""

    def __init__(self, gpu: Gpu, leases: Sequence[Lease], key: tuple[int, ...], stamps: Timestamps, noted: list[Run]) -> None:
        super().__init__(gpu, leases, key)
        self.stamps, self.noted = stamps, noted

    def step(self, run: Run) -> Step:
        """Resolve one dispatch, and note which it is."""
        self.noted.append(run)
        return super().step(run)

    def run_list(self, command_list: CommandList) -> None:
        """Write the dispatches of a command list to the queue, one by one."""
        self.gpu.pipelines.drop_groups()
        for step in self.steps(command_list.commands):
            self.stamps.begin()
            play(self.queue, [step])


class TimedProgram(Program):
    """A compiled program of a GPU that notes the time of each dispatch.

    Attributes:
        items: what the numbers in `times` stand for; the first, None, is what is between items.
    """

    device = "gpu"

    def __init__(self, gpu: Gpu, closed: ClosedJaxpr, donated: Sequence[bool], pipeline: Pipeline) -> None:
        super().__init__(gpu, closed, donated, pipeline, reads_ahead=False)
        self.lowered: LoweredProgram = pipeline.lower(closed, gpu.target)
        self.items: list[tuple[LoweredProgram, Item] | None] = [None, *_items(self.lowered)]
        self._numbers = {id(entry[1]): number for number, entry in enumerate(self.items) if entry is not None}
        self._stamps, self._noted = Timestamps(gpu), list[Run]()

    def __call__(self, donate: bool, *buffers: Any) -> Any:
        """Run the program on buffers, and note the times of this call alone."""
        self._stamps, self._noted = Timestamps(self.gpu), []
        return super().__call__(donate, *buffers)

    def times(self) -> list[tuple[tuple[int, ...], int, int]]:
        """Wait for the call; return (numbers of items, begin, end) of its dispatches.

        They are in nanoseconds from its begin.
        """
        noted = zip(self._noted, self._stamps.read().tolist(), strict=True)
        return [(tuple([self._numbers[id(i)] for i in run.items if id(i) in self._numbers]) or (0,), a, b) for run, (a, b) in noted]

    def noted(self) -> Callable[[], list[tuple[tuple[int, ...], int, int]]]:
        """Return what `times` would, as a function."""
        found = self.times()
        return lambda: found

    @property
    def is_full(self) -> bool:
        """False: there are as many query sets as needed."""
        return False

    def settle(self) -> None:
        """Wait for the shaders that replace simpler ones."""
        self.gpu.pipelines.upgrades.settle()

    def _again(self, given: Sequence[Lease], new: Sequence[Lease]) -> bool:
        return False

    def _call(self, given: Sequence[Lease], new: Sequence[Lease]) -> Call:
        call = super()._call(given, new)
        return _TimedCall(self.gpu, call.leases, call.key, self._stamps, self._noted)


def _items(program: LoweredProgram) -> list[tuple[LoweredProgram, Item]]:
    """Return a program's items and those in its control flow, in order."""
    found = []
    for item in program.items:
        if item.is_needed:
            found.append((program, item))
            found += [entry for inner in item.programs for entry in _items(inner)]
    return found
