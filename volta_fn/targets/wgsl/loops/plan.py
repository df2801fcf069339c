"""The steps that a kernel becomes."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from volta_fn.codegen.loops.subkernels import restricted
from volta_fn.compiler.ir.analysis import Axes, KernelAnalysis
from volta_fn.compiler.ir.axes import simplified
from volta_fn.compiler.ir.kernel import Kernel
from volta_fn.compiler.target import TargetCapabilities
from volta_fn.targets.wgsl.loops.kernel_step import KernelStep
from volta_fn.targets.wgsl.loops.schedule import BUSY, PREFERRED, LoopOptions, cut_of, rows_or_columns
from volta_fn.targets.wgsl.loops.split import Split
from volta_fn.targets.wgsl.routine import Workspaces


@lru_cache(maxsize=1024)
def analysis_of(kernel: Kernel) -> KernelAnalysis:
    """Return the analysis of a kernel, which gets an axis if it has none."""
    return KernelAnalysis(kernel if kernel.sizes else replace(kernel, sizes=(1,), parallel=1))


def steps_of(
    step: KernelStep, device: TargetCapabilities, workspaces: Workspaces, separate: bool, options: LoopOptions = PREFERRED
) -> list[KernelStep]:
    """Return the steps of a kernel.

    Stores may be done by `separate` steps if none of them writes what another reads.
    """
    kernel = simplified(step.kernel)
    analysis = analysis_of(kernel)
    if not analysis.reduces:
        return elementwise_steps(step._replace(kernel=simplified(replace(kernel, parallel=len(kernel.sizes)))), separate, options)
    cut = cut_of(analysis, rows_or_columns(analysis, device, options), options.chunk)
    if cut is not None:
        steps = Split(analysis, cut, step.buffers, workspaces).steps()
        if all(s.bindings <= device.buffers for s in steps):
            simple = [(_simple(s), bool(s.kernel.reduction_axes)) for s in steps]
            return [one for s, reduces in simple for one in ([s] if reduces else elementwise_steps(s, separate, options))]
        workspaces.sizes.clear()
    return [step._replace(kernel=kernel)]


def _simple(step: KernelStep) -> KernelStep:
    return step if step.number is not None else step._replace(kernel=simplified(step.kernel))


def elementwise_steps(step: KernelStep, separate: bool, options: LoopOptions = PREFERRED) -> list[KernelStep]:
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
