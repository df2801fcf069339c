"""`explain`: a function's program, with the work and the time of each kernel."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from volta_fn.compiler.buffers import Memory
from volta_fn.compiler.ir.program import KernelCall
from volta_fn.compiler.target import CONTROL_FLOW, Item, LoweredProgram
from volta_fn.core.arrays.array import Array, as_value
from volta_fn.core.arrays.memory import device_put
from volta_fn.core.aval import ShapeDtypeStruct
from volta_fn.core.devices.device import Device
from volta_fn.core.jaxpr import Equation, Var, format_jaxpr
from volta_fn.errors import ArgumentError, ArgumentTypeError
from volta_fn.inspection.explanation import (
    Attribution,
    Explanation,
    MemoryTimeline,
    Roofline,
    Step,
    bytes_of,
    changes_of,
    describe,
    flops_of,
    layer_of,
    lifetimes_of,
    locations_of,
    roofline_of,
    shapes_of,
    timeline_of,
)
from volta_fn.inspection.measure import Measured, measure, numpy_steps
from volta_fn.jit import jit
from volta_fn.jit.cache import Request
from volta_fn.jit.compile import TracedProgram, with_wide_inputs
from volta_fn.jit.eager import PIPELINE, common_device
from volta_fn.jit.function import Jitted
from volta_fn.jit.program_text import item_code, item_text
from volta_fn.jit.stages import Lowered

#: Timed calls, of which the fastest counts.
_CALLS = 15


def explain(f: Callable[..., Any], *, run: bool = True, calls: int = _CALLS) -> Callable[..., Explanation]:
    """Return a function that explains, stage by stage, how `f` is compiled.

    The program is compiled, and run some times to measure each kernel; donated arguments are not consumed.

    Args:
        f: a function, jitted or not, of pytrees of arrays.
        run: whether to run and measure it; else arguments may be `ShapeDtypeStruct`.
        calls: the least number of timed calls, of which the fastest counts. On a busy machine more calls are timed, until the fastest time
            repeats.

    Returns:
        a function ``(*args) -> Explanation``, which prints as a table, is rich in notebooks, and writes a report with ``.html(path)``.

    Raises:
        ArgumentTypeError: `f` cannot be called, or it is to run on a `ShapeDtypeStruct`.
        ArgumentError: `calls` is not positive.
        DeviceError: the GPU has no timestamp queries.

    >>> import volta_fn as vf
    >>> explanation = vf.explain(lambda x: vf.numpy.tanh(2 * x).sum())(vf.numpy.ones(1000))
    >>> sum(step.flops for step in explanation.steps) >= 2000
    True
    """
    if calls < 1:
        raise ArgumentError(f"explain: calls must be at least 1, got {calls}")
    jitted = f if isinstance(f, Jitted) else jit(f)

    @functools.wraps(f)
    def explained(*args: Any, **kwargs: Any) -> Explanation:
        request = Request(jitted._fun, jitted._options, args, kwargs)
        lowered = jitted.lower(*args, **kwargs)
        values = _values(request.leaves, lowered._traced) if run else []
        device = common_device(values) if values else lowered._device
        return _explain(lowered, device, values, calls if run else 0)

    return explained


def _values(leaves: Sequence[Any], traced: TracedProgram) -> Sequence[Array]:
    if struct := next((x for x in leaves if isinstance(x, ShapeDtypeStruct)), None):
        raise ArgumentTypeError(f"explain runs the function to measure it, but an argument is {struct}; pass arrays, or run=False")
    return with_wide_inputs([as_value(x) for x in leaves], traced)


def _explain(lowered: Lowered, device: Device, values: Sequence[Array], calls: int) -> Explanation:
    traced = lowered._traced
    target = device.backend.target
    buffers = [device_put(v, device).buffer() for v in (*traced.captured, *values)]
    roofline = roofline_of(device) if calls else None
    measured = measure(traced.jaxpr, traced.donated, device, buffers, calls) if calls and target is not None else None
    if target is None:
        steps, seconds, overhead = numpy_steps(lowered.simplified, traced.jaxpr, buffers, device, calls, roofline)
    else:
        steps = _steps(PIPELINE.lower(traced.jaxpr, target), measured, roofline)
        seconds = None if measured is None else measured.seconds
        overhead = 0.0 if measured is None else measured.totals().get(0, (0.0, 0))[0] + measured.outside
    return Explanation(
        lowered.fun_name,
        repr(device),
        "numpy" if target is None else target.name,
        format_jaxpr(traced.jaxpr.jaxpr, sources=True),
        format_jaxpr(lowered.simplified.jaxpr, sources=True),
        tuple(steps),
        tuple(changes_of(traced.jaxpr, target)),
        _memory(lowered, device, measured),
        seconds,
        roofline,
        overhead,
    )


def _memory(lowered: Lowered, device: Device, measured: Measured | None) -> MemoryTimeline:
    traced = lowered._traced
    arguments, results = (sum(a.nbytes for a in avals) for avals in (traced.jaxpr.in_avals, traced.jaxpr.out_avals))
    memory = Memory(arguments, results, device.backend.temporaries(traced.jaxpr, traced.donated, PIPELINE))
    return timeline_of(memory, lifetimes_of(lowered.simplified) if measured is None else measured.program.lifetimes)


class _Steps:
    """Collects the steps of a program and of its nested programs."""

    def __init__(self, measured: Measured | None, roofline: Roofline | None) -> None:
        self.steps: list[Step] = []
        self.measured, self.roofline = measured, roofline
        entries = [] if measured is None else measured.items
        self.numbers = {id(entry[1]): number for number, entry in enumerate(entries) if entry is not None}
        self.totals = {} if measured is None else measured.totals()

    def add(self, program: LoweredProgram, depth: int, repeats: int) -> None:
        """Add the steps of a program, which runs `repeats` times."""
        attribution = Attribution(program)
        producers: dict[Var, int] = {}
        for item in program.items:
            if not item.is_needed:
                continue
            operands = [program.root(v) for v in item.operands if isinstance(v, Var)]
            after = tuple(sorted({producers[v] for v in operands if v in producers}))
            step = self._step(program, item, attribution, after, depth, repeats)
            self.steps.append(step)
            producers.update(dict.fromkeys(item.results, step.number))
            length = int(item.node.params.get("length", 1)) if isinstance(item.node, Equation) else 1
            for inner in item.programs:
                self.add(inner, depth + 1, repeats * length)

    def _step(
        self, program: LoweredProgram, item: Item, attribution: Attribution, after: tuple[int, ...], depth: int, repeats: int
    ) -> Step:
        equations = attribution.equations(item)
        seconds, runs = self.totals.get(self.numbers.get(id(item), -1), (None, repeats))
        if isinstance(item.node, Equation) and item.key is None and item.node.primitive in CONTROL_FLOW:
            kind = "control flow"
        elif program.target.host_reason(item) is not None:
            kind = "host"
        else:
            kind = "kernel" if isinstance(item.node, KernelCall) else "routine"
        flops, moved = (0, 0) if item.programs else (flops_of(equations), bytes_of(item))
        fraction = None
        if seconds and self.roofline is not None and not item.programs:
            fraction = self.roofline.seconds(flops, moved) * runs / seconds
        return Step(
            number=len(self.steps) + 1,
            name=describe(item, equations),
            kind=kind,
            shapes=shapes_of(item),
            flops=flops,
            bytes=moved,
            runs=runs,
            seconds=0.0 if seconds is None and self.measured is not None else seconds,
            fraction=fraction,
            user_lines=tuple(locations_of(equations)),
            equations=tuple([eqn.primitive.name for eqn in equations]),
            text=item_text(item),
            code=item_code(program, item),
            after=after,
            depth=depth,
            layer=layer_of(equations),
        )


def _steps(program: LoweredProgram, measured: Measured | None, roofline: Roofline | None) -> list[Step]:
    steps = _Steps(measured, roofline)
    steps.add(program, 0, 1)
    return steps.steps
