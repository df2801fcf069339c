"""Programs on a GPU, also with the time of each command."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from operator import attrgetter, itemgetter
from typing import Any

import numpy as np

from volta_fn.compiler.buffers import Output
from volta_fn.compiler.target import Item, LoweredProgram, Passes
from volta_fn.core.jaxpr import ClosedJaxpr
from volta_fn.errors import OutOfMemoryError, ShapeError
from volta_fn.targets.gpu.device import Gpu
from volta_fn.targets.gpu.driver import BoundDispatch, BoundRange, DriverStep, Repeat, ReplayPart, Timestamps
from volta_fn.targets.gpu.memory import SMALL_READBACK, Buffer, Lease, Trend
from volta_fn.targets.gpu.pipelines import Pipeline
from volta_fn.targets.gpu.queue import Queue
from volta_fn.targets.wgsl.commands import BufferRange, Command, For, Host, Run, Submit, While, runs, size_class, uninterrupted
from volta_fn.targets.wgsl.program_plan import PlanEntry, ProgramPlan, dispatches_of, plan_program

# Create the buffers that a call of a program returns.
#
# A result that takes a donated argument's memory is the argument's own buffer, if its type is the same: most results of a training step
# are of this kind, and nothing is called more often.

#: Calls for which readbacks of a result are requested eagerly after one was read.
_AHEAD = 16

#: Makes a result from a call's arguments, their memory, and the new blocks of the call.
_Maker = Callable[[Sequence[Buffer], Sequence[Lease], Sequence[Lease]], Buffer]


class Results:
    """The results of a program's calls.

    A result is an argument, a constant, or a buffer that is made for the call. `pick` selects the results from all of these, in this order.
    """

    def __init__(self, plan: ProgramPlan, constants: Sequence[Buffer], *, reads_ahead: bool) -> None:
        """Prepare the results of a plan.

        `constants` holds the buffers of those that are constants. If `reads_ahead`, readbacks of small results are requested eagerly once
        those of earlier calls were read.
        """
        self.constants = constants
        outputs, computed = plan.outputs, plan.computed
        #: Bytes of the new blocks of a call.
        self.block_sizes = plan.result_sizes
        #: The makers of buffers that are neither arguments nor constants.
        self.makers: list[_Maker] = []
        #: The arguments that become results and may hold knowledge of their old elements.
        self.renewed: list[int] = []
        uses = Counter([output.result for output in outputs])
        constant_positions = iter(range(len(plan.arguments), len(plan.arguments) + len(constants)))
        positions = [next(constant_positions) if o.constant is not None else self._position(plan, o, uses) for o in outputs]
        self.pick: Callable[[Sequence[Buffer]], tuple[Buffer, ...]]
        self.pick = itemgetter(*positions) if len(positions) > 1 else lambda buffers: tuple([buffers[n] for n in positions])
        small = [i for i, o in enumerate(outputs) if o.result is not None and 0 < computed[o.result].nbytes <= SMALL_READBACK]
        #: The number of further calls in which readbacks are requested eagerly, by result.
        self.eager_calls: dict[int, int] = {}
        #: The results that may be read ahead, and callbacks for when they are read.
        self.may_read_ahead = [(i, partial(self.eager_calls.__setitem__, i, _AHEAD)) for i in small if reads_ahead]

    def _position(self, plan: ProgramPlan, output: Output, uses: Mapping[int | None, int]) -> int:
        """Return the position of a result that is no constant.

        If it is no argument, its maker is added.
        """
        number, aval = output.argument, None
        if output.result is not None:
            aval = plan.computed[output.result]
            number = plan.reuse.get(output.result) if uses[output.result] == 1 else None
        if number is not None:
            argument = plan.arguments[number]
            if argument.shape == output.shape and (aval is None or aval.dtype == argument.dtype):
                if aval is not None and aval.nbytes <= SMALL_READBACK:
                    self.renewed.append(number)
                return number
        self.makers.append(_maker(plan, output))
        return len(plan.arguments) + len(self.constants) + len(self.makers) - 1

    def of(self, arguments: Sequence[Buffer], argument_leases: Sequence[Lease], new: Sequence[Lease]) -> tuple[Buffer, ...]:
        """Return the results of a call.

        No other buffer shares the memory of the arguments that are overwritten.
        """
        for number in self.renewed:
            arguments[number].renew()
        return self.pick((*arguments, *self.constants, *[make(arguments, argument_leases, new) for make in self.makers]))

    def read_ahead(self, results: Sequence[Buffer], queue: Queue) -> None:
        """Request readbacks of the results that are likely to be read."""
        eager_calls = self.eager_calls
        for number, on_read in self.may_read_ahead:
            result = results[number]
            result.on_read = on_read
            if eager_calls and number in eager_calls and result.lease is not None:
                eager_calls[number] -= 1
                if not eager_calls[number]:
                    del eager_calls[number]
                with suppress(OutOfMemoryError):  # of the host: the result itself is there, and may be read later
                    result.readback = queue.request(result.lease.block, result.size)


def _maker(plan: ProgramPlan, output: Output) -> _Maker:
    shape = output.shape
    if output.result is None:
        assert output.argument is not None
        argument = output.argument
        return lambda arguments, argument_leases, new: shaped(arguments[argument], shape)
    dtype, size = plan.computed[output.result].dtype, plan.computed[output.result].nbytes
    if output.result in plan.reuse:
        donated = plan.reuse[output.result]
        return lambda arguments, argument_leases, new: Buffer(argument_leases[donated], shape, dtype, size)
    block = plan.own_results.index(output.result)
    return lambda arguments, argument_leases, new: Buffer(new[block], shape, dtype, size)


def shaped(buffer: Buffer, shape: tuple[int, ...]) -> Buffer:
    """Return a buffer with the same elements and another shape."""
    if buffer.shape == shape:
        return buffer
    return Buffer(buffer.lease, shape, buffer.dtype, buffer.size, None if buffer.host_values is None else buffer.host_values.reshape(shape))


# Command lists, recorded and replayed: the work of the GPU between steps of the host.
#
# The commands of a program between two steps that need the host are a *command list*. When it is first written to the queue, it is kept as
# a *recording*: pipelines, bind groups and grids, which can be written again as long as the blocks of memory are the same. They often are,
# since blocks are leased in a fixed order, or by turns. Where they are not, as in a loop that keeps the loss of each step, the dispatches
# that use other blocks are changed in the recording that was not used for longest. Blocks get a recording to themselves when as many
# dispatches were changed for them as it has.

#: The recordings of a command list that are made before any is changed, the most of them, and the most keys whose changes are counted.
_BY_TURNS, _RECORDINGS, _MOST_COUNTED = 2, 8, 1 << 10


class Recording:
    """The dispatches that a command list wrote to the queue."""

    def __init__(self, steps: list[DriverStep]) -> None:
        self.steps = steps
        #: What writes them again; None if the driver has nothing faster than `play`, or is not asked yet.
        self.parts: Sequence[ReplayPart] | None = None
        self.is_prepared = False

    def replay(self, queue: Queue) -> None:
        """Write the recording to the queue."""
        if not self.is_prepared:
            self.parts, self.is_prepared = queue.driver.replay_parts(self.steps), True
        if self.parts is None:
            queue.play(self.steps)
        else:
            queue.replay(self.parts)

    def change(self, changes: Mapping[int, BoundDispatch]) -> None:
        """Change dispatches, by their numbers."""
        for number, step in changes.items():
            self.steps[number] = step
        first = 0
        for part in self.parts or ():
            some = {number - first: step for number, step in changes.items() if first <= number < first + part.dispatches}
            if some and not part.change(some):
                self.parts = None
                break
            first += part.dispatches
        self.is_prepared = self.parts is not None


class SlotUses:
    """Which dispatches of a recording use each slot."""

    def __init__(self, commands: Sequence[Command]) -> None:
        #: By slot: dispatches by their numbers in the recording.
        self.dispatches: dict[int, dict[int, Run]] = {}
        #: The slots of dispatches in loops, of which a recording has one for each iteration, or one step for all.
        self.in_loops: set[int] = set()
        count = 0
        for command in commands:
            if isinstance(command, Run):
                for slot in _slots_of(command):
                    self.dispatches.setdefault(slot, {})[count] = command
            else:
                self.in_loops.update([slot for run in runs([command]) for slot in _slots_of(run)])
                if isinstance(command, While):
                    self.in_loops.add(command.flag.slot.number)
            count += _step_count(command)

    def of(self, slots: Iterable[int]) -> dict[int, Run] | None:
        """Return the dispatches that use some slots; None if loops use them."""
        users: dict[int, Run] = {}
        for slot in slots:
            if slot in self.in_loops:
                return None
            users.update(self.dispatches.get(slot, {}))
        return users


def _slots_of(run: Run) -> list[int]:
    """Return the numbers of the slots that a dispatch uses, its grids too."""
    return [*[span.slot.number for span in run.ranges], *([] if run.region is None else [run.region.grids.number])]


def _step_count(command: Command) -> int:
    """Return the number of steps that a command is in a recording."""
    return command.iterations * sum(map(_step_count, command.body)) if isinstance(command, For) else 1


class CommandList:
    """Commands that run without the host."""

    def __init__(self, commands: list[Command]) -> None:
        self.commands = commands
        #: By the blocks of a call and the iterations of the loops around the list, in the order of their last uses.
        self.recordings: dict[Any, Recording] = {}
        #: The dispatches that were changed for keys, by their hashes.
        self.changes: Counter[int] = Counter()
        #: The epoch of the device's memory that the recordings are of: it changes when blocks are released.
        self.epoch = -1
        self._uses: SlotUses | None = None

    def recording(self, key: tuple[Any, ...], epoch: int) -> Recording | None:
        """Return the recording for some blocks and iterations.

        None if there is none, or if blocks were released since.
        """
        if self.epoch != epoch:
            self.recordings.clear()
            self.changes.clear()
            self.epoch = epoch
        recording = self.recordings.pop(key, None)
        if recording is not None:
            self.recordings[key] = recording
        return recording

    def adapt_recording(self, key: tuple[Any, ...], step: Callable[[Run], BoundDispatch]) -> Recording | None:
        """Change a recording to the blocks of another key, and return it.

        None if a new one is better, since there are few, or since changes for this key cost as much. `step` resolves a dispatch.
        """
        if len(self.recordings) < _BY_TURNS:
            return None
        oldest = next(iter(self.recordings))
        if self.changes[hash(key)] >= len(self.recordings[oldest].steps) and len(self.recordings) < _RECORDINGS:
            return None
        (before, *iterations), (after, *others) = oldest, key
        # Where a block is used twice, dispatches wait for each other otherwise.
        if iterations != others or not len({*zip(before, after, strict=True)}) == len({*before}) == len({*after}):
            return None
        if self._uses is None:
            self._uses = SlotUses(self.commands)
        dispatches = self._uses.of([slot for slot, pair in enumerate(zip(before, after, strict=True)) if pair[0] != pair[1]])
        if dispatches is None:
            return None
        if len(self.changes) >= _MOST_COUNTED:
            self.changes.clear()
        self.changes[hash(key)] += len(dispatches)
        recording = self.recordings.pop(oldest)
        recording.change({number: step(run) for number, run in dispatches.items()})
        self.recordings[key] = recording
        return recording

    def keep(self, key: tuple[Any, ...], steps: list[DriverStep]) -> None:
        """Store the steps that were written for some blocks and iterations as a recording."""
        if len(self.recordings) >= _RECORDINGS:
            del self.recordings[next(iter(self.recordings))]
        self.recordings[key] = Recording(steps)


def command_lists(commands: Sequence[Command], can_repeat: Callable[[While], bool]) -> list[Any]:
    """Group consecutive commands that need no host into command lists.

    Steps of the host stay as they are, and so do loops around them, whose bodies are grouped. `can_repeat` says whether the device
    repeats the dispatches of a `while` by itself.
    """
    groups: list[Any] = []
    pending: list[Command] = []
    for command in [*commands, None]:
        if command is not None and uninterrupted(command, can_repeat):
            pending.append(command)
            continue
        if pending:
            groups.append(CommandList(pending))
            pending = []
        if isinstance(command, For):
            groups.append(For(command.number, command.iterations, command_lists(command.body, can_repeat)))
        elif isinstance(command, While):
            groups.append(While(command.flag, command_lists(command.body, can_repeat)))
        elif command is not None:
            groups.append(command)
    return groups


# Execute one call of a program with the blocks that it was given.

#: The most dispatches of a recording that is kept.
_MOST_RECORDED = 1 << 12

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
                self.call_host(command)
            elif isinstance(command, While):
                self.run_while(command)
            elif isinstance(command, Submit):
                self.queue.submit()
                self.queue.limit_in_flight()
            else:
                for iteration in range(command.iterations):
                    self.iterations[command.number] = iteration
                    self.execute(command.body)
                self.iterations.pop(command.number, None)

    # dispatches

    def write_command_list(self, command_list: CommandList) -> None:
        """Write the dispatches of a command list to the queue."""
        gpu = self.gpu
        gpu.pipelines.limit_groups()
        epoch = gpu.recordings_epoch
        key = (self.key, *self.iterations.values())
        recording = command_list.recording(key, epoch) or command_list.adapt_recording(key, self.step)
        if recording is not None:
            recording.replay(self.queue)
            return
        steps: list[DriverStep] = []
        count = 0
        for step in self.steps(command_list.commands):
            steps.append(step)
            if len(steps) == _MOST_RECORDED:  # too long to be recorded
                self.queue.play(steps)
                count += len(steps)
                steps = []
                gpu.pipelines.limit_groups()
        self.queue.play(steps)
        if not count and gpu.recordings_epoch == epoch:  # otherwise the steps may refer to a block that was released meanwhile
            command_list.keep(key, steps)

    def steps(self, commands: Sequence[Command]) -> Iterator[DriverStep]:
        """Yield dispatches one by one, and those that the device repeats together."""
        for command in commands:
            if isinstance(command, Run):
                yield self.step(command)
            elif isinstance(command, For):
                for iteration in range(command.iterations):
                    self.iterations[command.number] = iteration
                    yield from self.steps(command.body)
                self.iterations.pop(command.number, None)
            elif isinstance(command, While):
                yield Repeat(self.bound_range(command.flag), tuple(self.steps(command.body)))

    def step(self, run: Run) -> BoundDispatch:
        """Resolve one dispatch: its pipeline, bind group and grid."""
        pipelines = self.gpu.pipelines
        pipeline = pipelines.find(*run.key)
        group = pipelines.group(pipeline, tuple([self.bound_range(p) for p in run.ranges]))
        if run.region is None:
            return BoundDispatch(pipeline.handle, group, run.workgroups, None, 0)
        grids = self.blocks[run.region.grids.number].handle
        return BoundDispatch(pipeline.handle, group, run.workgroups, grids, run.region.grid_offset(run.entry))

    def bound_range(self, span: BufferRange) -> BoundRange:
        """Return the range of a block that a range of a slot denotes in this iteration."""
        offset = span.offset
        for loop, stride in span.strides:
            offset += stride * self.iterations[loop]
        return BoundRange(self.blocks[span.slot.number], offset, span.size)

    # the host

    def call_host(self, command: Host) -> None:
        """Compute a step on the host, by NumPy.

        In a region, that happens only if its branch runs.
        """
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
        bound = self.bound_range(span)
        with self.queue.lock:
            self.queue.submit()
            self.queue.write(bound.block, data, bound.offset)

    def read(self, span: BufferRange, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """Read an array to the host."""
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        if not size:
            return np.empty(shape, dtype)
        bound = self.bound_range(span)
        return self.queue.read(bound.block, size, bound.offset).view(dtype).reshape(shape)

    def word(self, span: BufferRange) -> bool:
        """Return whether a word on the device is not zero."""
        return bool(self.read(span, (), np.dtype(np.uint32)))

    def run_while(self, command: While) -> None:
        """Run a `while`, several iterations between reads of its flag.

        Iterations after the last have empty grids, and do nothing.
        """
        iterations = 1
        while self.word(command.flag):
            for _ in range(iterations):
                self.execute(command.body)
            if all(isinstance(c, CommandList) for c in command.body):
                iterations = min(2 * iterations, _MOST_ITERATIONS)


# Planned programs as functions of buffers.
#
# The work between two steps of the host is written to the queue once and replayed afterwards.

#: The most dispatches of a program whose launches never wait: a stream of CUDA has room for some thousand, and a launch waits for room.
_MOST_PENDING = 512

#: Returns the number of a lease's block.
_number = attrgetter("block.number")


class Program:
    """A compiled program: a function ``(donate, *buffers) -> buffers``."""

    def __init__(
        self,
        gpu: Gpu,
        closed: ClosedJaxpr,
        donated: Sequence[bool],
        passes: Passes,
        *,
        reads_ahead: bool = True,
        allocate: bool = True,
        device_repeats: bool = True,
        is_cached: bool = True,
    ) -> None:
        """Compile a program.

        If `reads_ahead`, readbacks of small results that were read once are requested eagerly from then on. If `allocate`, memory for its
        temporary values is allocated now, not by the first call. Unless `device_repeats`, the host repeats what `while` loops do. If
        `is_cached`, the plan is read from the cache on disk, or written to it.
        """
        self.gpu = gpu
        avals = (*closed.in_avals, *closed.out_avals, *[v.aval for eqn in closed.eqns for v in eqn.outvars])
        for dtype in dict.fromkeys([aval.dtype for aval in avals]):
            gpu.check_dtype(dtype)
        #: The compiled shaders, which are released with the program.
        self.pipelines: list[Pipeline] = []
        with gpu.pipelines.compile_ahead(self.pipelines) as start_compiling:  # all else is prepared while threads compile
            entry = PlanEntry.of(closed, donated, gpu.target) if is_cached else None
            plan = None if entry is None else entry.read(closed)
            is_new = plan is None
            if plan is None:
                plan = plan_program(closed, donated, passes, gpu.target, gpu.routines, start_compiling)
            else:
                for run in runs(plan.commands):
                    start_compiling(*run.key)
            #: Results that take the memory of donated arguments: result -> argument.
            self.reuse = plan.reuse
            #: Faster shaders that are not requested yet, by the keys of those that they replace, and whether the program was called.
            self.faster = {run.key: run.faster for run in runs(plan.commands) if run.faster is not None}
            self.was_called = False
            #: Writes the plan to the disk with these shaders, which takes long to generate: not for a program that is called only once.
            self.keep_plan: Callable[[], None] | None = None
            if entry is not None and is_new:
                write = partial(entry.write, plan)
                if self.faster:
                    self.keep_plan = write
                else:
                    write()
            self.regions = plan.regions
            constant_results = [shaped(gpu.put(np.asarray(o.constant)), o.shape) for o in plan.outputs if o.constant is not None]
            self.results = Results(plan, constant_results, reads_ahead=reads_ahead)
            constants = [gpu.constant(array) for array in plan.constants]
            self.constants = [gpu.lease_of(c) for c in constants]
            #: Samples of the memory in use; single operations are called from everywhere, so they have none.
            self.trend = Trend() if reads_ahead else None
            #: When each temporary value is needed, by the number of the command.
            self.lifetimes = plan.lifetimes
            self.block_sizes, self.block_of = plan.block_sizes, plan.block_of
            self.commands = command_lists(plan.commands, self._is_repeated if device_repeats else lambda command: False)
            #: Whether it is more than command lists: steps on the host, loops that the host repeats, or batches that are submitted in
            #: between, during all of which other programs may run.
            self.interrupted = not all(isinstance(c, CommandList) for c in self.commands)
            #: Whether a call only enqueues work and waits for nothing but earlier batches, so that one thread may call the programs of
            #: several devices in turn, although their kernels wait for each other (`core.devices.device_world`).
            self.submits = not self.interrupted and dispatches_of(plan.commands) <= _MOST_PENDING
            #: The only command list, if the program is one that depends on nothing but the blocks of a call.
            self.command_list: CommandList | None = (
                self.commands[0] if len(self.commands) == 1 and not self.interrupted and not self.regions else None
            )
            if allocate and not self.interrupted:
                with gpu.queue.lock:
                    gpu.lease_scratch(self.block_sizes)

    def _is_repeated(self, command: While) -> bool:
        """Return whether the device repeats a `while` by itself."""
        return dispatches_of(command.body) <= _MOST_RECORDED and self.gpu.driver.can_repeat(run.source for run in runs(command.body))

    @property
    def temporary_bytes(self) -> int:
        """Bytes of values that are neither arguments nor results."""
        return sum(map(size_class, self.block_sizes))

    def __call__(self, donate: bool, *arguments: Buffer) -> tuple[Buffer, ...]:
        """Run the program; donated arguments may be overwritten if `donate` is set."""
        gpu = self.gpu
        if self.faster and self.was_called:
            gpu.pipelines.upgrades.request(self.faster.items(), self.keep_plan)
            self.faster, self.keep_plan = {}, None
        self.was_called = True
        gpu.queue.limit_in_flight()
        with gpu.queue.lock:
            if self.trend is not None:
                gpu.pool.collect()
                self.trend.sample(gpu.pool.in_use, gpu.pool.limit)
            if self.reuse and not donate:
                arguments = self._copied_arguments(arguments)
            # A lease may be of a lost device. That is only found out below, where nothing is replayed, as it takes a call per argument:
            # numbers of blocks are unique across devices, so that no recording matches blocks of a lost one.
            argument_leases = [a.lease or gpu.lease_of(a) for a in arguments]
            new = gpu.pool.leases(self.results.block_sizes)
            if not self.interrupted and self._replay(argument_leases, new):
                return self._finished(arguments, argument_leases, new)
            argument_leases = [gpu.lease_of(a) for a in arguments]
            call = self._call(argument_leases, new)
            if not self.interrupted:
                call.execute(self.commands)
                return self._finished(arguments, argument_leases, new)
        call.execute(self.commands)
        with gpu.queue.lock:
            return self._finished(arguments, argument_leases, new)

    def _copied_arguments(self, arguments: tuple[Buffer, ...]) -> tuple[Buffer, ...]:
        """Copy the arguments that the program overwrites."""
        inputs, gpu = [*arguments], self.gpu
        for number in self.reuse.values():
            buffer = arguments[number]
            inputs[number] = Buffer(gpu.copied(gpu.lease_of(buffer), buffer.size), buffer.shape, buffer.dtype, buffer.size)
        return tuple(inputs)

    def _replay(self, argument_leases: Sequence[Lease], new: Sequence[Lease]) -> bool:
        """Replay the recording for these blocks, if there is one; the common case."""
        if self.command_list is None:
            return False
        recording = self.command_list.recording((tuple(map(_number, (*argument_leases, *new))),), self.gpu.recordings_epoch)
        if recording is None:
            return False
        recording.replay(self.gpu.queue)
        return True

    def _finished(self, arguments: Sequence[Buffer], argument_leases: Sequence[Lease], new: Sequence[Lease]) -> tuple[Buffer, ...]:
        results = self.results.of(arguments, argument_leases, new)
        self.results.read_ahead(results, self.gpu.queue)
        self.gpu.queue.submit_if_due()
        return results

    def _call(self, argument_leases: Sequence[Lease], new: Sequence[Lease]) -> Call:
        gpu = self.gpu
        scratch = [gpu.pool.lease(size) for size in self.block_sizes] if self.interrupted else gpu.lease_scratch(self.block_sizes)
        leases = [*argument_leases, *new, *[scratch[n] for n in self.block_of], *self.constants]
        leases += [gpu.grids.lease(size) for size in self.regions]
        # Temporary values and constants of an uninterrupted program are in the same blocks in every call. Where memory is short, the
        # scratch blocks are released, which changes the epoch, so that no recording with them is replayed.
        varying = leases if self.interrupted or self.regions else leases[: len(argument_leases) + len(new)]
        return Call(gpu, leases, tuple(map(_number, varying)))


# Programs that record when each of their dispatches begins and ends, for profilers.


class _TimedCall(Call):
    """A call that writes each dispatch to a compute pass of its own."""

    def __init__(self, gpu: Gpu, leases: Sequence[Lease], key: tuple[int, ...], stamps: Timestamps, noted: list[Run]) -> None:
        super().__init__(gpu, leases, key)
        self.stamps, self.noted = stamps, noted

    def step(self, run: Run) -> BoundDispatch:
        """Resolve one dispatch, and record it."""
        self.noted.append(run)
        return super().step(run)

    def write_command_list(self, command_list: CommandList) -> None:
        """Write the dispatches of a command list to the queue, one by one."""
        self.gpu.pipelines.limit_groups()
        for step in self.steps(command_list.commands):
            assert isinstance(step, BoundDispatch), "the host repeats dispatches that are timed"
            self.queue.play_timed(self.stamps, step)


class TimedProgram(Program):
    """A compiled program of a GPU that records the time of each dispatch.

    Attributes:
        items: the items that the numbers in `times` refer to; the first, None, stands for work between items.
    """

    device = "gpu"

    def __init__(self, gpu: Gpu, closed: ClosedJaxpr, donated: Sequence[bool], passes: Passes) -> None:
        super().__init__(gpu, closed, donated, passes, reads_ahead=False, device_repeats=False, is_cached=False)
        self.lowered: LoweredProgram = passes.lower(closed, gpu.target)
        self.items: list[tuple[LoweredProgram, Item] | None] = [None, *_items(self.lowered)]
        self._numbers = {id(entry[1]): number for number, entry in enumerate(self.items) if entry is not None}
        self._stamps, self._noted = gpu.driver.timestamps(), list[Run]()

    def __call__(self, donate: bool, *buffers: Any) -> Any:
        """Run the program on buffers, and record the times of this call alone."""
        self._stamps, self._noted = self.gpu.driver.timestamps(), []
        return super().__call__(donate, *buffers)

    def times(self) -> list[tuple[tuple[int, ...], int, int]]:
        """Wait for the call; return (numbers of items, begin, end) of its dispatches.

        They are in nanoseconds from its begin.
        """
        self.gpu.queue.wait()
        with self.gpu.queue.lock:
            moments = self._stamps.read().tolist()
        noted = zip(self._noted, moments, strict=True)
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

    def _replay(self, argument_leases: Sequence[Lease], new: Sequence[Lease]) -> bool:
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
