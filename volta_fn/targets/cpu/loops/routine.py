"""Routines of kernels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from volta_fn.compiler.ir.analysis import KernelAnalysis
from volta_fn.compiler.ir.axes import simplified
from volta_fn.compiler.ir.kernel import Kernel
from volta_fn.runtime.llvm.text import Module
from volta_fn.targets.cpu.loops.emit import entry, nest_of, write
from volta_fn.targets.cpu.loops.schedule import PREFERRED, LoopOptions, legal_options, schedule_of
from volta_fn.targets.cpu.loops.split import Split, is_split
from volta_fn.targets.cpu.routine import Routine
from volta_fn.targets.cpu.scalars import supports


def routine(kernel: Kernel, options: LoopOptions = PREFERRED) -> Routine | None:
    """Return the routine of a kernel; None if it has unsupported operations or dtypes."""
    analysis = _analysis_of(kernel)
    if analysis is None:
        return None
    schedule = schedule_of(analysis, options)
    if is_split(schedule):
        return Split(schedule).routine()
    module = Module()
    launch = write(nest_of(entry(module, "kernel"), analysis), schedule)
    return Routine(str(module), (launch,))


def options_of(kernel: Kernel) -> Iterator[LoopOptions]:
    """Yield the options that `routine` takes for a kernel."""
    analysis = _analysis_of(kernel)
    if analysis is not None:
        yield from legal_options(analysis)


def _analysis_of(kernel: Kernel) -> KernelAnalysis | None:
    if 0 in kernel.sizes or not kernel.stores:
        return None
    kernel = simplified(kernel)
    analysis = KernelAnalysis(kernel if kernel.sizes else replace(kernel, sizes=(1,), parallel=1))
    return analysis if _is_supported(analysis) else None


def _is_supported(analysis: KernelAnalysis) -> bool:
    for reduce in analysis.reduces.values():
        if not supports(reduce.reduction.step, [analysis.kernel.nodes[reduce.operand].dtype] * 2, {}):
            return False
    return all(supports(a.op, tuple([analysis.kernel.nodes[i].dtype for i in a.operands]), dict(a.params)) for _, a in analysis.applies())
