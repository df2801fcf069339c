"""Programs ready to run: functions of buffers.

What they have the GPU do without the host in between is written to the queue once, and then again (see `stretches`).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from typing import Any

import numpy as np

from volta_fn.backends.wgsl.routine import Dispatch
from volta_fn.backends.wgsl.runtime.abreast import abreast, longest, stays_alone
from volta_fn.backends.wgsl.runtime.commands import Command, Host, Loop, Place, Run, Submit, While, runs
from volta_fn.backends.wgsl.runtime.control_flow import CONTROL_FLOW
from volta_fn.backends.wgsl.runtime.gpu import Gpu
from volta_fn.backends.wgsl.runtime.memory import Buffer, Lease, size_class
from volta_fn.backends.wgsl.runtime.pipelines import Binding
from volta_fn.backends.wgsl.runtime.replay import AT_A_TIME, Step
from volta_fn.backends.wgsl.runtime.results import Results, shaped
from volta_fn.backends.wgsl.runtime.stretches import Stretch, stretches
from volta_fn.backends.wgsl.runtime.trend import Trend
from volta_fn.backends.wgsl.runtime.writer import Writer
from volta_fn.compiler.bodies import Body, body_of
from volta_fn.compiler.memory import Lifetime
from volta_fn.compiler.writing import made_by, outputs_of, reusable, write_program
from volta_fn.core.jaxpr import ClosedJaxpr, Equation, Var

#: The number of a lease's block.
_number = attrgetter("block.number")

#: Dispatches of a tape that is kept, at most.
_LONGEST = 1 << 12

#: Turns of a `while` between two looks at its flag, at most.
_MOST_TURNS = 64


class Program:
    """A compiled program: a function ``(donate, *buffers) -> buffers``."""

    def __init__(self, gpu: Gpu, closed: ClosedJaxpr, donated: Sequence[bool] = (), *, posting: bool = True, called: bool = True) -> None:
        """Compile a program. If `posting`, small results that were read once are sent to the host at once from then on.

        If it will be `called`, the memory that it needs is asked for meanwhile.
        """
        self.gpu = gpu
        for aval in (*closed.in_avals, *closed.out_avals, *[v.aval for eqn in closed.eqns for v in eqn.outvars]):
            gpu.check_dtype(aval.dtype)
        with gpu.pipelines.ahead() as begin:
            body = body_of(closed, gpu.lane)
            made = made_by(body)
            #: Results that take the memory of donated arguments: pairs of their numbers.
            self.reuse = dict(reusable(body, made, donated))
            writer, commands = self._written(body, made, begin)
            #: Better shaders than those that it begins with, until they are asked for, and whether it was called.
            self.better = {run.key: run.better for run in runs(commands) if run.better is not None}
            self.called = False
            self.slots = [*writer.slots.ordered()]
            for number, slot in enumerate(writer.regions, len(self.slots)):
                slot.number = number
            self.regions = [slot.size for slot in writer.regions]
            self.arguments = len(body.program.jaxpr.invars)
            outputs = outputs_of(body, made)
            put = [shaped(gpu.put(np.asarray(o.constant)), o.shape) for o in outputs if o.constant is not None]
            self.results = Results(outputs, put, [v.aval for v in made], self.reuse, closed.in_avals, posting=posting)
            constants = [gpu.constant(array) for array in writer.slots.arrays()]
            self.constants = [gpu.lease_of(c) for c in constants]
            #: What is in use from call to call; single operations are called from everywhere.
            self.trend = Trend() if posting else None
            self.sizes, self.numbers = _shared(writer.slots.lifetimes())
            self.commands = stretches(commands)
            #: Whether the host has something to do in the middle, while other programs may run.
            self.interrupted = not all(isinstance(c, Stretch) for c in self.commands)
            #: All that a call does, if that depends on nothing but the blocks that it brings.
            self.whole: Stretch | None = self.commands[0] if len(self.commands) == 1 and not self.interrupted and not self.regions else None
            if called and not self.interrupted:
                with gpu.queue.lock:
                    gpu.temporaries(self.sizes)

    def _written(self, body: Body, made: Sequence[Var], begin: Callable[[str, int, frozenset[int]], None]) -> tuple[Writer, list[Command]]:
        """The program's commands, and their writer; shaders are begun with as soon as they are written, products' first."""
        gpu = self.gpu
        most = longest(len({item.source.key for item in body.items if item.source is not None}))
        for dispatch in _long_ones(gpu, body, most):
            begin(dispatch.source, len(dispatch.buffers), dispatch.places_written)
        writer = Writer(gpu.lane, gpu.facts, gpu.routine, CONTROL_FLOW, begin, most)
        write_program(writer, body, made, self.reuse)
        commands = abreast(writer.commands, writer.slots, gpu.facts, most)
        for run in runs(commands):
            begin(*run.key)
        return writer, commands

    @property
    def temporaries(self) -> int:
        """Bytes of values that are neither arguments nor results."""
        return sum(map(size_class, self.sizes))

    def __call__(self, donate: bool, *arguments: Buffer) -> tuple[Buffer, ...]:
        """The results for arguments, of which the donated ones may be overwritten if `donate` says so."""
        gpu = self.gpu
        if self.better and self.called:
            gpu.pipelines.later.begin(self.better.items())
            self.better = {}
        self.called = True
        gpu.queue.hold_back()
        with gpu.queue.lock:
            if self.trend is not None:
                gpu.pool.collect()
                self.trend.look(gpu.pool.in_use, gpu.pool.limit)
            given = [a.lease or gpu.lease_of(a) for a in arguments]
            if self.reuse and not donate:
                arguments, given = self._with_copies(arguments)
            new = [gpu.pool.lease(size) for size in self.results.blocks]
            if not self.interrupted:
                if not self._again(given, new):
                    given = [gpu.lease_of(a) for a in arguments]
                    self._call(given, new).run(self.commands)
                return self._finished(arguments, given, new)
            given = [gpu.lease_of(a) for a in arguments]
            call = self._call(given, new)
        call.run(self.commands)
        with gpu.queue.lock:
            return self._finished(arguments, given, new)

    def _with_copies(self, arguments: Sequence[Buffer]) -> tuple[tuple[Buffer, ...], list[Lease]]:
        """The arguments, with copies of those that are overwritten; and their memory."""
        found = [*arguments]
        for number in self.reuse.values():
            buffer = arguments[number]
            found[number] = Buffer(self.gpu.copied(self.gpu.lease_of(buffer), buffer.size), buffer.shape, buffer.dtype, buffer.size)
        return tuple(found), [self.gpu.lease_of(a) for a in found]

    def _again(self, given: Sequence[Lease], new: Sequence[Lease]) -> bool:
        """Write what was written before for these blocks, if it was: what a call does that is not one of the first."""
        if self.whole is None:
            return False
        tape = self.whole.tape((tuple(map(_number, (*given, *new))),), self.gpu.trims)
        return tape is not None and tape.replay(self.gpu.queue)

    def _finished(self, arguments: Sequence[Buffer], given: Sequence[Lease], new: Sequence[Lease]) -> tuple[Buffer, ...]:
        results = self.results.of(arguments, given, new)
        self.results.post(results, self.gpu.queue.mail)
        self.gpu.queue.pause()
        return results

    def _call(self, given: Sequence[Lease], new: Sequence[Lease]) -> _Call:
        gpu = self.gpu
        scratch = [gpu.pool.lease(size) for size in self.sizes] if self.interrupted else gpu.temporaries(self.sizes)
        leases = [*given, *new, *[scratch[n] for n in self.numbers], *self.constants]
        leases += [gpu.grids.lease(size) for size in self.regions]
        return _Call(self, leases, len(given) + len(new))


def _long_ones(gpu: Gpu, body: Body, most: int) -> Iterator[Dispatch]:
    """Dispatches of products and other equations: theirs are the shaders that take longest to compile."""
    for item in body.items:
        if item.source is not None and isinstance(item.what, Equation):
            routine = gpu.routine(item.source)
            yield from [] if routine is None else [d for d in routine.dispatches if stays_alone(d, item.late, most)]


class _Call:
    """One call of a program: the blocks of all slots."""

    def __init__(self, program: Program, leases: Sequence[Lease], varying: int) -> None:
        self.gpu = program.gpu
        self.queue = program.gpu.queue
        self.leases = leases  # which keeps them
        self.blocks = blocks = [lease.block for lease in leases]
        #: What tapes depend on, besides the turns of loops.
        self.key = tuple([b.number for b in (blocks if program.interrupted or program.regions else blocks[:varying])])
        self.turns: dict[int, int] = {}

    def run(self, commands: Sequence[Any]) -> None:
        """Do commands."""
        for command in commands:
            if isinstance(command, Stretch):
                with self.queue.lock:
                    self.stretch(command)
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

    def stretch(self, stretch: Stretch) -> None:
        """Write dispatches to the queue."""
        gpu = self.gpu
        gpu.pipelines.drop_groups()
        trims = gpu.trims
        key = (self.key, *self.turns.values())
        tape = stretch.tape(key, trims)
        if tape is not None:
            if not tape.replay(self.queue):
                self.play(tape.steps)
            return
        steps: list[Step] = []
        count = 0
        for step in self.steps(stretch.commands):
            steps.append(step)
            if len(steps) == _LONGEST:  # long ones are not kept whole
                self.play(steps)
                count += len(steps)
                steps = []
                gpu.pipelines.drop_groups()
        self.play(steps)
        if not count and gpu.trims == trims:
            stretch.keep(key, steps)

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
        return Step(pipeline.handle, group, run.groups, grids, 4 * run.region.parts + 12 * run.entry)

    def binding(self, place: Place) -> Binding:
        """Which part of which block a place is."""
        offset = place.offset
        for loop, stride in place.strides:
            offset += stride * self.turns[loop]
        return Binding(self.blocks[place.slot.number], offset, place.size)

    def play(self, tape: Sequence[Step]) -> None:
        """Write steps to the queue."""
        queue, lib = self.queue, self.queue.lib
        set_pipeline, set_group = lib.wgpuComputePassEncoderSetPipeline, lib.wgpuComputePassEncoderSetBindGroup
        dispatch, indirect = lib.wgpuComputePassEncoderDispatchWorkgroups, lib.wgpuComputePassEncoderDispatchWorkgroupsIndirect
        null = queue.ffi.NULL
        for start in range(0, len(tape), AT_A_TIME):
            part = tape[start : start + AT_A_TIME]
            with queue.watched:
                run = queue.begin()
                for pipeline, group, (x, y, z), grids, offset in part:
                    set_pipeline(run, pipeline)
                    set_group(run, 0, group, 0, null)
                    if grids is None:
                        dispatch(run, x, y, z)
                    else:
                        indirect(run, grids, offset)
            queue.wrote(len(part))

    # the host's part

    def host(self, command: Host) -> None:
        """Call NumPy."""
        if command.flag is not None and not self.word(command.flag):
            return
        arrays = [self.read(*operand) for operand in command.operands]
        results = command.compute(*arrays)
        self.gpu.host_steps[command.name] += 1
        for (place, shape, dtype), value in zip(command.results, results, strict=True):
            data = np.ascontiguousarray(np.broadcast_to(np.asarray(value, dtype), shape)).reshape(-1).view(np.uint8)
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
        """Turns of a `while`, some at a time: those beyond the end do nothing."""
        turns = 1
        while self.word(command.flag):
            for _ in range(turns):
                self.run(command.body)
            if all(isinstance(c, Stretch) for c in command.body):
                turns = min(2 * turns, _MOST_TURNS)


def _shared(lifetimes: Sequence[Lifetime]) -> tuple[list[int], list[int]]:
    """Blocks for values, of which those that are not needed at the same time may share one: the blocks' sizes, and each value's number."""
    sizes: list[int] = []
    numbers = [0] * len(lifetimes)
    free: dict[int, list[int]] = {}
    living: list[tuple[int, int, int]] = []
    for value in sorted(range(len(lifetimes)), key=lambda v: lifetimes[v].begin):
        lifetime = lifetimes[value]
        while living and living[0][0] < lifetime.begin:
            _, kind, number = heapq.heappop(living)
            heapq.heappush(free.setdefault(kind, []), number)
        kind = size_class(max(lifetime.bytes, 4))
        if free.get(kind):
            number = heapq.heappop(free[kind])
        else:
            number = len(sizes)
            sizes.append(kind)
        numbers[value] = number
        heapq.heappush(living, (lifetime.end, kind, number))
    return sizes, numbers
