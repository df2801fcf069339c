"""Horizontal fusion: several small kernels as one dispatch.

Each has some of the workgroups. A small dispatch takes as long as the GPU needs to start the next one, and an optimizer's step has one
for every parameter.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

from volta_fn.codegen.loops.subkernels import restricted
from volta_fn.compiler.ir.analysis import KernelAnalysis
from volta_fn.compiler.ir.contraction import contraction_of
from volta_fn.compiler.ir.kernel import Kernel
from volta_fn.compiler.target import TargetCapabilities
from volta_fn.targets.wgsl.loops import schedule
from volta_fn.targets.wgsl.loops.kernel_step import Buffers, KernelStep
from volta_fn.targets.wgsl.loops.plan import analysis_of, steps_of
from volta_fn.targets.wgsl.loops.rows import LoopSchedule, write_rows
from volta_fn.targets.wgsl.loops.tiles import crossing
from volta_fn.targets.wgsl.loops.widening import widened
from volta_fn.targets.wgsl.routine import Dispatch, Workspaces
from volta_fn.targets.wgsl.scalars import OtherAccess, Shader

#: Invocations of a workgroup, and of one if a kernel reduces rows.
_GROUP = 64
_GROUP_WITH_ROWS = 256

#: The most elements of a small kernel, and of one that reduces rows; and the most nodes of all kernels of a dispatch, for compile time.
_ELEMENTS = 1 << 20
_REDUCED = 1 << 17
_NODES = 500


class Member(NamedTuple):
    """A kernel, and the numbers of its inputs' and outputs' buffers in the dispatch."""

    kernel: Kernel
    buffers: Buffers


class _Planned(NamedTuple):
    analysis: KernelAnalysis
    plan: LoopSchedule
    #: With inputs and outputs as its buffers, one after another.
    step: KernelStep
    #: Bytes of workgroup memory.
    memory: int

    def bound(self, buffers: Buffers) -> _Planned:
        """Return the same with other numbers of buffers."""
        numbers = (*buffers.inputs, *buffers.outputs)
        inputs, outputs = [tuple([numbers[n] for n in some]) for some in self.step.buffers]
        return self._replace(step=self.step._replace(buffers=Buffers(inputs, outputs)))


@functools.lru_cache(maxsize=4096)
def is_small(kernel: Kernel, device: TargetCapabilities) -> bool:
    """Return True if a kernel is worth fusing with independent ones.

    It has few elements, is a single dispatch, and is no matrix product.
    """
    most = _ELEMENTS if kernel.parallel == len(kernel.sizes) else _REDUCED
    if 0 in kernel.sizes or analysis_of(kernel).size(range(len(kernel.sizes))) > most or contraction_of(kernel) is not None:
        return False
    planned = _planned(kernel, device)
    return planned is not None and planned.memory <= device.workgroup_memory


class FusedKernels:
    """A dispatch of small, independent kernels under construction."""

    def __init__(self, device: TargetCapabilities) -> None:
        self._device = device
        self._planned: list[_Planned] = []
        self._bindings: set[int] = set()
        self._nodes = self._memory = 0
        self._begin(_GROUP)

    def _begin(self, size: int) -> None:
        self._shader, self._size, self._groups = Shader(self._device, size), size, 0

    def add(self, member: Member) -> Dispatch | None:
        """Return the dispatch with one kernel more; None if it does not fit.

        After None, this object must not be used again.
        """
        found = _planned(member.kernel, self._device)
        assert found is not None, "who asks has asked whether the kernel is small"
        self._planned.append(found.bound(member.buffers))
        self._bindings.update(member.buffers.inputs, member.buffers.outputs)
        self._nodes += len(member.kernel.nodes)
        self._memory += found.memory
        if len(self._bindings) > self._device.buffers or self._nodes > _NODES or self._memory > self._device.workgroup_memory:
            return None
        new = self._planned[-1:]
        if found.analysis.reduction_axes and self._size != _group(self._device):
            self._begin(_group(self._device))
            new = self._planned
        try:
            for one in new:
                self._write(one)
        except OtherAccess:
            return None
        return self._shader.dispatch(self._groups)

    def _write(self, one: _Planned) -> None:
        """Write a kernel for workgroups after those of the kernels before."""
        plan = one.plan._replace(rows_per_group=self._size // one.plan.per_row)
        shader, first, grid_group = self._shader, self._groups, Shader.group
        self._groups += -(-plan.rows.groups // plan.rows_per_group)
        with shader.block(f"if ({grid_group} >= {first}u && {grid_group} < {self._groups}u)"):
            shader.group = shader.let("u32", f"{grid_group} - {first}u")
            write_rows(one.analysis, plan, shader, one.step)
        shader.group = grid_group


def _group(device: TargetCapabilities) -> int:
    return min(_GROUP_WITH_ROWS, device.invocations)


@functools.lru_cache(maxsize=4096)
def _planned(kernel: Kernel, device: TargetCapabilities) -> _Planned | None:
    count = len(kernel.inputs)
    stores = [s for s, b in enumerate(kernel.outputs) if b.size]
    buffers = Buffers(tuple(range(count)), tuple([count + s for s in stores]))
    steps = steps_of(KernelStep(widened(restricted(kernel, stores)), buffers), device, Workspaces(1 << 30), separate=False)
    if len(steps) != 1:
        return None
    analysis = analysis_of(steps[0].kernel)
    if analysis.reduction_axes:
        plan = schedule.rows_or_columns(analysis, device)
        group = _group(device)
        return _Planned(analysis, plan, steps[0], schedule.shared(analysis, plan) * group) if plan.per_row <= group else None
    plan = schedule.elementwise(analysis, device)
    return None if crossing(analysis, plan.rows.axes[-1]) is not None else _Planned(analysis, plan, steps[0], 0)
