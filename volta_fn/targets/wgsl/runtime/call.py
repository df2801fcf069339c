"""One call of a program: its commands executed with the blocks that it was given."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from volta_fn.errors import ShapeError
from volta_fn.targets.wgsl.runtime.command_lists import CommandList
from volta_fn.targets.wgsl.runtime.commands import Command, Host, Loop, Place, Run, Submit, While
from volta_fn.targets.wgsl.runtime.memory import Lease
from volta_fn.targets.wgsl.runtime.pipelines import Binding
from volta_fn.targets.wgsl.runtime.replay import Step, play

if TYPE_CHECKING:
    from volta_fn.targets.wgsl.runtime.gpu import Gpu

#: The most dispatches of a recording that is kept.
_LONGEST = 1 << 12

#: Iterations of a `while` between two reads of its flag, at most.
_MOST_TURNS = 64


class Call:
    """One call of a program: the blocks of all slots, by the slots' numbers, and the current iteration of each loop."""

    def __init__(self, gpu: Gpu, leases: Sequence[Lease], key: tuple[int, ...]) -> None:
        """`key`: the numbers of the blocks that recordings depend on, besides the turns of loops."""
        self.gpu = gpu
        self.queue = gpu.queue
        self.leases = leases  # which keeps them
        self.blocks = [lease.block for lease in leases]
        self.key = key
        self.turns: dict[int, int] = {}

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
                for turn in range(command.turns):
                    self.turns[command.number] = turn
                    self.run(command.body)

    # dispatches

    def run_list(self, command_list: CommandList) -> None:
        """Write dispatches to the queue."""
        gpu = self.gpu
        gpu.pipelines.drop_groups()
        trims = gpu.trims
        key = (self.key, *self.turns.values())
        recording = command_list.recording(key, trims)
        if recording is not None:
            if not recording.replay(self.queue):
                play(self.queue, recording.steps)
            return
        steps: list[Step] = []
        count = 0
        for step in self.steps(command_list.commands):
            steps.append(step)
            if len(steps) == _LONGEST:  # too long to be kept
                play(self.queue, steps)
                count += len(steps)
                steps = []
                gpu.pipelines.drop_groups()
        play(self.queue, steps)
        if not count and gpu.trims == trims:
            command_list.keep(key, steps)

    def steps(self, commands: Sequence[Command]) -> Iterator[Step]:
        """Dispatches, one by one."""
        for command in commands:
            if isinstance(command, Run):
                yield self.step(command)
            elif isinstance(command, Loop):
                for turn in range(command.turns):
                    self.turns[command.number] = turn
                    yield from self.steps(command.body)
                self.turns.pop(command.number, None)

    def step(self, run: Run) -> Step:
        """One dispatch."""
        pipelines = self.gpu.pipelines
        pipeline = pipelines.find(*run.key)
        group = pipelines.group(pipeline, tuple([self.binding(p) for p in run.places]))
        if run.region is None:
            return Step(pipeline.handle, group, run.groups, None, 0)
        grids = self.blocks[run.region.grids.number].handle
        return Step(pipeline.handle, group, run.groups, grids, 4 * run.region.branches + 12 * run.entry)

    def binding(self, place: Place) -> Binding:
        """Which part of which block a place is."""
        offset = place.offset
        for loop, stride in place.strides:
            offset += stride * self.turns[loop]
        return Binding(self.blocks[place.slot.number], offset, place.size)

    # the host's part

    def host(self, command: Host) -> None:
        """Call NumPy."""
        if command.flag is not None and not self.word(command.flag):
            return
        arrays = [self.read(*operand) for operand in command.operands]
        results = command.compute(*arrays)
        self.gpu.host_steps[command.name] += 1
        for (place, shape, dtype), value in zip(command.results, results, strict=True):
            found = np.asarray(value, dtype)
            if found.shape != shape:
                raise ShapeError(f"{command.name} promises an array of shape {shape}, but its evaluation by NumPy gave {found.shape}")
            data = np.ascontiguousarray(found).reshape(-1).view(np.uint8)
            if data.nbytes:
                self.write(place, data)

    def write(self, place: Place, data: np.ndarray) -> None:
        """Write bytes to a place, after what is waiting."""
        binding = self.binding(place)
        with self.queue.lock:
            self.queue.submit()
            self.queue.write(binding.block, data, binding.offset)

    def read(self, place: Place, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """An array on the host."""
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        if not size:
            return np.empty(shape, dtype)
        binding = self.binding(place)
        return self.queue.read(binding.block, size, binding.offset).view(dtype).reshape(shape)

    def word(self, place: Place) -> bool:
        """Whether a word is not zero."""
        return bool(self.read(place, (), np.dtype(np.uint32)))

    def repeat(self, command: While) -> None:
        """Iterations of a `while`, several at a time: those beyond the end do nothing."""
        turns = 1
        while self.word(command.flag):
            for _ in range(turns):
                self.run(command.body)
            if all(isinstance(c, CommandList) for c in command.body):
                turns = min(2 * turns, _MOST_TURNS)
