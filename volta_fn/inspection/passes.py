"""What each pass of the compiler changes in a program."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from volta_fn.compiler import pipeline
from volta_fn.compiler.ir.nodes import FusedProgram, KernelCall
from volta_fn.compiler.passes.loops import simplify_nested
from volta_fn.compiler.target import NodePass, Pass, ProgramPass, Target
from volta_fn.core.jaxpr import ClosedJaxpr, Equation, sub_jaxprs


class Change(NamedTuple):
    """What one pass did.

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
    """Runs passes, and notes what each changes."""

    def __init__(self) -> None:
        self.changes: list[Change] = []

    def run(self, one: Pass, program: Any) -> Any:
        """Run a pass on a program."""
        before = _census(program)
        result = one.run(program)
        after = _census(result)
        difference = {name: after[name] - before[name] for name in sorted({*before, *after}) if after[name] != before[name]}
        self.changes.append(Change(one.name, one.description, before.total(), after.total(), difference))
        return result


def changes_of(closed: ClosedJaxpr, target: Target | None) -> list[Change]:
    """Return what each pass changes, in the order in which they run.

    Without a target, as on a CPU without llvmlite, those passes that are the same for all targets. Passes that run again and then change
    nothing are listed once.
    """
    recorder = _Recorder()
    kept, *_ = [None] if target is None else pipeline.passes_of(target)
    program = closed if kept is None else recorder.run(kept, closed)
    program = _simplified(recorder, program)
    divided = recorder.run(pipeline.LOOP_FISSION, simplify_nested(program, pipeline.optimize))
    program = _simplified(recorder, divided) if divided is not program else program
    if target is None:
        return list(_without_repeats(recorder.changes))
    for expansion in _expansions(target):
        changed = recorder.run(expansion, program)
        program = _simplified(recorder, changed) if expansion.simplify_after and changed is not program else changed
    found: Any = program
    for late in pipeline.passes_of(target):
        if isinstance(late, NodePass) or late.name == "fusion":
            found = recorder.run(late, found)
    return list(_without_repeats(recorder.changes))


def _simplified(recorder: _Recorder, program: ClosedJaxpr) -> ClosedJaxpr:
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


def _expansions(target: Target) -> list[ProgramPass]:
    own = [p for p in target.passes() if isinstance(p, ProgramPass)]
    return [*own, *pipeline.EXPANSIONS]


def _without_repeats(changes: Sequence[Change]) -> Iterator[Change]:
    seen: set[str] = set()
    for change in changes:
        if change.difference or change.before != change.after or change.name not in seen:
            yield change
        seen.add(change.name)


def _census(program: ClosedJaxpr | FusedProgram) -> Counter[str]:
    """Count equations by primitive, those of inner programs included, and kernels."""
    if isinstance(program, FusedProgram):
        return sum([_of_node(node) for node in program.nodes], Counter())
    return sum(map(_of_equation, program.eqns), Counter())


def _of_node(node: Any) -> Counter[str]:
    return Counter(["kernel"]) if isinstance(node, KernelCall) else _of_equation(node)


def _of_equation(eqn: Equation) -> Counter[str]:
    return sum([_census(sub) for sub in sub_jaxprs(eqn.params)], Counter([eqn.primitive.name]))
