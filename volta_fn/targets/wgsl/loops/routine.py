"""Routines of kernels."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

from volta_fn.codegen.loops.subkernels import of_nothing, restricted
from volta_fn.compiler.ir.axes import simplified
from volta_fn.compiler.ir.kernel import Kernel
from volta_fn.compiler.target import TargetCapabilities
from volta_fn.targets.wgsl.loops import schedule
from volta_fn.targets.wgsl.loops.kernel_step import Buffers, KernelStep
from volta_fn.targets.wgsl.loops.plan import analysis_of, steps_of
from volta_fn.targets.wgsl.loops.rows import write, write_flat
from volta_fn.targets.wgsl.loops.schedule import PREFERRED, LoopOptions, legal_options
from volta_fn.targets.wgsl.loops.tiles import crossing, write_tiles
from volta_fn.targets.wgsl.loops.widening import widened
from volta_fn.targets.wgsl.routine import Dispatch, Routine, Workspaces
from volta_fn.targets.wgsl.scalars import Shader


def routine(
    kernel: Kernel,
    device: TargetCapabilities,
    shared: Mapping[int, int] = {},  # never changed
    options: LoopOptions = PREFERRED,
) -> Routine:
    """Return the routine of a kernel.

    `shared` maps outputs to the inputs whose memory they overwrite; these inputs get the numbers of the outputs' buffers.
    """
    count = len(kernel.inputs)
    overwritten = {i: count + s for s, i in shared.items()}
    stores = [s for s, b in enumerate(kernel.outputs) if b.size]
    if not stores:
        return Routine(())
    buffers = Buffers(tuple([overwritten.get(i, i) for i in range(count)]), tuple([count + s for s in stores]))
    if 0 in kernel.sizes:
        kernel = of_nothing(kernel)
    workspaces = Workspaces(count + len(kernel.stores))
    steps = steps_of(KernelStep(widened(restricted(kernel, stores)), buffers), device, workspaces, not shared, options)
    if len(steps) > 1:  # they have other axes
        options = options._replace(axis=None)
    dispatches = [replace(dispatch(step, device, options), work=math.prod(step.kernel.sizes)) for step in steps]
    return Routine(tuple(dispatches), tuple(workspaces.sizes))


def options_of(kernel: Kernel, device: TargetCapabilities) -> Iterator[LoopOptions]:
    """Yield the options that `routine` takes for a kernel."""
    if 0 not in kernel.sizes and kernel.stores:
        yield from legal_options(analysis_of(simplified(widened(kernel))), device)


def dispatch(step: KernelStep, device: TargetCapabilities, options: LoopOptions = PREFERRED) -> Dispatch:
    """Return the dispatch of a step."""
    analysis = analysis_of(step.kernel)
    if analysis.reduction_axes:
        options = options._replace(loops=options.loops or step.bound is not None)
        plan = schedule.rows_or_columns(analysis, device, options)
        if (
            step.bound is not None and plan.rows.lanes > 1 and plan.rows.axes[-1] in step.bound.value.axes
        ):  # lanes end at different elements
            plan = schedule.rows_or_columns(analysis, device, options._replace(lanes=False))
        plan = schedule.spread(plan)
    else:
        plan = schedule.elementwise(analysis, device, options)
        cross = crossing(analysis, plan.rows.axes[-1], options.tiles)
        if cross is not None:
            return write_tiles(analysis, cross, device, step)
        if plan.unroll > 1:
            return write_flat(analysis, plan, device, step)
    return write(analysis, plan, Shader(device, plan.per_row * plan.rows_per_group), step)
