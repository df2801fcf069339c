"""Several small kernels as one dispatch: each has some of the workgroups.

A dispatch that does little takes as long as the GPU needs to begin the next one, and an optimizer's step has one for every parameter.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

from volta_fn.backends.wgsl.facts import Facts as Device
from volta_fn.backends.wgsl.loops import schedule
from volta_fn.backends.wgsl.loops.parts import restricted
from volta_fn.backends.wgsl.loops.plan import facts_of, steps_of
from volta_fn.backends.wgsl.loops.rows import Schedule, write_rows
from volta_fn.backends.wgsl.loops.step import Buffers, Step, Workspaces
from volta_fn.backends.wgsl.loops.tiles import crossing
from volta_fn.backends.wgsl.loops.widening import widened
from volta_fn.backends.wgsl.routine import Dispatch
from volta_fn.backends.wgsl.scalars import OtherAccess, Shader
from volta_fn.compiler.kernels.contraction import contraction_of
from volta_fn.compiler.kernels.facts import Facts
from volta_fn.compiler.kernels.ir import Kernel

#: Invocations of a workgroup, and of one that has rows to do.
_GROUP = 64
_GROUP_WITH_ROWS = 256

#: Elements up to which a kernel is small, and one that reduces rows; nodes of all that are put together: shaders take time to compile.
_ELEMENTS = 1 << 20
_REDUCED = 1 << 17
_NODES = 1000


class Part(NamedTuple):
    """A kernel, and the numbers of the buffers that its inputs and outputs are in the dispatch."""

    kernel: Kernel
    buffers: Buffers


class _Planned(NamedTuple):
    facts: Facts
    plan: Schedule
    step: Step
    #: Bytes of workgroup memory.
    memory: int


@functools.lru_cache(maxsize=4096)
def is_small(kernel: Kernel, device: Device) -> bool:
    """Whether a kernel is one that may be put together with others: it has few elements, is one dispatch by itself, and no product."""
    most = _ELEMENTS if kernel.outer == len(kernel.sizes) else _REDUCED
    if 0 in kernel.sizes or facts_of(kernel).size(range(len(kernel.sizes))) > most or contraction_of(kernel) is not None:
        return False
    count = len(kernel.inputs)
    buffers = Buffers(tuple(range(count)), tuple(range(count, count + len(kernel.stores))))
    planned = _planned(Part(kernel, buffers), device)
    return planned is not None and planned.memory <= device.workgroup_memory


def together(parts: Sequence[Part], device: Device) -> Dispatch | None:
    """Small kernels, of which none writes what another reads or writes, as one dispatch; None if they do not go together."""
    found = [_planned(part, device) for part in parts]
    bindings = {n for part in parts for n in (*part.buffers.inputs, *part.buffers.outputs)}
    if len(bindings) > device.buffers or sum(len(part.kernel.nodes) for part in parts) > _NODES:
        return None
    planned = [one for one in found if one is not None]
    assert len(planned) == len(found), "who asks has asked whether the kernels are small"
    if sum(one.memory for one in planned) > device.workgroup_memory:
        return None
    size = _group(device) if any(one.facts.inner for one in planned) else _GROUP
    shader = Shader(device, size)
    first, whole = 0, shader.group
    for one in planned:
        plan = one.plan._replace(beside=size // one.plan.parts)
        last = first + -(-plan.rows.groups // plan.beside)
        with shader.block(f"if ({whole} >= {first}u && {whole} < {last}u)"):
            shader.group = shader.let("u32", f"{whole} - {first}u")
            try:
                write_rows(one.facts, plan, shader, one.step)
            except OtherAccess:
                return None
        first = last
    shader.group = whole
    return shader.dispatch(first)


def _group(device: Device) -> int:
    return min(_GROUP_WITH_ROWS, device.invocations)


def _planned(part: Part, device: Device) -> _Planned | None:
    stores = [s for s, b in enumerate(part.kernel.outputs) if b.size]
    buffers = part.buffers._replace(outputs=tuple([part.buffers.outputs[s] for s in stores]))
    workspaces = Workspaces(1 << 30)
    steps = steps_of(Step(widened(restricted(part.kernel, stores)), buffers), device, workspaces, apart=False)
    if len(steps) != 1:
        return None
    facts = facts_of(steps[0].kernel)
    if facts.inner:
        plan = schedule.rows_or_columns(facts, device)
        group = _group(device)
        return _Planned(facts, plan, steps[0], schedule.shared(facts, plan) * group) if plan.parts <= group else None
    plan = schedule.elementwise(facts, device)
    return None if crossing(facts, device, plan.rows.axes[-1]) is not None else _Planned(facts, plan, steps[0], 0)
