"""Run planned programs as functions of buffers.

The work between two steps of the host is written to the queue once and replayed afterwards (see `command_lists`).
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import TYPE_CHECKING

import numpy as np

from volta_fn.core.jaxpr import ClosedJaxpr
from volta_fn.targets.wgsl.runtime.call import Call
from volta_fn.targets.wgsl.runtime.commands import runs
from volta_fn.targets.wgsl.runtime.device.gpu import Gpu
from volta_fn.targets.wgsl.runtime.device.leak_detector import Trend
from volta_fn.targets.wgsl.runtime.device.memory import Buffer, Lease, size_class
from volta_fn.targets.wgsl.runtime.device.pipelines import Pipeline
from volta_fn.targets.wgsl.runtime.program_plan import plan_program
from volta_fn.targets.wgsl.runtime.results import Results, shaped
from volta_fn.targets.wgsl.runtime.submission.command_lists import CommandList, command_lists

if TYPE_CHECKING:
    from volta_fn.compiler import program

#: Returns the number of a lease's block.
_number = attrgetter("block.number")


class Program:
    """A compiled program: a function ``(donate, *buffers) -> buffers``."""

    def __init__(
        self,
        gpu: Gpu,
        closed: ClosedJaxpr,
        donated: Sequence[bool],
        pipeline: program.Pipeline,
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
            given = [a.lease or gpu.lease_of(a) for a in arguments]
            if self.reuse and not donate:
                arguments, given = self._with_copies(arguments)
            new = gpu.pool.leases(self.results.blocks)
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
        """Copy the arguments that are overwritten; return the arguments and their memory."""
        found = [*arguments]
        for number in self.reuse.values():
            buffer = arguments[number]
            found[number] = Buffer(self.gpu.copied(self.gpu.lease_of(buffer), buffer.size), buffer.shape, buffer.dtype, buffer.size)
        return tuple(found), [self.gpu.lease_of(a) for a in found]

    def _again(self, given: Sequence[Lease], new: Sequence[Lease]) -> bool:
        """Replay the recording for these blocks, if there is one; the common case."""
        if self.command_list is None:
            return False
        recording = self.command_list.recording((tuple(map(_number, (*given, *new))),), self.gpu.trims)
        return recording is not None and recording.replay(self.gpu.queue)

    def _finished(self, arguments: Sequence[Buffer], given: Sequence[Lease], new: Sequence[Lease]) -> tuple[Buffer, ...]:
        results = self.results.of(arguments, given, new)
        self.results.read_ahead(results, self.gpu.queue.readbacks)
        self.gpu.queue.pause()
        return results

    def _call(self, given: Sequence[Lease], new: Sequence[Lease]) -> Call:
        gpu = self.gpu
        scratch = [gpu.pool.lease(size) for size in self.sizes] if self.interrupted else gpu.temporaries(self.sizes)
        leases = [*given, *new, *[scratch[n] for n in self.numbers], *self.constants]
        leases += [gpu.grids.lease(size) for size in self.regions]
        varying = leases if self.interrupted or self.regions else leases[: len(given) + len(new)]
        return Call(gpu, leases, tuple(map(_number, varying)))
