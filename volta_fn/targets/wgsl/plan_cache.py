"""Plans on disk.

A process that has the same program as an earlier one neither lowers it nor writes its shaders. The key of a plan is the fingerprint of the
traced program, and all else that plans depend on: the capabilities of the device, and the schedules that were measured on this machine.
Plans of some programs are not kept: of those with steps on the host, which are functions of Python's, and of those that communicate, which
depend on the memory that processes share.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, Self

import numpy as np

from volta_fn.compiler.buffers import Lifetime, Output
from volta_fn.compiler.emission import Block, Slot
from volta_fn.compiler.fingerprint import fingerprint_of
from volta_fn.core.arrays.array import ConcreteArray, numbers_of
from volta_fn.core.aval import ShapedArray
from volta_fn.core.jaxpr import ClosedJaxpr, sub_jaxprs
from volta_fn.runtime import entries
from volta_fn.runtime.caches import cache_dir
from volta_fn.runtime.entries import DTYPES, Contents, NotCacheable, Reader, dtype_name
from volta_fn.settings import current as settings
from volta_fn.targets.wgsl.commands import BufferRange, Command, Loop, Region, Run, Submit, While
from volta_fn.targets.wgsl.matmul.tiles import is_measuring, measured
from volta_fn.targets.wgsl.program_plan import ProgramPlan
from volta_fn.targets.wgsl.shader import ShaderModule
from volta_fn.targets.wgsl.target import WgslTarget

#: The purpose of an entry (`runtime.entries`).
_PURPOSE = "plan"


class PlanEntry(NamedTuple):
    """The entry of a program's plan: its name, and the program's constants."""

    name: str
    constants: tuple[ConcreteArray, ...]
    #: The numbers of constants that no plan depends on the elements of, since they are on the device alone.
    unread: frozenset[int]

    @classmethod
    def of(cls, closed: ClosedJaxpr, donated: Sequence[bool], target: WgslTarget) -> Self | None:
        """Return the entry of a program; None if its plan is not kept."""
        if cache_dir() is None or is_measuring(target.capabilities) or _communicates(closed, set()):
            return None
        fingerprint = fingerprint_of(closed, donated, numbers_of)
        if fingerprint is None:
            return None
        kind = "verified plan" if settings.verify else "plan", target.name, target.capabilities, measured(target.capabilities)
        return cls(entries.name_of(kind, fingerprint.text), fingerprint.constants, fingerprint.unread)

    def write(self, plan: ProgramPlan) -> None:
        """Write a plan, with the faster shaders of its dispatches, if that is possible."""
        if any(numbers_of(self.constants[number]) is not None for number in self.unread):
            return  # another thread has read them, so that the plan may depend on them
        contents, commands = Contents(self._buffers()), _CommandWriter()
        try:
            header = {
                "commands": commands.rows(plan.commands),
                "regions": [[region.grids.number, region.branches] for region in commands.regions],
                "constants": [contents.array(array) for array in plan.constants],
                "outputs": [[o.result, o.argument, _constant(contents, o.constant), o.shape] for o in plan.outputs],
                "computed": [[aval.shape, dtype_name(aval.dtype), aval.weak_type] for aval in plan.computed],
                "reuse": [*plan.reuse.items()],
                "lifetimes": plan.lifetimes,
                "blocks": [plan.block_sizes, plan.block_of, plan.regions],
            }
        except NotCacheable:
            return
        texts = [text.encode() for text in commands.texts]
        header["texts"] = [len(text) for text in texts]
        entries.write(cache_dir(), self.name, _PURPOSE, header, [*contents.parts, *texts])

    def read(self, closed: ClosedJaxpr) -> ProgramPlan | None:
        """Return the plan of the program from the disk; None if it is not there."""

        def parse(header: Any, content: bytes) -> ProgramPlan:
            reader = Reader(content, self._buffers())
            constants = tuple([reader.array(description) for description in header["constants"]])
            outputs = tuple([Output(o[0], o[1], self._value(reader, o[2]), tuple(o[3])) for o in header["outputs"]])
            shaders = [ShaderModule((), 0, (), "", foreign=reader.take(size).decode()) for size in header["texts"]]
            block_sizes, block_of, regions = header["blocks"]
            return ProgramPlan(
                tuple(closed.in_avals),
                outputs,
                tuple([ShapedArray(tuple(shape), DTYPES[name], weak) for shape, name, weak in header["computed"]]),
                dict(header["reuse"]),
                tuple(_CommandReader(shaders, header["regions"]).commands(header["commands"])),
                [Lifetime(*lifetime) for lifetime in header["lifetimes"]],
                block_sizes,
                block_of,
                constants,
                regions,
            )

        return entries.read(cache_dir(), self.name, _PURPOSE, parse)

    def _buffers(self) -> list[Any]:
        return [_buffer(constant) for constant in self.constants]

    def _value(self, reader: Reader, description: Any) -> Any:
        """Return a constant that is an output, by its description; None if it is none."""
        if description is None:
            return None
        (inner,) = description
        return self.constants[inner] if isinstance(inner, int) else reader.array(inner)


def _constant(contents: Contents, value: Any) -> Any:
    """Write a constant that is an output."""
    if value is None:
        return None
    return [contents.array(_buffer(value) if isinstance(value, ConcreteArray) else np.asarray(value))]


def _communicates(closed: ClosedJaxpr, seen: set[int]) -> bool:
    """Return whether a program, or one inside, speaks of positions along axes."""
    seen.add(id(closed))
    inner = [program for eqn in closed.eqns for program in sub_jaxprs(eqn.params) if id(program) not in seen]
    return any("axis_names" in eqn.params for eqn in closed.eqns) or any(_communicates(program, seen) for program in inner)


def _buffer(constant: ConcreteArray) -> Any:
    """Return what a plan has of a constant: an array, or a buffer of the device."""
    numbers = numbers_of(constant)
    return constant.buffer() if numbers is None else numbers


# Commands as JSON.
#
# Slots are numbers. A range is (slot, offset, bytes, strides), a command begins with its kind, and shaders are numbers of texts.

_RUN, _LOOP, _WHILE, _SUBMIT = range(4)


class _CommandWriter:
    """Rows of commands, and the texts and regions that they name by number."""

    def __init__(self) -> None:
        self.texts: dict[str, int] = {}
        self.regions: dict[Region, int] = {}
        #: The numbers of faster shaders by the texts of those that they replace: to write one takes long.
        self._better: dict[str, int] = {}

    def rows(self, commands: Iterable[Command]) -> list[list[Any]]:
        """Return the rows of commands; raise `NotCacheable` for a step on the host."""
        return [self._row(command) for command in commands]

    def _row(self, command: Command) -> list[Any]:
        if isinstance(command, Run):
            better = None if command.better is None else self._better.get(command.source)
            if command.better is not None and better is None:
                better = self._better[command.source] = self._text(command.better().text)
            region = None if command.region is None else self.regions.setdefault(command.region, len(self.regions))
            shader, ranges = self._text(command.source), [_range(span) for span in command.ranges]
            return [_RUN, shader, sorted(command.written), ranges, command.groups, region, command.entry, better, command.is_checked]
        if isinstance(command, Loop):
            return [_LOOP, command.number, command.iterations, self.rows(command.body)]
        if isinstance(command, While):
            return [_WHILE, _range(command.flag), self.rows(command.body)]
        if isinstance(command, Submit):
            return [_SUBMIT]
        raise NotCacheable

    def _text(self, text: str) -> int:
        return self.texts.setdefault(text, len(self.texts))


def _range(span: BufferRange) -> list[Any]:
    return [span.slot.number, span.offset, span.size, span.strides]


class _CommandReader:
    """Commands from their rows, with shaders of which only the texts are known."""

    def __init__(self, shaders: Sequence[ShaderModule], regions: Sequence[Sequence[int]]) -> None:
        self._shaders = shaders
        self._block, self._slots = Block(None), dict[int, Slot]()
        self._regions = [Region(self._slot(grids), branches) for grids, branches in regions]

    def commands(self, rows: Iterable[Sequence[Any]]) -> Iterator[Command]:
        """Yield the commands of rows."""
        for kind, *fields in rows:
            if kind == _RUN:
                yield self._run(*fields)
            elif kind == _LOOP:
                number, iterations, body = fields
                yield Loop(number, iterations, [*self.commands(body)])
            elif kind == _WHILE:
                flag, body = fields
                yield While(self._range(*flag), [*self.commands(body)])
            else:
                yield Submit()

    def _run(
        self,
        shader: int,
        written: list[int],
        ranges: list[list[Any]],
        groups: list[int],
        region: int | None,
        entry: int,
        better: int | None,
        is_checked: bool,
    ) -> Run:
        x, y, z = groups
        run = Run(self._shaders[shader], frozenset(written), tuple([self._range(*span) for span in ranges]), (x, y, z), entry=entry)
        run.region = None if region is None else self._regions[region]
        run.better = None if better is None else partial(self._shaders.__getitem__, better)
        run.is_checked = is_checked
        return run

    def _range(self, slot: int, offset: int, size: int, strides: list[list[int]]) -> BufferRange:
        return BufferRange(self._slot(slot), offset, size, tuple([(loop, stride) for loop, stride in strides]))

    def _slot(self, number: int) -> Slot:
        slot = self._slots.get(number)
        if slot is None:
            slot = self._slots[number] = Slot(self._block)
            slot.number = number
        return slot
