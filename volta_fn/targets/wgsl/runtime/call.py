"""Execute one call of a program with the blocks that it was given."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from volta_fn.errors import ShapeError
from volta_fn.targets.wgsl.runtime.commands import BufferRange, Command, Host, Loop, Run, Submit, While
from volta_fn.targets.wgsl.runtime.device.memory import Lease
from volta_fn.targets.wgsl.runtime.device.pipelines import BoundRange
from volta_fn.targets.wgsl.runtime.submission.command_lists import CommandList
from volta_fn.targets.wgsl.runtime.submission.replay import Step, play

if TYPE_CHECKING:
    from volta_fn.targets.wgsl.runtime.device.gpu import Gpu

#: The most dispatches of a recording that is kept.
_LONGEST = 1 << 12

#: Iterations of a `while` between two reads of its flag, at most.
_MOST_ITERATIONS = 64


class Call:
    """One call of a program: the blocks of all slots and the iterations of its loops."""

    def __init__(self, gpu: Gpu, leases: Sequence[Lease], key: tuple[int, ...]) -> None:
        """Prepare a call. `key` holds the numbers of the blocks that recordings depend on."""
        self.gpu = gpu
        self.queue = gpu.queue
        self.leases = leases  # keeps the blocks
        self.blocks = [lease.block for lease in leases]
        self.key = key
        self.iterations: dict[int, int] = {}

    def run(self, commands: Sequence[Any]) -> None:
        """Execute commands."""
        for command in commands:
            if isinstance(command, CommandList):
                with self.queue.lock:
                    self.run_list(command)
            elif isinstance(command, Host):
                self.host(command)
            elif isinstance(command, While):
                self.repeat(command)
            elif isinstance(command, Submit):
                self.queue.submit()
                self.queue.hold_back()
            else:
                for iteration in range(command.iterations):
                    self.iterations[command.number] = iteration
                    self.run(command.body)

    # dispatches

    def run_list(self, command_list: CommandList) -> None:
        """Write the dispatches of a command list to the queue."""
        gpu = self.gpu
        gpu.pipelines.drop_groups()
        trims = gpu.trims
        key = (self.key, *self.iterations.values())
        recording = command_list.recording(key, trims)
        if recording is not None:
            if not recording.replay(self.queue):
                play(self.queue, recording.steps)
            return
        steps: list[Step] = []
        count = 0
        for step in self.steps(command_list.commands):
            steps.append(step)
            if len(steps) == _LONGEST:  # too long to be recorded
                play(self.queue, steps)
                count += len(steps)
                steps = []
                gpu.pipelines.drop_groups()
        play(self.queue, steps)
        if not count and gpu.trims == trims:
            command_list.keep(key, steps)

    def steps(self, commands: Sequence[Command]) -> Iterator[Step]:
        """Yield dispatches one by one."""
        for command in commands:
            if isinstance(command, Run):
                yield self.step(command)
            elif isinstance(command, Loop):
                for iteration in range(command.iterations):
                    self.iterations[command.number] = iteration
                    yield from self.steps(command.body)
                self.iterations.pop(command.number, None)

    def step(self, run: Run) -> Step:
        """Resolve one dispatch: its pipeline, bind group and grid."""
        pipelines = self.gpu.pipelines
        pipeline = pipelines.find(*run.key)
        group = pipelines.group(pipeline, tuple([self.binding(p) for p in run.ranges]))
        if run.region is None:
            return Step(pipeline.handle, group, run.groups, None, 0)
        grids = self.blocks[run.region.grids.number].handle
        return Step(pipeline.handle, group, run.groups, grids, 4 * run.region.branches + 12 * run.entry)

    def binding(self, span: BufferRange) -> BoundRange:
        """Return the range of a block that a range of a slot denotes in this iteration."""
        offset = span.offset
        for loop, stride in span.strides:
            offset += stride * self.iterations[loop]
        return BoundRange(self.blocks[span.slot.number], offset, span.size)

    # the host

    def host(self, command: Host) -> None:
        """Call NumPy."""
        if command.flag is not None and not self.word(command.flag):
            return
        arrays = [self.read(*operand) for operand in command.operands]
        results = command.compute(*arrays)
        self.gpu.host_steps[command.name] += 1
        for (span, shape, dtype), value in zip(command.results, results, strict=True):
            found = np.asarray(value, dtype)
            if found.shape != shape:
                raise ShapeError(f"{command.name} declares a result of shape {shape}, but its evaluation by NumPy gave {found.shape}")
            data = np.ascontiguousarray(found).reshape(-1).view(np.uint8)
            if data.nbytes:
                self.write(span, data)

    def write(self, span: BufferRange, data: np.ndarray) -> None:
        """Write bytes to a range, after the pending commands."""
        binding = self.binding(span)
        with self.queue.lock:
            self.queue.submit()
            self.queue.write(binding.block, data, binding.offset)

    def read(self, span: BufferRange, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """Read an array to the host."""
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        if not size:
            return np.empty(shape, dtype)
        binding = self.binding(span)
        return self.queue.read(binding.block, size, binding.offset).view(dtype).reshape(shape)

    def word(self, span: BufferRange) -> bool:
        """Return whether a word on the device is not zero."""
        return bool(self.read(span, (), np.dtype(np.uint32)))

    def repeat(self, command: While) -> None:
        """Run the iterations of a `while`, several between two reads of its flag.

        Iterations after the end do nothing.
        """
        iterations = 1
        while self.word(command.flag):
            for _ in range(iterations):
                self.run(command.body)
            if all(isinstance(c, CommandList) for c in command.body):
                iterations = min(2 * iterations, _MOST_ITERATIONS)
