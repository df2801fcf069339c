"""Programs on a GPU, also with the time of each command."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from volta_fn.compiler.buffers import Output
from volta_fn.compiler.target import Item, LoweredProgram
from volta_fn.core.aval import ShapedArray
from volta_fn.core.jaxpr import ClosedJaxpr
from volta_fn.errors import DeviceError, ShapeError
from volta_fn.targets.wgsl.runtime.command_lists import CommandList, Step, command_lists, play
from volta_fn.targets.wgsl.runtime.commands import BufferRange, Command, Host, Loop, Run, Submit, While, runs
from volta_fn.targets.wgsl.runtime.device.gpu import Gpu
from volta_fn.targets.wgsl.runtime.device.memory import SMALL_READBACK, Buffer, Lease, Trend, size_class
from volta_fn.targets.wgsl.runtime.device.pipelines import BoundRange, Pipeline
from volta_fn.targets.wgsl.runtime.program_plan import plan_program
from volta_fn.targets.wgsl.runtime.queue import Readbacks

if TYPE_CHECKING:
    from volta_fn.compiler import target
    from volta_fn.compiler.target import Pipeline as CompilerPipeline
    from volta_fn.targets.wgsl.runtime.device.gpu import Gpu


# ------------------------------------------------------------------------------
# Create the buffers that a call of a program returns.
#
# A result that takes a donated argument's memory is the argument's own buffer, if its type is the same: most results of a training step
# are of this kind, and nothing is called more often.
# ------------------------------------------------------------------------------

#: Calls for which readbacks of a result are requested eagerly after one was read.
_AHEAD = 16

#: Makes a buffer from a call's arguments, their memory, and the new blocks of the call.
_Maker = Callable[[Sequence[Buffer], Sequence[Lease], Sequence[Lease]], Buffer]


class Results:
    """The results of a program's calls.

    Args:
        outputs: descriptions of the results.
        constants: the buffers of those that are constants.
        computed: the types of the values that the program computes.
        reuse: which of these take the memory of a donated argument: computed value -> argument.
        arguments: the arguments' types.
        reads_ahead: whether to request readbacks of small results eagerly if those of earlier calls were read.
    """

    def __init__(
        self,
        outputs: Sequence[Output],
        constants: Sequence[Buffer],
        computed: Sequence[ShapedArray],
        reuse: Mapping[int, int],
        arguments: Sequence[ShapedArray],
        *,
        reads_ahead: bool,
    ) -> None:
        self.computed, self.reuse, self.arguments, self.constants = computed, reuse, arguments, constants
        self.uses = Counter([output.result for output in outputs])
        #: The computed values in blocks of their own, and the bytes of these.
        self.separate = [number for number in range(len(computed)) if number not in reuse]
        self.blocks = [max(computed[number].nbytes, 4) for number in self.separate]
        #: The makers of buffers that are neither arguments nor constants.
        self.makers: list[_Maker] = []
        #: The arguments that become results and may hold knowledge of their old elements.
        self.renewed: list[int] = []
        waiting = iter(range(len(arguments), len(arguments) + len(constants)))
        numbers = [next(waiting) if output.constant is not None else self._number(output) for output in outputs]
        #: Selects the results from arguments, constants and new buffers.
        self.pick: Callable[[Sequence[Buffer]], tuple[Buffer, ...]]
        self.pick = itemgetter(*numbers) if len(numbers) > 1 else lambda buffers: tuple([buffers[n] for n in numbers])
        small = [i for i, o in enumerate(outputs) if o.result is not None and 0 < computed[o.result].nbytes <= SMALL_READBACK]
        #: The number of further calls in which readbacks are requested eagerly, by result.
        self.asked: dict[int, int] = {}
        #: The results that may be read ahead, and callbacks for when they are read.
        self.askable = [(i, partial(self.asked.__setitem__, i, _AHEAD)) for i in small if reads_ahead]

    def _number(self, output: Output) -> int:
        """Return the position of a result in (arguments, constants, new buffers)."""
        argument_number, aval = output.argument, None
        if output.result is not None:
            aval = self.computed[output.result]
            argument_number = self.reuse.get(output.result) if self.uses[output.result] == 1 else None
        if argument_number is not None:
            argument = self.arguments[argument_number]
            if argument.shape == output.shape and (aval is None or aval.dtype == argument.dtype):
                if aval is not None and aval.nbytes <= SMALL_READBACK:
                    self.renewed.append(argument_number)
                return argument_number
        self.makers.append(self._maker(output))
        return len(self.arguments) + len(self.constants) + len(self.makers) - 1

    def _maker(self, output: Output) -> _Maker:
        shape = output.shape
        if output.result is None:
            argument = output.argument or 0
            return lambda arguments, argument_leases, new: shaped(arguments[argument], shape)
        dtype, size = self.computed[output.result].dtype, self.computed[output.result].nbytes
        if output.result in self.reuse:
            argument_number = self.reuse[output.result]
            return lambda arguments, argument_leases, new: Buffer(argument_leases[argument_number], shape, dtype, size)
        block = self.separate.index(output.result)
        return lambda arguments, argument_leases, new: Buffer(new[block], shape, dtype, size)

    def of(self, arguments: Sequence[Buffer], argument_leases: Sequence[Lease], new: Sequence[Lease]) -> tuple[Buffer, ...]:
        """Return the results of a call.

        No other buffer shares the memory of the arguments that are overwritten.
        """
        for number in self.renewed:
            arguments[number].renew()
        return self.pick((*arguments, *self.constants, *[make(arguments, argument_leases, new) for make in self.makers]))

    def read_ahead(self, results: Sequence[Buffer], readbacks: Readbacks) -> None:
        """Request readbacks of the results that are likely to be read."""
        asked = self.asked
        for number, ask in self.askable:
            result = results[number]
            result.asked = ask
            if asked and number in asked and result.lease is not None:
                asked[number] -= 1
                if not asked[number]:
                    del asked[number]
                result.readback = readbacks.request(result.lease.block, result.size)


def shaped(buffer: Buffer, shape: tuple[int, ...]) -> Buffer:
    """Return a buffer with the same elements and another shape."""
    if buffer.shape == shape:
        return buffer
    return Buffer(buffer.lease, shape, buffer.dtype, buffer.size, None if buffer.host_values is None else buffer.host_values.reshape(shape))


# ------------------------------------------------------------------------------
# Execute one call of a program with the blocks that it was given.
# ------------------------------------------------------------------------------

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

    def execute(self, commands: Sequence[Any]) -> None:
        """Execute commands."""
        for command in commands:
            if isinstance(command, CommandList):
                with self.queue.lock:
                    self.write_command_list(command)
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
                    self.execute(command.body)

    # dispatches

    def write_command_list(self, command_list: CommandList) -> None:
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
            array = np.asarray(value, dtype)
            if array.shape != shape:
                raise ShapeError(f"{command.name} declares a result of shape {shape}, but its evaluation by NumPy gave {array.shape}")
            data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
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
        """Run a `while`, several iterations between reads of its flag; more do nothing."""
        iterations = 1
        while self.word(command.flag):
            for _ in range(iterations):
                self.execute(command.body)
            if all(isinstance(c, CommandList) for c in command.body):
                iterations = min(2 * iterations, _MOST_ITERATIONS)


# ------------------------------------------------------------------------------
# Planned programs as functions of buffers.
#
# The work between two steps of the host is written to the queue once and replayed afterwards (see `command_lists`).
# ------------------------------------------------------------------------------

#: Returns the number of a lease's block.
_number = attrgetter("block.number")


class Program:
    """A compiled program: a function ``(donate, *buffers) -> buffers``."""

    def __init__(
        self,
        gpu: Gpu,
        closed: ClosedJaxpr,
        donated: Sequence[bool],
        pipeline: target.Pipeline,
        *,
        reads_ahead: bool = True,
        called: bool = True,
    ) -> None:
        """Compile a program.

        If `reads_ahead`, readbacks of small results that were read once are requested eagerly from then on. If it will be `called`, the
        memory that it needs is allocated now.
        """
        self.gpu = gpu
        avals = (*closed.in_avals, *closed.out_avals, *[v.aval for eqn in closed.eqns for v in eqn.outvars])
        for dtype in dict.fromkeys([aval.dtype for aval in avals]):
            gpu.check_dtype(dtype)
        #: The compiled shaders, which are released with the program.
        self.pipelines: list[Pipeline] = []
        with gpu.pipelines.ahead(self.pipelines) as begin:
            plan = plan_program(closed, donated, pipeline, gpu.target, gpu.routine, begin)
            #: Results that take the memory of donated arguments: result -> argument.
            self.reuse = plan.reuse
            #: Faster shaders that are not requested yet, by the keys of those that they replace, and whether the program was called.
            self.better = {run.key: run.better for run in runs(plan.commands) if run.better is not None}
            self.called = False
            self.regions = plan.regions
            outputs = plan.outputs
            put = [shaped(gpu.put(np.asarray(o.constant)), o.shape) for o in outputs if o.constant is not None]
            self.results = Results(outputs, put, plan.computed, self.reuse, plan.arguments, reads_ahead=reads_ahead)
            constants = [gpu.constant(array) for array in plan.constants]
            self.constants = [gpu.lease_of(c) for c in constants]
            #: Samples of the memory in use; single operations are called from everywhere, so they have none.
            self.trend = Trend() if reads_ahead else None
            #: When each temporary value is needed, by the number of the command.
            self.lifetimes = plan.lifetimes
            self.sizes, self.numbers = plan.blocks, plan.block_of
            self.commands = command_lists(plan.commands)
            #: Whether steps of the host interrupt it, during which other programs may run.
            self.interrupted = not all(isinstance(c, CommandList) for c in self.commands)
            #: The only command list, if the program is one that depends on nothing but the blocks of a call.
            self.command_list: CommandList | None = (
                self.commands[0] if len(self.commands) == 1 and not self.interrupted and not self.regions else None
            )
            if called and not self.interrupted:
                with gpu.queue.lock:
                    gpu.temporaries(self.sizes)

    @property
    def temporaries(self) -> int:
        """Bytes of values that are neither arguments nor results."""
        return sum(map(size_class, self.sizes))

    def __call__(self, donate: bool, *arguments: Buffer) -> tuple[Buffer, ...]:
        """Run the program; donated arguments may be overwritten if `donate` is set."""
        gpu = self.gpu
        if self.better and self.called:
            gpu.pipelines.upgrades.begin(self.better.items())
            self.better = {}
        self.called = True
        gpu.queue.hold_back()
        with gpu.queue.lock:
            if self.trend is not None:
                gpu.pool.collect()
                self.trend.sample(gpu.pool.in_use, gpu.pool.limit)
            argument_leases = [a.lease or gpu.lease_of(a) for a in arguments]
            if self.reuse and not donate:
                arguments, argument_leases = self._with_copies(arguments)
            new = gpu.pool.leases(self.results.blocks)
            if not self.interrupted:
                if not self._again(argument_leases, new):
                    argument_leases = [gpu.lease_of(a) for a in arguments]
                    self._call(argument_leases, new).execute(self.commands)
                return self._finished(arguments, argument_leases, new)
            argument_leases = [gpu.lease_of(a) for a in arguments]
            call = self._call(argument_leases, new)
        call.execute(self.commands)
        with gpu.queue.lock:
            return self._finished(arguments, argument_leases, new)

    def _with_copies(self, arguments: Sequence[Buffer]) -> tuple[tuple[Buffer, ...], list[Lease]]:
        """Copy the arguments that are overwritten; return the arguments and their memory."""
        inputs = [*arguments]
        for number in self.reuse.values():
            buffer = arguments[number]
            inputs[number] = Buffer(self.gpu.copied(self.gpu.lease_of(buffer), buffer.size), buffer.shape, buffer.dtype, buffer.size)
        return tuple(inputs), [self.gpu.lease_of(a) for a in inputs]

    def _again(self, argument_leases: Sequence[Lease], new: Sequence[Lease]) -> bool:
        """Replay the recording for these blocks, if there is one; the common case."""
        if self.command_list is None:
            return False
        recording = self.command_list.recording((tuple(map(_number, (*argument_leases, *new))),), self.gpu.trims)
        return recording is not None and recording.replay(self.gpu.queue)

    def _finished(self, arguments: Sequence[Buffer], argument_leases: Sequence[Lease], new: Sequence[Lease]) -> tuple[Buffer, ...]:
        results = self.results.of(arguments, argument_leases, new)
        self.results.read_ahead(results, self.gpu.queue.readbacks)
        self.gpu.queue.pause()
        return results

    def _call(self, argument_leases: Sequence[Lease], new: Sequence[Lease]) -> Call:
        gpu = self.gpu
        scratch = [gpu.pool.lease(size) for size in self.sizes] if self.interrupted else gpu.temporaries(self.sizes)
        leases = [*argument_leases, *new, *[scratch[n] for n in self.numbers], *self.constants]
        leases += [gpu.grids.lease(size) for size in self.regions]
        varying = leases if self.interrupted or self.regions else leases[: len(argument_leases) + len(new)]
        return Call(gpu, leases, tuple(map(_number, varying)))


# ------------------------------------------------------------------------------
# Programs that record when each of their dispatches begins and ends, for profilers.
#
# Each dispatch is a compute pass of its own, whose begin and end the device records (WebGPU's timestamp queries).
# ------------------------------------------------------------------------------

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
        """Wait for the dispatches; return their begins and ends, in ns from the first."""
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
        """Resolve one dispatch, and record it."""
        self.noted.append(run)
        return super().step(run)

    def write_command_list(self, command_list: CommandList) -> None:
        """Write the dispatches of a command list to the queue, one by one."""
        self.gpu.pipelines.drop_groups()
        for step in self.steps(command_list.commands):
            self.stamps.begin()
            play(self.queue, [step])


class TimedProgram(Program):
    """A compiled program of a GPU that records the time of each dispatch.

    Attributes:
        items: the items that the numbers in `times` refer to; the first, None, stands for work between items.
    """

    device = "gpu"

    def __init__(self, gpu: Gpu, closed: ClosedJaxpr, donated: Sequence[bool], pipeline: CompilerPipeline) -> None:
        super().__init__(gpu, closed, donated, pipeline, reads_ahead=False)
        self.lowered: LoweredProgram = pipeline.lower(closed, gpu.target)
        self.items: list[tuple[LoweredProgram, Item] | None] = [None, *_items(self.lowered)]
        self._numbers = {id(entry[1]): number for number, entry in enumerate(self.items) if entry is not None}
        self._stamps, self._noted = Timestamps(gpu), list[Run]()

    def __call__(self, donate: bool, *buffers: Any) -> Any:
        """Run the program on buffers, and record the times of this call alone."""
        self._stamps, self._noted = Timestamps(self.gpu), []
        return super().__call__(donate, *buffers)

    def times(self) -> list[tuple[tuple[int, ...], int, int]]:
        """Wait for the call; return (numbers of items, begin, end) of its dispatches.

        They are in nanoseconds from its begin.
        """
        noted = zip(self._noted, self._stamps.read().tolist(), strict=True)
        return [(tuple([self._numbers[id(i)] for i in run.items if id(i) in self._numbers]) or (0,), a, b) for run, (a, b) in noted]

    def noted(self) -> Callable[[], list[tuple[tuple[int, ...], int, int]]]:
        """Return a function that returns the result of `times`."""
        times = self.times()
        return lambda: times

    @property
    def is_full(self) -> bool:
        """False: there are as many query sets as needed."""
        return False

    def settle(self) -> None:
        """Wait for the shaders that replace simpler ones."""
        self.gpu.pipelines.upgrades.settle()

    def _again(self, argument_leases: Sequence[Lease], new: Sequence[Lease]) -> bool:
        return False

    def _call(self, argument_leases: Sequence[Lease], new: Sequence[Lease]) -> Call:
        call = super()._call(argument_leases, new)
        return _TimedCall(self.gpu, call.leases, call.key, self._stamps, self._noted)


def _items(program: LoweredProgram) -> list[tuple[LoweredProgram, Item]]:
    """Return a program's items and those in its control flow, in order."""
    items = []
    for item in program.items:
        if item.is_needed:
            items.append((program, item))
            items += [entry for inner in item.programs for entry in _items(inner)]
    return items
