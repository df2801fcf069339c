"""Whole programs on the CPU: the plans of the WGSL target, whose dispatches the emulation runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

import volta_fn as vf
from tests.targets.nvidia.translation.emulation import kernel
from volta_fn.compiler import pipeline
from volta_fn.compiler.target import TargetCapabilities
from volta_fn.targets.wgsl.commands import BufferRange, Command, For, Host, Run, While, runs
from volta_fn.targets.wgsl.program_plan import ProgramPlan, plan_program
from volta_fn.targets.wgsl.target import RoutineCache, WgslTarget

#: What an NVIDIA card can do.
CARD = TargetCapabilities(
    float16=True, float64=True, int64=True, fma=True, subnormals=True, subgroups=True, subgroup_least=32, subgroup_most=32, buffers=32,
    binding=(1 << 31) - 4, workgroup_memory=49152, invocations=1024, groups=65535, alignment=32, adapter="NVIDIA H200",
)  # fmt: skip

_FILLING, _GUARD, _MARGIN = 0xFF, 0xA5, 64
_routines: dict[TargetCapabilities, RoutineCache] = {}


def plan_of(function: object, inputs: Sequence[np.ndarray], capabilities: TargetCapabilities = CARD) -> ProgramPlan:
    """Return the plan of a function of arrays like some inputs."""
    avals = [vf.ShapeDtypeStruct(x.shape, x.dtype) for x in inputs]
    closed = vf.jit(function).lower(*avals).jaxpr  # type: ignore[arg-type]
    return plan_program(closed, (), pipeline, WgslTarget(capabilities), _routines.setdefault(capabilities, RoutineCache()))


def shaders_of(plan: ProgramPlan) -> Iterator[str]:
    """Yield the shaders of a plan, those that replace others later included."""
    for run in runs(plan.commands):
        yield run.source
        if run.faster is not None:
            yield run.faster().text


class _Memory:
    """Blocks of memory, aligned as the card's, with margins that nothing may write to."""

    def __init__(self) -> None:
        self._blocks: list[tuple[np.ndarray, np.ndarray]] = []
        #: The bytes of each slot.
        self.slots: list[np.ndarray] = []

    def allocate(self, size: int, content: np.ndarray | None = None) -> np.ndarray:
        """Return a block for `size` bytes, at least those of an empty array."""
        padded = max(-(-size // 4) * 4, 16)
        whole = np.full(padded + 2 * _MARGIN + 256, _GUARD, np.uint8)
        first = -(-(whole.ctypes.data + _MARGIN) // 256) * 256 - whole.ctypes.data
        block = whole[first : first + padded]
        block[:] = _FILLING
        if content is not None:
            block[:size] = np.ascontiguousarray(content).reshape(-1).view(np.uint8)
        self._blocks.append((whole, block))
        return block

    def check(self) -> None:
        """Assert that the margins are as they were."""
        for whole, block in self._blocks:
            first = block.ctypes.data - whole.ctypes.data
            assert (whole[:first] == _GUARD).all() and (whole[first + block.size :] == _GUARD).all(), "written beyond an array"


class _Call:
    def __init__(self, memory: _Memory) -> None:
        self._memory = memory
        self._iterations: dict[int, int] = {}

    def execute(self, commands: Sequence[Command]) -> None:
        """Execute commands in order."""
        for command in commands:
            match command:
                case Run():
                    spans = [self._span(span) for span in command.ranges]
                    grid = 0
                    if command.region is not None:
                        grids = self._memory.slots[command.region.grids.number]
                        grid = grids.ctypes.data + command.region.grid_offset(command.entry)
                    kernel(command.source).run(command.workgroups, [s.ctypes.data for s in spans], [s.nbytes for s in spans], grid)
                case For():
                    for iteration in range(command.iterations):
                        self._iterations[command.number] = iteration
                        self.execute(command.body)
                case While():
                    while self._span(command.flag).view(np.uint32)[0]:
                        self.execute(command.body)
                case Host():
                    self._call_host(command)

    def _span(self, span: BufferRange) -> np.ndarray:
        offset = span.offset + sum(stride * self._iterations[loop] for loop, stride in span.strides)
        return self._memory.slots[span.slot.number][offset : offset + span.size]

    def _call_host(self, command: Host) -> None:
        if command.flag is not None and not self._span(command.flag).view(np.uint32)[0]:
            return
        arrays = [_array(self._span(span), shape, dtype) for span, shape, dtype in command.operands]
        for (span, _, dtype), value in zip(command.results, command.compute(*arrays), strict=True):
            data = np.ascontiguousarray(np.asarray(value, dtype)).reshape(-1).view(np.uint8)
            self._span(span)[: data.size] = data


def _array(data: np.ndarray, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    size = int(np.prod(shape)) * dtype.itemsize
    return data[:size].view(dtype).reshape(shape).copy()


def execute(plan: ProgramPlan, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return the results of a plan."""
    memory = _Memory()
    blocks = [memory.allocate(size) for size in plan.block_sizes]
    memory.slots = [memory.allocate(x.nbytes, x) for x in inputs]
    arguments = len(inputs)
    memory.slots += [memory.allocate(size) for size in plan.result_sizes]
    memory.slots += [blocks[number] for number in plan.block_of]
    memory.slots += [memory.allocate(np.asarray(c).nbytes, np.asarray(c)) for c in plan.constants]
    memory.slots += [memory.allocate(size) for size in plan.regions]
    _Call(memory).execute(plan.commands)
    memory.check()
    results = []
    for output in plan.outputs:
        if output.constant is not None:
            results.append(np.asarray(output.constant).reshape(output.shape))
        elif output.argument is not None:
            results.append(inputs[output.argument].reshape(output.shape))
        else:
            assert output.result is not None
            slot = memory.slots[arguments + plan.own_results.index(output.result)]
            results.append(_array(slot, output.shape, np.dtype(plan.computed[output.result].dtype)))
    return results
