"""`explain`: a function's program, with the work and the time of each kernel."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from volta_fn import tree
from volta_fn.compiler.buffers import Memory
from volta_fn.compiler.ir.kernel import KernelCall
from volta_fn.compiler.target import CONTROL_FLOW, Item, LoweredProgram
from volta_fn.core.arrays.array import Array, as_value, host_buffer
from volta_fn.core.arrays.memory import common_device, device_put
from volta_fn.core.aval import ShapedArray, ShapeDtypeStruct
from volta_fn.core.devices.device import Device
from volta_fn.core.jaxpr import ClosedJaxpr, Equation, Var, format_jaxpr, inline_calls, interpret_jaxpr
from volta_fn.core.staging import FlatFunction, argument_labels, function_name, trace_to_jaxpr
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
    samples,
    shapes_of,
    timeline_of,
)
from volta_fn.jit.cache import Request
from volta_fn.jit.compile import TracedProgram, with_wide_inputs
from volta_fn.jit.eager import PIPELINE
from volta_fn.jit.function import PjitFunction, jit
from volta_fn.jit.stages import Lowered, item_code, item_text
from volta_fn.primitives.call import jit_p
from volta_fn.transforms.checkpoint import checkpoint_p, name_p
from volta_fn.transforms.differentiation import linearize_flat
from volta_fn.transforms.grad import arguments_at, partial_function, vjp

# The steps of a program that NumPy runs: its equations, timed one by one.


def numpy_steps(
    program: ClosedJaxpr, traced: ClosedJaxpr, buffers: Sequence[Any], device: Device, calls: int, roofline: Roofline | None
) -> tuple[list[Step], float | None, float]:
    """Return equations as steps, the seconds of a call, and those between steps."""
    # Each equation runs as its kernel in NumPy; a call runs the plan of `traced`, which saves memory and so some time.
    if not calls:
        return _as_steps(program, None, roofline), None, 0.0
    runs = [_kernel(eqn, device) for eqn in program.eqns]
    measured = [_timed(program, runs, buffers) for _ in range(calls)]
    seconds = [min(times) for times in zip(*measured, strict=True)]
    run = device.backend.compile(traced, (False,) * len(buffers), PIPELINE).run
    call = min(samples(lambda: run(False, *buffers)))
    return _as_steps(program, seconds, roofline), call, 0.0


def _kernel(eqn: Equation, device: Device) -> Callable[..., Sequence[Any]]:
    run = device.backend.kernel(eqn.primitive, tuple([v.aval for v in eqn.invars]), eqn.params, PIPELINE)
    return run if eqn.primitive.multiple_results else lambda *buffers: (run(*buffers),)


def _timed(program: ClosedJaxpr, runs: Sequence[Callable[..., Sequence[Any]]], buffers: Sequence[Any]) -> list[float]:
    """Run the equations one by one, and return the seconds of each."""
    remaining, seconds = iter(runs), []

    def step(_: Equation, operands: list[Any]) -> Sequence[Any]:
        run, start = next(remaining), time.perf_counter()
        results = run(*operands)
        seconds.append(time.perf_counter() - start)
        return results

    interpret_jaxpr(program, buffers, step, host_buffer)
    return seconds


def _as_steps(program: ClosedJaxpr, seconds: Sequence[float] | None, roofline: Roofline | None) -> list[Step]:
    producers: dict[Var, int] = {}
    steps = []
    for number, eqn in enumerate(program.eqns, 1):
        variables = [v for v in (*eqn.invars, *eqn.outvars) if isinstance(v, Var)]
        flops, moved = flops_of([eqn]), sum(v.aval.nbytes for v in dict.fromkeys(variables))
        duration = None if seconds is None else seconds[number - 1]
        operands, results = (" ".join(str(v.aval) for v in some) for some in (eqn.invars, eqn.outvars))
        steps.append(
            Step(
                number=number,
                name=eqn.primitive.name,
                kind="control flow" if eqn.primitive.holds_programs else "kernel",
                shapes=f"{operands} → {results}",
                flops=flops,
                bytes=moved,
                runs=1,
                seconds=duration,
                fraction=roofline.seconds(flops, moved) / duration if duration and roofline is not None else None,
                user_lines=tuple(locations_of([eqn])),
                equations=(eqn.primitive.name,),
                text=f"{eqn.primitive.name} {operands} -> {results}",
                code="",
                after=tuple(sorted({producers[v] for v in eqn.invars if isinstance(v, Var) and v in producers})),
                depth=0,
            )
        )
        producers.update(dict.fromkeys(eqn.outvars, number))
    return steps


# The time of each item of a program, over several runs.

#: A time: the numbers of the items, begin and end in nanoseconds.
Span = tuple[tuple[int, ...], int, int]

#: On a busy machine a single fastest call says little: calls are repeated until the fastest three agree up to this fraction, up to so many
#: times the number that is asked for.
_NEAR, _MOST = 0.03, 10


class Measured(NamedTuple):
    """The times of a program's items.

    Attributes:
        items: the program and the item of each number; None for number 0, the gaps between items.
        seconds: the fastest call of the program as it always runs.
        spans: of the fastest timed call: items, begin and end.
        program: the timed program.
        outside: the seconds of that call before its first span and after its last, as far as the host's clock tells.
    """

    items: list[tuple[LoweredProgram, Item] | None]
    seconds: float
    spans: list[Span]
    program: Any
    outside: float

    def totals(self) -> dict[int, tuple[float, int]]:
        """Return seconds and runs by an item's number; items of one dispatch share it."""
        totals: dict[int, tuple[float, int]] = {}
        before: tuple[int, ...] = ()
        for numbers, begin, end in self.spans:
            for number in numbers:
                seconds, runs = totals.get(number, (0.0, 0))
                totals[number] = seconds + (end - begin) / 1e9 / len(numbers), runs + (numbers != before)
            before = numbers
        return totals


def measure(closed: ClosedJaxpr, donated: Sequence[bool], device: Device, buffers: Sequence[Any], calls: int) -> Measured | None:
    """Measure a program on the buffers of its arguments, which stay as they are.

    None where NumPy runs programs.
    """
    timed = device.backend.timed(closed, donated, PIPELINE)
    if timed is None:
        return None
    run = device.backend.compile(closed, donated, PIPELINE).run

    def call() -> None:
        run(False, *buffers)
        device.backend.synchronize(None)

    def timed_call() -> _TimedCall:
        start = time.perf_counter()
        timed(False, *buffers)
        seconds = time.perf_counter() - start
        spans = timed.times()
        inside = sum(end - begin for _, begin, end in spans) / 1e9
        # The clock of a GPU is another one, and its commands run after the call that writes them.
        return _TimedCall(inside if timed.device == "gpu" else seconds, inside, spans)

    call()
    timed_call()
    timed.settle()
    timed_call()
    seconds: list[float] = []
    timed_calls: list[_TimedCall] = []

    def plain() -> None:
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)

    # In alternation, so that both see the same load of the machine, and in either order, since threads that waited are scheduled first.
    order: list[Callable[[], None]] = [plain, lambda: timed_calls.append(timed_call())]

    def is_noisy() -> bool:
        return not (_repeats(seconds) and _repeats([c.seconds for c in timed_calls]))

    while len(timed_calls) < calls or (is_noisy() and len(timed_calls) < _MOST * calls):
        for measure_once in order:
            measure_once()
        order.reverse()
    fastest = min(timed_calls, key=lambda c: c.seconds)
    return Measured(timed.items, min(seconds), fastest.spans, timed, fastest.seconds - fastest.inside)


class _TimedCall(NamedTuple):
    """A call's seconds, those of its spans together, and the spans."""

    seconds: float
    inside: float
    spans: list[Span]


def _repeats(seconds: Sequence[float]) -> bool:
    """Return True if the three fastest calls took about the same time."""
    return len(seconds) > 2 and sorted(seconds)[2] <= (1 + _NEAR) * min(seconds)


# Explanations.

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

    >>> explanation = vf.explain(lambda x: vf.numpy.tanh(2 * x).sum())(vf.numpy.ones(1000))
    >>> sum(step.flops for step in explanation.steps) >= 2000
    True
    """
    if calls < 1:
        raise ArgumentError(f"explain: calls must be at least 1, got {calls}")
    jitted = f if isinstance(f, PjitFunction) else jit(f)

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


# What a backward pass keeps: `print_saved_residuals`, `fwd_and_bwd`.


def saved_residuals(f: Callable[..., Any], *args: Any, **kwargs: Any) -> list[tuple[ShapedArray, str]]:
    """Return the type and origin of each value that the backward pass of `f` reads.

    >>> vf.ad_checkpoint.saved_residuals(lambda x: vf.numpy.float32(3) * x * x, vf.numpy.ones(2))[0]
    (f32[2], 'from the argument x')
    """
    leaves, in_tree = tree.flatten((args, kwargs))
    flat = FlatFunction(f, in_tree)
    labels = argument_labels(f, in_tree)

    def residuals(*values: Array) -> list[Array]:
        return linearize_flat(flat, values, name=function_name(f))[1].consts

    program = trace_to_jaxpr(residuals, [as_value(x).aval for x in leaves], function_name(f), labels)
    program = inline_calls(inline_calls(program, checkpoint_p), jit_p)
    origins = dict.fromkeys(program.jaxpr.constvars, "from a constant")
    origins |= {v: f"from the argument {label}" for v, label in zip(program.jaxpr.invars, labels, strict=True)}
    for eqn in program.eqns:
        where = f" from {eqn.source.place} ({eqn.source.function})" if eqn.source else ""
        named = f"named {eqn.params['name']!r}" if eqn.primitive is name_p else f"output of {eqn.primitive}"
        origins |= dict.fromkeys(eqn.outvars, f"{named}{where}")
    saved = {v: v.aval for v in program.jaxpr.outvars if isinstance(v, Var)}
    return [(aval, origins[v]) for v, aval in saved.items()]


def print_saved_residuals(f: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    """Print what the backward pass of `f` reads, a line for each value.

    >>> vf.ad_checkpoint.print_saved_residuals(lambda x: x * x, vf.numpy.ones(2))
    f32[2] from the argument x
    """
    for aval, origin in saved_residuals(f, *args, **kwargs):
        print(f"{aval} {origin}")


def fwd_and_bwd(
    fun: Callable[..., Any], argnums: int | Sequence[int], has_aux: bool = False, jitted: bool = True
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return the forward and the backward pass of a function, as functions.

    Args:
        fun: the function, with `has_aux` of a pair (result, anything).
        argnums: the positional arguments to differentiate with respect to.
        jitted: compile both.

    Returns:
        ``fwd(*args)``, which returns ``(result, residuals)`` (or ``(result, residuals, aux)``), and ``bwd(residuals, cotangent)``, which
        returns a tuple of cotangents, one for each of `argnums`.

    >>> fwd, bwd = vf.fwd_and_bwd(lambda x, y: x * y, argnums=(0, 1))
    >>> value, residuals = fwd(2.0, 3.0)
    >>> bwd(residuals, 1.0)
    (Array(3., dtype=float32, weak_type=True), Array(2., dtype=float32, weak_type=True))
    """

    def fwd(*args: Any, **kwargs: Any) -> Any:
        positions, arguments = arguments_at(args, argnums, "fwd_and_bwd")
        return vjp(partial_function(fun, args, positions, kwargs), *arguments, has_aux=has_aux)

    def bwd(residuals: Any, cotangent: Any) -> Any:
        return residuals(cotangent)

    return (jit(fwd), jit(bwd)) if jitted else (fwd, bwd)
