"""Kernels as routines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from volta_fn.backends.wgsl.facts import Facts as Device
from volta_fn.backends.wgsl.loops import schedule
from volta_fn.backends.wgsl.loops.parts import of_nothing, restricted
from volta_fn.backends.wgsl.loops.place import Buffers
from volta_fn.backends.wgsl.loops.rows import write
from volta_fn.backends.wgsl.loops.widening import widened
from volta_fn.backends.wgsl.routine import Dispatch, Routine
from volta_fn.backends.wgsl.scalars import Shader
from volta_fn.compiler.kernels.axes import simplified
from volta_fn.compiler.kernels.facts import Facts
from volta_fn.compiler.kernels.ir import Kernel


def routine(kernel: Kernel, facts: Device, shared: Mapping[int, int] = {}) -> Routine:  # never changed
    """The kernel as shaders. `shared` maps outputs to the inputs whose memory they are: their buffers' numbers are those of the outputs."""
    count = len(kernel.inputs)
    places = {i: count + s for s, i in shared.items()}
    stores = [s for s, b in enumerate(kernel.outputs) if b.size]
    if not stores:
        return Routine(())
    buffers = Buffers(tuple([places.get(i, i) for i in range(count)]), tuple([count + s for s in stores]))
    if 0 in kernel.sizes:
        kernel = of_nothing(kernel)
    return Routine((dispatch(simplified(widened(restricted(kernel, stores))), facts, buffers),))


def dispatch(kernel: Kernel, device: Device, buffers: Buffers) -> Dispatch:
    """The kernel as one shader."""
    facts = Facts(kernel if kernel.sizes else replace(kernel, sizes=(1,), outer=1))
    plan = schedule.rows_or_columns(facts, device) if facts.inner else schedule.elementwise(facts, device)
    return write(facts, plan, Shader(device, plan.parts * plan.beside), buffers)
