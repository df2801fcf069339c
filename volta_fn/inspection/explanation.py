"""`Explanation`: what a function becomes, as data that prints itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from volta_fn.inspection.memory import MemoryTimeline
from volta_fn.inspection.passes import Change
from volta_fn.inspection.roofline import Roofline
from volta_fn.lazy_imports import load
from volta_fn.source import SourceLocation


class Step(NamedTuple):
    """One kernel of a program, or what runs in place of one.

    Attributes:
        number: its position in the program, from 1; steps in control flow follow the step that holds them.
        name: the primitives that it computes, the most expensive first.
        kind: "kernel", "routine" (of a single equation), "control flow" or "host".
        shapes: the types of operands and results.
        flops, bytes: of one run: operations, and bytes of operands and results.
        runs: how often a call runs it.
        seconds: of all runs in a call; None if the program was not measured.
        fraction: the least seconds by the device's roofline, over those measured.
        user_lines: the user's lines that it comes from.
        equations: what it computes.
        text, code: the loops that it is, and LLVM IR or WGSL.
        after: the numbers of the steps whose results it reads.
        depth: in how many loops and branches it is.
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


@dataclass(frozen=True)
class Explanation:
    """What `explain` found; `str` gives a table, `html` writes a report.

    Attributes:
        name: the function's name.
        device, target: where it runs, and for what code is generated: "cpu", "wgsl" or "numpy".
        jaxpr, simplified: the program as traced and after simplification, as text.
        steps: the kernels, in order.
        passes: what each pass of the compiler changed.
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
        """The seconds of all steps together, and of what is between them."""
        return sum(step.seconds or 0.0 for step in self.steps) + self.overhead

    def slowest(self, most: int = 10) -> list[Step]:
        """Return the steps that take the most time, or else have the most operations."""
        return sorted(self.steps, key=lambda s: (-(s.seconds or 0.0), -s.flops * s.runs, s.number))[:most]

    def html(self, path: str | Path) -> Path:
        """Write a report to a file, which needs nothing else, and return its path."""
        target = Path(path)
        target.write_text(load("volta_fn.inspection.report").page(self), encoding="utf-8")
        return target

    def _repr_html_(self) -> str:
        made: str = load("volta_fn.inspection.report").fragment(self)
        return made

    def __str__(self) -> str:
        made: str = load("volta_fn.inspection.text").text_of(self)
        return made

    __repr__ = __str__


def aligned(rows: Sequence[Sequence[Any]], right: Sequence[int] = ()) -> list[str]:
    """Align the cells of rows in columns, those numbered in `right` on their right."""
    table = [[str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return [
        "  ".join([cell.rjust(n) if i in right else cell.ljust(n) for i, (cell, n) in enumerate(zip(row, widths, strict=True))]).rstrip()
        for row in table
    ]
