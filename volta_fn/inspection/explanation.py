"""`Explanation`: the compiled form of a function, as data that prints itself.

For each item of a program it has the equations and the user's lines that a kernel computes, its operations and bytes, and the time that the
device's peak rates allow; for the program, the changes by each pass, and its memory over time.
"""

from __future__ import annotations

import functools
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from volta_fn.compiler import pipeline
from volta_fn.compiler.buffers import Lifetime, Memory
from volta_fn.compiler.ir.kernel import FusedProgram, KernelCall, equations_between, simplify_nested
from volta_fn.compiler.target import Item, LoweredProgram, NodePass, Pass, Target
from volta_fn.core.arrays.array import Array
from volta_fn.core.arrays.memory import block_until_ready, device_put
from volta_fn.core.aval import ShapedArray
from volta_fn.core.devices.device import Device
from volta_fn.core.jaxpr import ClosedJaxpr, Equation, Var, sub_jaxprs
from volta_fn.jit import jit
from volta_fn.jit.compile import operations_of
from volta_fn.lazy_imports import load
from volta_fn.source import SourceLocation

# The changes that each pass of the compiler makes to a program.


class Change(NamedTuple):
    """The changes by one pass.

    `before` and `after` are numbers of equations, or of kernels and equations from fusion on; `difference` is by primitive.
    """

    name: str
    description: str
    before: int
    after: int
    difference: dict[str, int]

    def __str__(self) -> str:
        if not self.difference and self.before == self.after:
            return f"{self.name}: no change"
        most = sorted(self.difference.items(), key=lambda entry: (-abs(entry[1]), entry[0]))
        listed = ", ".join(f"{count:+d} {name}" for name, count in most[:6]) + (", …" if len(most) > 6 else "")
        return f"{self.name}: {self.before:,} → {self.after:,}  ({listed})"


class _Recorder:
    """Runs passes, and records the changes by each."""

    def __init__(self) -> None:
        self.changes: list[Change] = []

    def run(self, one: Pass, program: Any) -> Any:
        before = _census(program)
        result = one.run(program)
        after = _census(result)
        difference = {name: after[name] - before[name] for name in sorted({*before, *after}) if after[name] != before[name]}
        self.changes.append(Change(one.name, one.description, before.total(), after.total(), difference))
        return result


def changes_of(closed: ClosedJaxpr, target: Target | None) -> list[Change]:
    """Return the changes by each pass, in the order in which they run.

    Without a target, as on a CPU without llvmlite, those passes that are the same for all targets. Passes that run again and then change
    nothing are listed once.
    """
    recorder = _Recorder()
    inlining, *_ = [None] if target is None else pipeline.passes_of(target)
    program = closed if inlining is None else recorder.run(inlining, closed)
    program = _simplify(recorder, program)
    divided = recorder.run(pipeline.LOOP_FISSION, simplify_nested(program, pipeline.optimize))
    program = _simplify(recorder, divided) if divided is not program else program
    if target is None:
        return list(_without_repeats(recorder.changes))
    for expansion in pipeline.expansions_of(target):
        changed = recorder.run(expansion, program)
        program = _simplify(recorder, changed) if expansion.simplify_after and changed is not program else changed
    fused: Any = program
    for late in pipeline.passes_of(target):
        if isinstance(late, NodePass) or late.name == "fusion":
            fused = recorder.run(late, fused)
    return list(_without_repeats(recorder.changes))


def _simplify(recorder: _Recorder, program: ClosedJaxpr) -> ClosedJaxpr:
    """Simplify a program as `pipeline.simplify` does."""
    while True:
        for one in pipeline.EQUATION_PASSES:
            program = recorder.run(one, program)
        live = program
        for one in pipeline.LOOP_PASSES:
            program = recorder.run(one, program)
        program = simplify_nested(program, pipeline.simplify)
        if program is live:
            return program


def _without_repeats(changes: Sequence[Change]) -> Iterator[Change]:
    seen: set[str] = set()
    for change in changes:
        if change.difference or change.before != change.after or change.name not in seen:
            yield change
        seen.add(change.name)


def _census(program: ClosedJaxpr | FusedProgram) -> Counter[str]:
    """Count equations by primitive, those of inner programs included, and kernels."""
    if isinstance(program, FusedProgram):
        of_nodes = [Counter(["kernel"]) if isinstance(n, KernelCall) else _census_of_equation(n) for n in program.nodes]
        return sum(of_nodes, Counter())
    return sum(map(_census_of_equation, program.eqns), Counter())


def _census_of_equation(eqn: Equation) -> Counter[str]:
    return sum([_census(sub) for sub in sub_jaxprs(eqn.params)], Counter([eqn.primitive.name]))


# The equations that a kernel computes, and the user's lines that they come from.
#
# Fusion keeps no record of its groups: a kernel computes the equations between its operands and its results in the program before fusion.


class Attribution:
    """The equations of a lowered program's items."""

    def __init__(self, program: LoweredProgram) -> None:
        self.program = program
        self._producers = {v: eqn for eqn in program.closed.eqns for v in eqn.outvars}
        self._order = {id(eqn): number for number, eqn in enumerate(program.closed.eqns)}
        self._readers: dict[Var, list[Item]] = {}
        for item in program.items:
            for operand in item.operands:
                if isinstance(operand, Var):
                    self._readers.setdefault(program.root(operand), []).append(item)

    def equations(self, item: Item) -> list[Equation]:
        """Return the equations that an item computes, in the program's order."""
        if not isinstance(item.node, KernelCall):
            return [item.node]
        equations = equations_between(self._producers, item.operands, item.results)
        if not equations:  # its results are partial sums, which the program before fusion does not have
            readers = [reader for result in item.results for reader in self._readers.get(result, ())]
            equations = equations_between(self._producers, item.operands, [v for reader in readers for v in reader.results])
        return sorted(equations, key=lambda eqn: self._order[id(eqn)])


def locations_of(equations: Sequence[Equation]) -> list[SourceLocation]:
    """Return the lines of the user that equations come from, each once.

    Lines of an equation's programs count where it has none of its own.
    """
    locations: dict[SourceLocation, None] = {}
    for eqn in equations:
        if eqn.source is not None:
            locations[eqn.source] = None
            continue
        for program in sub_jaxprs(eqn.params):
            locations.update(dict.fromkeys(locations_of(program.eqns)))
    return list(locations)


def layer_of(equations: Sequence[Equation]) -> str:
    """Return the scope with the most operations among equations, or nothing."""
    operations: Counter[str] = Counter()
    _add_scopes(equations, operations)
    return max(operations, key=lambda scope: (operations[scope], scope), default="")


def _add_scopes(equations: Sequence[Equation], operations: Counter[str]) -> None:
    for eqn in equations:
        if eqn.source is not None and eqn.source.scope:
            operations[eqn.source.scope] += 1 + operations_of(eqn)
        else:
            for program in sub_jaxprs(eqn.params):
                _add_scopes(program.eqns, operations)


# The peak rates of a device, in operations and bytes, measured with kernels.
#
# The bandwidth depends on the size, since caches are faster than memory; so several sizes are measured.

#: Rows and columns of the products, and the bytes of the arrays that are measured: for CPUs, and for devices that are slow to start.
_ROWS = (512, 1024)
_BYTES = (1 << 16, 1 << 20, 1 << 24, 1 << 26)
#: Seconds that a measurement takes at least, and the most calls.
_SECONDS, _CALLS = 0.02, 50


class Roofline(NamedTuple):
    """A device's measured rates.

    `flops` is in operations per second, of float32; `bandwidths` are pairs (bytes, bytes per second), from few to many.
    """

    device: str
    flops: float
    bandwidths: tuple[tuple[int, float], ...]

    def bandwidth(self, moved: int) -> float:
        """Return the bytes per second for a kernel that moves that many."""
        return next((rate for size, rate in self.bandwidths if moved <= size), self.bandwidths[-1][1])

    def seconds(self, flops: int, moved: int) -> float:
        """Return the least seconds for so many operations and bytes."""
        return max(flops / self.flops, moved / self.bandwidth(moved))


@functools.cache
def roofline_of(device: Device) -> Roofline:
    """Measure a device, once in a process; it takes about a second."""
    flops = max(2 * n**3 / _seconds(lambda x: x @ x, device_put(np.ones((n, n), np.float32), device)) for n in _ROWS)
    rates = []
    for size in _BYTES:
        x = device_put(np.ones(size // 8, np.float32), device)  # as many bytes are read as written
        rates.append((size, size / _seconds(lambda x: x + 1, x)))
    return Roofline(repr(device), flops, tuple(rates))


def _seconds(function: Callable[..., Any], x: Array) -> float:
    """Return the seconds of the fastest of some calls."""
    run = jit(function)
    return fastest(lambda: block_until_ready(run(x)))


def samples(call: Callable[[], Any], seconds: float = _SECONDS, most: int = _CALLS) -> Sequence[float]:
    """Return the seconds of some calls, after one that may compile."""
    call()
    times: list[float] = []
    while len(times) < 3 or (sum(times) < seconds and len(times) < most):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return times


def fastest(call: Callable[[], Any]) -> float:
    """Return the seconds of the fastest of some calls."""
    return max(min(samples(call)), 1e-9)


# The least work of an item of a program: operations and bytes.


def describe(item: Item, equations: Sequence[Equation]) -> str:
    """Name an item: its primitive, or the most telling primitives of a kernel."""
    if not isinstance(item.node, KernelCall):
        return item.node.primitive.name
    names = dict.fromkeys([eqn.primitive.name for eqn in sorted(equations, key=lambda eqn: -operations_of(eqn))])
    moving = [name for name in names if name not in _VIEWS]
    chosen = (moving or [*names])[:3]
    return " + ".join(chosen) + (" + …" if len(moving) > len(chosen) else "") if chosen else "kernel"


#: Primitives that only change indices or names.
_VIEWS = frozenset({"reshape", "transpose", "broadcast_in_dim", "squeeze", "expand_dims", "slice", "rev", "convert_element_type", "name"})


def flops_of(equations: Sequence[Equation]) -> int:
    """Count the operations of equations: of products, elements and reductions."""
    return sum(map(operations_of, equations))


def bytes_of(item: Item) -> int:
    """Return the bytes of an item's operands and results, each array once."""
    arrays = dict.fromkeys([v for v in (*item.operands, *item.results) if isinstance(v, Var)])
    return sum(v.aval.nbytes for v in arrays)


def shapes_of(item: Item) -> str:
    """Return the types of an item's operands and results."""
    return f"{_types([v.aval for v in item.operands])} → {_types([v.aval for v in item.results])}"


def _types(avals: Sequence[ShapedArray]) -> str:
    shown = [str(aval) for aval in avals[:4]]
    return " ".join([*shown, f"… ({len(avals)})"] if len(avals) > 4 else shown) or "()"


# A program's memory over time.


class MemoryTimeline(NamedTuple):
    """The memory of a program from its first command to its last.

    `memory` are the bytes that a call takes; `temporaries` the bytes of values in between that are needed at each command.
    """

    memory: Memory
    temporaries: tuple[int, ...]

    @property
    def peak(self) -> int:
        """The most bytes: arguments, results, and what is reserved for values in between."""
        return self.memory.peak

    @property
    def busiest(self) -> int:
        """The number of the command at which most is needed."""
        return max(range(len(self.temporaries)), key=self.temporaries.__getitem__, default=0)

    def total(self, command: int) -> int:
        """Return the bytes that are needed at a command, arguments and results included."""
        return self.memory.arguments + self.memory.results + self.temporaries[command]


def timeline_of(memory: Memory, lifetimes: Sequence[Lifetime]) -> MemoryTimeline:
    """Return the timeline of values with these lifetimes."""
    last = max([value.end for value in lifetimes], default=0)
    changes = [0] * (last + 2)
    for value in lifetimes:
        changes[value.begin] += value.bytes
        changes[value.end + 1] -= value.bytes
    return MemoryTimeline(memory, tuple(accumulate(changes[:-1])))


def lifetimes_of(program: ClosedJaxpr) -> list[Lifetime]:
    """Return the lifetimes of values that equations compute one by one."""
    last = {v: number for number, eqn in enumerate(program.eqns) for v in eqn.invars if isinstance(v, Var)}
    outputs = set(program.outvars)
    return [
        Lifetime(number, last.get(v, number), v.aval.nbytes)
        for number, eqn in enumerate(program.eqns)
        for v in eqn.outvars
        if v not in outputs
    ]


# `Explanation`: the compiled form of a function, as data that prints itself.


class Step(NamedTuple):
    """One kernel of a program, or the routine, control flow or host step in its place.

    Attributes:
        number: its position in the program, from 1; steps in control flow follow the step that holds them.
        name: the primitives that it computes, the most expensive first.
        kind: "kernel", "routine" (of a single equation), "control flow" or "host".
        shapes: the types of operands and results.
        flops, bytes: of one run: operations, and bytes of operands and results.
        runs: its number of executions in a call.
        seconds: of all runs in a call; None if the program was not measured.
        fraction: the least seconds by the device's roofline, over those measured.
        user_lines: the user's lines that it comes from.
        equations: the primitives that it computes.
        text, code: its kernel IR, and its LLVM IR or WGSL.
        after: the numbers of the steps whose results it reads.
        depth: the number of loops and branches around it.
        layer: the path of the layer, or the names of the scopes (`named_scope`), with most of its operations.
    """

    number: int
    name: str
    kind: str
    shapes: str
    flops: int
    bytes: int
    runs: int
    seconds: float | None
    fraction: float | None
    user_lines: tuple[SourceLocation, ...]
    equations: tuple[str, ...]
    text: str
    code: str
    after: tuple[int, ...]
    depth: int
    layer: str = ""


class LayerCost(NamedTuple):
    """The steps of a layer, or of several equal layers.

    Attributes:
        layer: its path in the model, such as ``GPT/blocks.0/attention``; of equal layers ``GPT/blocks.0–11/attention``.
        copies: the number of equal layers.
        kernels: the number of steps of all of them.
        flops, bytes: of all runs in a call.
        seconds: of all runs in a call; None if the program was not measured.
    """

    layer: str
    copies: int
    kernels: int
    flops: int
    bytes: int
    seconds: float | None


def layer_costs(steps: Sequence[Step]) -> list[LayerCost]:
    """Return the costs of the layers, the most expensive first.

    Layers at the same place of lists, such as the blocks of a transformer, are one entry if they have the same steps.
    """
    by_layer: dict[str, list[Step]] = {}
    for step in steps:
        if step.kind != "control flow":
            by_layer.setdefault(step.layer, []).append(step)
    equal: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for layer, own_steps in by_layer.items():
        pattern = _INDEX.sub(".*", layer)
        equal.setdefault((pattern, tuple(sorted(step.name for step in own_steps))), []).append(layer)
    costs = [_cost(layers, [step for layer in layers for step in by_layer[layer]]) for layers in equal.values()]
    return sorted(costs, key=lambda cost: (-(cost.seconds or 0.0), -cost.flops, -cost.bytes, cost.layer))


def _cost(layers: Sequence[str], steps: Sequence[Step]) -> LayerCost:
    flops, moved = (sum(getattr(step, name) * step.runs for step in steps) for name in ("flops", "bytes"))
    seconds = None if all(step.seconds is None for step in steps) else sum(step.seconds or 0.0 for step in steps)
    return LayerCost(_joined(layers), len(layers), len(steps), flops, moved, seconds)


#: The index of a layer in a list.
_INDEX = re.compile(r"\.\d+")


def _joined(layers: Sequence[str]) -> str:
    """Return the path of equal layers, with the ranges of their indices.

    >>> _joined(["net/blocks.0/a", "net/blocks.1/a", "net/blocks.2/a"]), _joined(["x.1", "x.4"])
    ('net/blocks.0–2/a', 'x.1,4')
    """
    columns = zip(*[map(int, (index[1:] for index in _INDEX.findall(layer))) for layer in layers], strict=True)
    texts = []
    for column in columns:
        numbers = sorted(set(column))
        contiguous = len(numbers) > 1 and numbers[-1] - numbers[0] == len(numbers) - 1
        texts.append(f".{numbers[0]}–{numbers[-1]}" if contiguous else f".{','.join(map(str, numbers))}")
    rest = iter(texts)
    return _INDEX.sub(lambda match: next(rest), layers[0])


@dataclass(frozen=True)
class Explanation:
    """The result of `explain`; `str` gives a table, `html` writes a report.

    Attributes:
        name: the function's name.
        device, target: where it runs, and for what code is generated: "cpu", "wgsl" or "numpy".
        jaxpr, simplified: the program as traced and after simplification, as text.
        steps: the kernels, in order.
        passes: the changes by each pass of the compiler.
        memory: the memory over time.
        seconds: of the fastest call; None if nothing was measured.
        roofline: the device's measured rates, or None.
    """

    name: str
    device: str
    target: str
    jaxpr: str
    simplified: str
    steps: tuple[Step, ...]
    passes: tuple[Change, ...]
    memory: MemoryTimeline
    seconds: float | None
    roofline: Roofline | None
    #: Seconds between kernels, which belong to none.
    overhead: float = 0.0

    @property
    def kernel_seconds(self) -> float:
        """The seconds of all steps together, and of the gaps between them."""
        return sum(step.seconds or 0.0 for step in self.steps) + self.overhead

    def slowest(self, most: int = 10) -> list[Step]:
        """Return the steps that take the most time, or else have the most operations."""
        return sorted(self.steps, key=lambda s: (-(s.seconds or 0.0), -s.flops * s.runs, s.number))[:most]

    def layers(self) -> list[LayerCost]:
        """Return the costs of the layers, equal ones together, the most expensive first."""
        return layer_costs(self.steps)

    def html(self, path: str | Path) -> Path:
        """Write a report to a file, which needs nothing else, and return its path."""
        target = Path(path)
        target.write_text(load("volta_fn.inspection.report").page(self), encoding="utf-8")
        return target

    def _repr_html_(self) -> str:
        fragment: str = load("volta_fn.inspection.report").fragment(self)
        return fragment

    def __str__(self) -> str:
        text: str = load("volta_fn.inspection.report").text_of(self)
        return text

    __repr__ = __str__


def aligned(rows: Sequence[Sequence[Any]], right: Sequence[int] = ()) -> list[str]:
    """Align the cells of rows in columns, those numbered in `right` on their right."""
    table = [[str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return [
        "  ".join([cell.rjust(n) if i in right else cell.ljust(n) for i, (cell, n) in enumerate(zip(row, widths, strict=True))]).rstrip()
        for row in table
    ]
