"""Large kernels without inner axes: an invocation has several elements, or groups of lanes, whose loads are on their way together.

They are a workgroup's size apart, so that neighbouring invocations read neighbouring memory at a time.
"""

from __future__ import annotations

from volta_fn.compiler.ir.analysis import KernelAnalysis
from volta_fn.compiler.target import TargetCapabilities
from volta_fn.targets.wgsl.loops.emit_values import LaneScope, arrays
from volta_fn.targets.wgsl.loops.kernel_step import Step
from volta_fn.targets.wgsl.loops.rows import Schedule, write_together
from volta_fn.targets.wgsl.routine import Dispatch
from volta_fn.targets.wgsl.scalars import Shader


def write_flat(facts: KernelAnalysis, schedule: Schedule, device: TargetCapabilities, step: Step) -> Dispatch:
    """A step as a dispatch."""
    rows, width, turns = schedule.rows, schedule.beside, schedule.turns
    shader = Shader(device, width)
    root = LaneScope(arrays(shader, facts, (rows,), step.buffers), None, {})
    stores = range(len(facts.kernel.stores))
    targets = [store.value for store in facts.kernel.stores]
    root.hoist(targets)
    first = shader.let("u32", f"{shader.group} * {width * turns}u + {shader.local}")
    numbers = [shader.let("u32", f"{first} + {k * width}u") if k else first for k in range(turns)]
    certain = rows.groups % (width * turns) == 0
    within = numbers if certain else [shader.let("u32", f"min({number}, {rows.groups - 1}u)") for number in numbers]
    places = [root.child(rows.bind(shader, number), rows) for number in within]
    write_together(places, targets)
    for number, place in zip(numbers, places, strict=True):
        with shader.block("" if certain else f"if ({number} < {rows.groups}u)"):
            inside = place.child({})
            for s in stores:
                inside.store(s)
    return shader.dispatch(-(-rows.groups // (width * turns)))
