"""Write a planned program as JSON: its slots, pipelines and commands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from volta_fn.compiler.buffers.memory_layout import Output
from volta_fn.targets.wgsl.runtime.commands import BufferRange, Command, Host, Loop, Run, Submit, While, runs
from volta_fn.targets.wgsl.runtime.program_plan import ProgramPlan
from volta_fn.web.data import Data

#: WebGPU's limits that a page asks for if a program needs more than every device has.
_GUARANTEED = {
    "maxStorageBuffersPerShaderStage": 8,
    "maxStorageBufferBindingSize": 1 << 27,
    "maxBufferSize": 1 << 28,
    "maxComputeWorkgroupStorageSize": 1 << 14,
    "maxComputeInvocationsPerWorkgroup": 256,
    "maxComputeWorkgroupSizeX": 256,
    "maxComputeWorkgroupsPerDimension": 65535,
}


class ProgramWriter:
    """Writes the programs of a page, which share shaders and data."""

    def __init__(self) -> None:
        self.data = Data()
        self._shaders: dict[str, int] = {}

    @property
    def shaders(self) -> list[str]:
        """The WGSL of all programs, by number."""
        return list(self._shaders)

    def write(self, plan: ProgramPlan) -> dict[str, Any]:
        """Return a program as JSON.

        Slots are ["argument", number], ["result", number, bytes], ["temporary", block], ["constant", offset, bytes] or ["grids", bytes].
        A pipeline is [shader, number of bindings, written bindings].
        """
        slots: list[list[Any]] = [["argument", number] for number in range(len(plan.arguments))]
        slots += [["result", number, size] for number, size in zip(plan.own_results, plan.result_sizes, strict=True)]
        slots += [["temporary", block] for block in plan.block_of]
        slots += [["constant", *self._constant(array)] for array in plan.constants]
        slots += [["grids", size] for size in plan.regions]
        pipelines = _Pipelines(self._shaders)
        commands = [_written(command, pipelines) for command in plan.commands]
        return {
            "slots": slots,
            "temporaries": plan.blocks,
            "pipelines": pipelines.rows,
            "commands": commands,
            "results": [self._result(output, plan) for output in plan.outputs],
        }

    def _constant(self, array: np.ndarray) -> tuple[int, int]:
        found = self.data.add(array if array.nbytes else np.zeros(1, np.int64))
        return found["offset"], found["bytes"]

    def _result(self, output: Output, plan: ProgramPlan) -> list[Any]:
        """Return the kind and number of a result's slot, or a constant's range."""
        if output.made is not None:
            return ["argument", plan.reuse[output.made]] if output.made in plan.reuse else ["result", output.made]
        if output.argument is not None:
            return ["argument", output.argument]
        return ["constant", *self._constant(np.asarray(output.constant))]


class _Pipelines:
    def __init__(self, shaders: dict[str, int]) -> None:
        self._shaders = shaders
        self._numbers: dict[Any, int] = {}
        self.rows: list[list[Any]] = []

    def number(self, run: Run) -> int:
        """Return the number of a dispatch's pipeline."""
        if run.key not in self._numbers:
            self._numbers[run.key] = len(self.rows)
            self.rows.append([self._shaders.setdefault(run.source, len(self._shaders)), len(run.ranges), sorted(run.written)])
        return self._numbers[run.key]


def _written(command: Command, pipelines: _Pipelines) -> list[Any]:
    """Return a command: its kind, and what it needs.

    ["run", pipeline, bindings, groups], ["indirect", pipeline, bindings, slot, offset], ["loop", number, iterations, commands],
    ["while", slot, offset, commands] or ["submit"].
    """
    if isinstance(command, Run):
        bindings = [_binding(span) for span in command.ranges]
        if command.region is None:
            return ["run", pipelines.number(command), bindings, list(command.groups)]
        offset = 4 * command.region.branches + 12 * command.entry
        return ["indirect", pipelines.number(command), bindings, command.region.grids.number, offset]
    if isinstance(command, Loop):
        return ["loop", command.number, command.iterations, [_written(inner, pipelines) for inner in command.body]]
    if isinstance(command, While):
        return ["while", command.flag.slot.number, command.flag.offset, [_written(inner, pipelines) for inner in command.body]]
    assert not isinstance(command, Host), "export_web refuses programs with steps on the host"
    assert isinstance(command, Submit)
    return ["submit"]


def _binding(span: BufferRange) -> list[Any]:
    """Return a slot, an offset and a size.

    If iterations of loops move it, pairs of a loop and the bytes per iteration follow.
    """
    return [span.slot.number, span.offset, span.size, *([[list(pair) for pair in span.strides]] if span.strides else [])]


def required_limits(plans: Sequence[ProgramPlan], largest: int) -> dict[str, int]:
    """Return the limits that programs need and not every WebGPU device has.

    `largest` is the bytes of the largest array.
    """
    found = [run for plan in plans for run in runs(plan.commands)]
    buffers = [size for plan in plans for size in (*plan.blocks, *plan.result_sizes, *[a.nbytes for a in plan.arguments])]
    invocations = max([run.shader.invocations for run in found], default=0)
    needed = {
        "maxStorageBuffersPerShaderStage": max([len(run.ranges) for run in found], default=0),
        "maxStorageBufferBindingSize": max([span.size for run in found for span in run.ranges], default=0),
        "maxBufferSize": max([largest, *buffers]),
        "maxComputeWorkgroupStorageSize": max([sum(v.bytes for v in run.shader.workgroup_variables) for run in found], default=0),
        "maxComputeInvocationsPerWorkgroup": invocations,
        "maxComputeWorkgroupSizeX": invocations,
        "maxComputeWorkgroupsPerDimension": max([max(run.groups) for run in found], default=0),
    }
    return {name: value for name, value in needed.items() if value > _GUARANTEED[name]}
