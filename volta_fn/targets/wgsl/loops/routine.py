"""Routines of kernels: the steps that a kernel becomes.

Several small kernels may be one dispatch (horizontal fusion).
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from volta_fn.compiler.contractions import contraction_of
from volta_fn.compiler.ir.axes import Axes, KernelAnalysis, coefficient, rewritten, simplified
from volta_fn.compiler.ir.index import along
from volta_fn.compiler.ir.kernel import Apply, Constant, Inside, Kernel, renumbered, restricted, without_empty_axes, without_unused_inputs
from volta_fn.compiler.target import TargetCapabilities
from volta_fn.targets.wgsl.loops.emit_values import Buffers, KernelStep
from volta_fn.targets.wgsl.loops.reductions import widened
from volta_fn.targets.wgsl.loops.rows import Split, write, write_flat, write_rows, write_squares
from volta_fn.targets.wgsl.loops.schedule import (
    BUSY,
    DEFAULT_OPTIONS,
    LoopOptions,
    LoopSchedule,
    bytes_per_invocation,
    crossing_of,
    cut_of,
    elementwise,
    legal_options,
    rows_or_columns,
    spread,
)
from volta_fn.targets.wgsl.routine import Dispatch, OtherAccess, Routine, Shader, Workspaces


@lru_cache(maxsize=1024)
def analysis_of(kernel: Kernel) -> KernelAnalysis:
    """Return the analysis of a kernel, which gets an axis if it has none."""
    return KernelAnalysis(kernel if kernel.sizes else replace(kernel, sizes=(1,), parallel=1))


def steps_of(
    step: KernelStep, capabilities: TargetCapabilities, workspaces: Workspaces, separate: bool, options: LoopOptions = DEFAULT_OPTIONS
) -> list[KernelStep]:
    """Return the steps of a kernel.

    Stores may be done by `separate` steps if none of them writes what another reads.
    """
    kernel = simplified(step.kernel)
    analysis = analysis_of(kernel)
    if not analysis.reduces:
        return elementwise_steps(step._replace(kernel=simplified(replace(kernel, parallel=len(kernel.sizes)))), separate, options)
    cut = cut_of(analysis, rows_or_columns(analysis, capabilities, options), options.chunk)
    if cut is not None:
        steps = Split(analysis, cut, step.buffers, workspaces).steps()
        if all(s.bindings <= capabilities.buffers for s in steps):
            result: list[KernelStep] = []
            for s in steps:
                simple = s if s.index_in_row is not None else s._replace(kernel=simplified(s.kernel))
                result += [simple] if s.kernel.reduction_axes else elementwise_steps(simple, separate, options)
            return result
        workspaces.sizes.clear()
    return [step._replace(kernel=kernel)]


def elementwise_steps(step: KernelStep, separate: bool, options: LoopOptions = DEFAULT_OPTIONS) -> list[KernelStep]:
    """Return a step without reduction axes as one for each set of axes of its stores.

    Packed arrays in different orders in memory are also separate.
    """
    analysis = analysis_of(step.kernel)
    stores = range(len(step.kernel.stores))
    worth = analysis.size(analysis.parallel_axes) >= BUSY if options.separate is None else options.separate
    if not separate or len(stores) == 1 or not worth:
        return [step]
    packed = [s for s in stores if step.kernel.outputs[s].dtype.itemsize < 4]
    classes: dict[tuple[Axes, object], list[int]] = {}
    for s in packed:
        classes.setdefault((analysis.store_offsets[s].axes, analysis.store_offsets[s].terms), []).append(s)
    for s in [s for s in stores if s not in packed]:
        axes = analysis.store_offsets[s].axes
        classes.setdefault(next((key for key in classes if key[0] == axes), (axes, None)), []).append(s)
    return [_of_stores(step, analysis, chosen) for chosen in classes.values()]


def _of_stores(step: KernelStep, analysis: KernelAnalysis, stores: list[int]) -> KernelStep:
    """Return the step with some of its stores, and only the axes along which they go."""
    kernel = restricted(step.kernel, stores)
    axes = analysis.store_offsets[stores[0]].axes
    kernel = replace(kernel, sizes=tuple([n if a in axes else 1 for a, n in enumerate(kernel.sizes)]))
    return KernelStep(simplified(kernel), step.buffers._replace(outputs=tuple([step.buffers.outputs[s] for s in stores])))


# Horizontal fusion: several small kernels as one dispatch.
#
# Each has some of the workgroups. A small dispatch takes as long as the GPU needs to start the next one, and an optimizer's step has one
# for every parameter.

#: Invocations of a workgroup, and of one if a kernel reduces rows.
_GROUP = 64
_GROUP_WITH_ROWS = 256

#: The most elements of a small kernel, and of one that reduces rows; and the most nodes of all kernels of a dispatch, for compile time.
_ELEMENTS = 1 << 20
_REDUCED = 1 << 17
_NODES = 500

#: Where the numbers of workspaces begin when steps are only counted: a kernel of several steps is refused.
_UNUSED_BUFFER = 1 << 30


class Member(NamedTuple):
    """A kernel, and the numbers of its inputs' and outputs' buffers in the dispatch."""

    kernel: Kernel
    buffers: Buffers


class _SmallKernel(NamedTuple):
    """A kernel that is one step, and its schedule."""

    analysis: KernelAnalysis
    schedule: LoopSchedule
    #: With inputs and outputs as its buffers, one after another.
    step: KernelStep
    #: Bytes of workgroup memory.
    memory: int

    def with_buffers(self, buffers: Buffers) -> _SmallKernel:
        numbers = (*buffers.inputs, *buffers.outputs)
        inputs, outputs = [tuple([numbers[n] for n in some]) for some in self.step.buffers]
        return self._replace(step=self.step._replace(buffers=Buffers(inputs, outputs)))


@functools.lru_cache(maxsize=4096)
def is_small(kernel: Kernel, capabilities: TargetCapabilities) -> bool:
    """Return True if a kernel is worth fusing with independent ones.

    It has few elements, is a single dispatch, and is no matrix product.
    """
    most = _ELEMENTS if kernel.parallel == len(kernel.sizes) else _REDUCED
    if 0 in kernel.sizes or analysis_of(kernel).size(range(len(kernel.sizes))) > most or contraction_of(kernel) is not None:
        return False
    small = _small_kernel(kernel, capabilities)
    return small is not None and small.memory <= capabilities.workgroup_memory


class FusedKernels:
    """A dispatch of small, independent kernels under construction."""

    def __init__(self, capabilities: TargetCapabilities, size: int = _GROUP) -> None:
        """Begin a dispatch with workgroups of `size` invocations."""
        self._device = capabilities
        self._kernels: list[_SmallKernel] = []
        self._bindings: set[int] = set()
        self._nodes = self._memory = 0
        self._begin(size)

    def _begin(self, size: int) -> None:
        self._shader, self._size, self._groups = Shader(self._device, size), size, 0

    def add(self, member: Member) -> Dispatch | None:
        """Return the dispatch with one kernel more; None if it does not fit.

        After None, this object must not be used again.
        """
        small = _small_kernel(member.kernel, self._device)
        assert small is not None, "callers add only kernels that are small"
        self._kernels.append(small.with_buffers(member.buffers))
        self._bindings.update(member.buffers.inputs, member.buffers.outputs)
        self._nodes += len(member.kernel.nodes)
        self._memory += small.memory
        if len(self._bindings) > self._device.buffers or self._nodes > _NODES or self._memory > self._device.workgroup_memory:
            return None
        new = self._kernels[-1:]
        if small.analysis.reduction_axes and self._size != _row_workgroup_size(self._device):
            self._begin(_row_workgroup_size(self._device))
            new = self._kernels
        try:
            for kernel in new:
                self._write(kernel)
        except OtherAccess:
            return None
        return self._shader.dispatch(self._groups)

    def _write(self, kernel: _SmallKernel) -> None:
        """Write a kernel for workgroups after those of the kernels before."""
        schedule = kernel.schedule._replace(rows_per_workgroup=self._size // kernel.schedule.per_row)
        shader, first, grid_group = self._shader, self._groups, Shader.group
        self._groups += -(-schedule.outer.lane_groups // schedule.rows_per_workgroup)
        with shader.block(f"if ({grid_group} >= {first}u && {grid_group} < {self._groups}u)"):
            shader.group = shader.let("u32", f"{grid_group} - {first}u")
            write_rows(kernel.analysis, schedule, shader, kernel.step)
        shader.group = grid_group


def _row_workgroup_size(capabilities: TargetCapabilities) -> int:
    return min(_GROUP_WITH_ROWS, capabilities.invocations)


@functools.lru_cache(maxsize=4096)
def _small_kernel(kernel: Kernel, capabilities: TargetCapabilities) -> _SmallKernel | None:
    count = len(kernel.inputs)
    stores = [s for s, b in enumerate(kernel.outputs) if b.size]
    buffers = Buffers(tuple(range(count)), tuple([count + s for s in stores]))
    steps = steps_of(KernelStep(widened(restricted(kernel, stores)), buffers), capabilities, Workspaces(_UNUSED_BUFFER), separate=False)
    if len(steps) != 1:
        return None
    analysis = analysis_of(steps[0].kernel)
    if analysis.reduction_axes:
        schedule = rows_or_columns(analysis, capabilities)
        group = _row_workgroup_size(capabilities)
        memory = bytes_per_invocation(analysis, schedule) * group
        return _SmallKernel(analysis, schedule, steps[0], memory) if schedule.per_row <= group else None
    schedule = elementwise(analysis, capabilities)
    return None if crossing_of(analysis, schedule.outer.axes[-1]) is not None else _SmallKernel(analysis, schedule, steps[0], 0)


# Concatenations: each part by other workgroups.
#
# A kernel that selects by an index what it loads has a branch and selections for each array, in every invocation. On an H200 it
# moved 3780 GB/s with eight arrays of float32, 2710 with sixteen and 1380 with thirty.

#: The fewest parts of an axis that are computed by workgroups of their own, and the fewest elements of all.
_PARTS, _CONCATENATED = 9, 1 << 20
#: Parts begin and end at multiples of so many elements, so that no word belongs to two.
_PART_UNIT = 8


def parts_of(kernel: Kernel) -> list[Kernel]:
    """Divide a kernel without reductions at the bounds of an axis by which it selects.

    The parts are kernels that store some of the elements. Empty if there are few parts, or too few elements.
    """
    kernel = simplified(kernel)
    cuts: dict[int, set[int]] = {}
    for node in kernel.nodes:
        for condition in node.ranges if isinstance(node, Inside) else ():
            if len(condition.value.terms) == 1:
                ((axis, _),) = condition.value.terms
                cuts.setdefault(axis, set()).update(condition.interval(kernel.sizes[axis]))
    analysis = analysis_of(kernel)
    selections = sum(map(analysis.is_selection, range(len(kernel.nodes))))
    if kernel.reduction_axes or len(kernel.stores) != 1 or selections < _PARTS - 1 or math.prod(kernel.sizes) < _CONCATENATED or not cuts:
        return []
    axis = max(cuts, key=lambda a: len(cuts[a]))
    bounds = sorted({0, kernel.sizes[axis], *cuts[axis]})
    offset = analysis.store_offsets[0]
    step = coefficient(offset, axis)
    units = [step * bound for bound in bounds] + [c for _, c in offset.terms if c > step]
    if len(bounds) - 1 < _PARTS or step <= 0 or any(n % _PART_UNIT for n in units):
        return []
    return [_part(kernel, axis, first, end) for first, end in itertools.pairwise(bounds)]


def _part(kernel: Kernel, axis: int, first: int, end: int) -> Kernel:
    """Return the iterations of an axis from `first` to `end`.

    Selections that are decided there go.
    """
    sizes = (*kernel.sizes[:axis], end - first, *kernel.sizes[axis + 1 :])
    kernel = simplified(rewritten(kernel, sizes, kernel.parallel, {axis: along(axis).plus(first)}))
    chosen: list[int] = []
    for number, node in enumerate(kernel.nodes):
        predicate = kernel.nodes[node.operands[0]] if isinstance(node, Apply) and node.op == "select_n" else None
        if isinstance(node, Apply) and isinstance(predicate, Constant) and predicate.dtype == np.bool_:
            number = chosen[node.operands[1 + bool(predicate.value)]]
        chosen.append(number)
    nodes = tuple([renumbered(node, dict(enumerate(chosen))) for node in kernel.nodes])
    stores = tuple([replace(store, value=chosen[store.value]) for store in kernel.stores])
    return restricted(replace(kernel, nodes=nodes, stores=stores), range(len(stores)))


def _in_parts(kernel: Kernel, buffers: Buffers, capabilities: TargetCapabilities) -> Dispatch | None:
    """Return the dispatch of a large concatenation; None for other kernels."""
    together, dispatch = FusedKernels(capabilities, _row_workgroup_size(capabilities)), None
    for part in parts_of(kernel):
        part, inputs = without_unused_inputs(part)
        member = Member(part, Buffers(tuple([buffers.inputs[i] for i in inputs]), buffers.outputs))
        dispatch = None if _small_kernel(part, capabilities) is None else together.add(member)
        if dispatch is None:
            return None
    return dispatch


# Routines of kernels.


def routine(
    kernel: Kernel,
    capabilities: TargetCapabilities,
    overwrites: Mapping[int, int] = {},  # never changed
    options: LoopOptions = DEFAULT_OPTIONS,
) -> Routine:
    """Return the routine of a kernel.

    `overwrites` maps outputs to the inputs whose memory they overwrite; these inputs get the numbers of the outputs' buffers.
    """
    count = len(kernel.inputs)
    overwritten = {i: count + s for s, i in overwrites.items()}
    stores = [s for s, b in enumerate(kernel.outputs) if b.size]
    if not stores:
        return Routine(())
    buffers = Buffers(tuple([overwritten.get(i, i) for i in range(count)]), tuple([count + s for s in stores]))
    if 0 in kernel.sizes:
        kernel = without_empty_axes(kernel)
    workspaces = Workspaces(count + len(kernel.stores))
    parts = _in_parts(kernel, buffers, capabilities) if not overwrites and options == DEFAULT_OPTIONS else None
    if parts is not None:
        return Routine((parts,))
    steps = steps_of(KernelStep(widened(restricted(kernel, stores)), buffers), capabilities, workspaces, not overwrites, options)
    if len(steps) > 1:  # they have other axes
        options = options._replace(axis=None)
    dispatches = [replace(dispatch(step, capabilities, options), work=math.prod(step.kernel.sizes)) for step in steps]
    return Routine(tuple(dispatches), tuple(workspaces.sizes))


def options_of(kernel: Kernel, capabilities: TargetCapabilities) -> Iterator[LoopOptions]:
    """Yield the options that `routine` takes for a kernel."""
    if 0 not in kernel.sizes and kernel.stores:
        yield from legal_options(analysis_of(simplified(widened(kernel))), capabilities)


def dispatch(step: KernelStep, capabilities: TargetCapabilities, options: LoopOptions = DEFAULT_OPTIONS) -> Dispatch:
    """Return the dispatch of a step."""
    analysis = analysis_of(step.kernel)
    if analysis.reduction_axes:
        options = options._replace(loops=options.loops or step.condition is not None)
        schedule = rows_or_columns(analysis, capabilities, options)
        # Without lanes, where lanes would end at different elements.
        if step.condition is not None and schedule.outer.lanes > 1 and schedule.outer.axes[-1] in step.condition.value.axes:
            schedule = rows_or_columns(analysis, capabilities, options._replace(lanes=False))
        schedule = spread(schedule)
    else:
        schedule = elementwise(analysis, capabilities, options)
        cross = crossing_of(analysis, schedule.outer.axes[-1], options.tiles)
        if cross is not None:
            return write_squares(analysis, cross, capabilities, step)
        if schedule.unroll > 1:
            return write_flat(analysis, schedule, capabilities, step)
    return write(analysis, schedule, Shader(capabilities, schedule.per_row * schedule.rows_per_workgroup), step)
