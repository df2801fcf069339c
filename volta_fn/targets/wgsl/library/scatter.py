"""Scatters: updates combined into the operand in the order of the indices.

Many updates are sorted by the elements that they go to, and each element's are combined by segmented reduction.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from volta_fn.codegen.windows import Dims, Starts, merged, scatter_of
from volta_fn.compiler.contractions import contiguous_strides
from volta_fn.compiler.target import TargetCapabilities
from volta_fn.core.aval import ShapedArray
from volta_fn.core.primitive import PRIMITIVES, Reduction
from volta_fn.primitives.data_movement.gather import never_meet
from volta_fn.targets.wgsl.library.movement import (
    INVOCATIONS,
    Integers,
    copy,
    fill,
    in_units,
    load_unit,
    start_of,
    store_unit,
    unit_array,
)
from volta_fn.targets.wgsl.library.small_sort import Sorting, SortWord
from volta_fn.targets.wgsl.library.sort import sort_rows
from volta_fn.targets.wgsl.loops.reductions import wide_dtype
from volta_fn.targets.wgsl.routine import Dispatch, Routine, Shader, ShaderArray, Workspaces
from volta_fn.targets.wgsl.scalars import Number, combine, constant, supports, wgsl_type
from volta_fn.targets.wgsl.scalars.operations import convert
from volta_fn.targets.wgsl.shader import dotted, plus, quotient, remainder, times

# Rows of updates, and their slots in the operand.
#
# Windows that may overlap partially, being larger than one element along a dimension in which they may begin anywhere, are split along
# it. So every *row* of updates (one or several per window, numbered in the order of the windows) has a *slot*: rows of the same slot go
# to the same elements, rows of different slots to different ones. A row is a block of elements.


class ScatterRow(NamedTuple):
    """A row: its offsets in updates and operand, and the condition that it is valid."""

    source: str
    target: str
    valid: str | None


class ScatterRows(NamedTuple):
    """The rows of a scatter, in elements (or, `scaled`, in other units).

    Attributes:
        starts: where windows begin.
        batch: sizes and strides in the updates of the dimensions that number windows.
        splits: sizes, strides in the updates and strides in the operand of the dimensions along which windows are split.
        block: the same of the other dimensions.
        index_dtype: the dtype of index vectors.
        size: the size of the operand.
        added: what is added to negative positions.
    """

    starts: Starts
    batch: tuple[Dims, ...]
    splits: tuple[Dims, ...]
    block: tuple[Dims, ...]
    index_dtype: np.dtype
    size: int
    added: int

    @property
    def number(self) -> int:
        """The number of rows."""
        return self.starts.number * math.prod(self.splits[0])

    @property
    def elements(self) -> int:
        """The number of elements of a row."""
        return math.prod(self.block[0])

    @property
    def distances(self) -> list[int]:
        """All strides that decide where a row begins, in the updates and in the operand."""
        inside = [stride for _, stride, _ in self.starts.addressed + self.starts.batching]
        return [*inside, *self.batch[1], *self.splits[1], *self.splits[2]]

    @property
    def spacing(self) -> int:
        """The distance of slots in the operand."""
        inside = [stride for _, stride, _ in self.starts.addressed + self.starts.batching]
        return math.gcd(*inside, *self.splits[2]) or self.size

    @property
    def slots(self) -> int:
        """The number of slots."""
        return -(-self.size // self.spacing)

    def scaled(self, itemsize: int, unit: int, block: tuple[Dims, ...]) -> ScatterRows:
        """Return the same rows in units of `unit` bytes, with the block's loops in units."""

        def scale(strides: Dims) -> Dims:
            return tuple([s * itemsize // unit for s in strides])

        starts = self.starts._replace(
            addressed=tuple([(d, s * itemsize // unit, limit) for d, s, limit in self.starts.addressed]),
            batching=tuple([(d, s * itemsize // unit, partner) for d, s, partner in self.starts.batching]),
        )
        splits = (self.splits[0], scale(self.splits[1]), scale(self.splits[2]))
        batch = (self.batch[0], scale(self.batch[1]))
        return self._replace(starts=starts, batch=batch, splits=splits, block=block, size=self.size * itemsize // unit)

    def indices(self, shader: Shader, number: int) -> Integers:
        """Return the buffer of index vectors."""
        return Integers(shader, number, self.index_dtype, self.added)

    def row(self, shader: Shader, indices: Integers, number: str) -> ScatterRow:
        """Emit the offsets and validity of a row."""
        each = math.prod(self.splits[0])
        window = shader.named("u32", quotient(number, each))
        split = shader.coordinates(remainder(number, each), self.splits[0])
        start = start_of(shader, self.starts, indices, window)
        source = self.source(shader, number)
        return ScatterRow(source, shader.let("u32", plus(start.offset, dotted(split, self.splits[2]))), start.valid)

    def source(self, shader: Shader, number: str) -> str:
        """Emit the offset of a row in the updates."""
        each = math.prod(self.splits[0])
        window = shader.coordinates(quotient(number, each), self.batch[0])
        split = shader.coordinates(remainder(number, each), self.splits[0])
        return shader.let("u32", plus(dotted(window, self.batch[1]), dotted(split, self.splits[1])))

    def within(self, shader: Shader, index: str) -> tuple[str, str]:
        """Emit the offsets of a row's element from its first, in updates and operand."""
        coordinates = shader.coordinates(index, self.block[0])
        return shader.let("u32", dotted(coordinates, self.block[1])), shader.let("u32", dotted(coordinates, self.block[2]))


def rows_of(avals: tuple[ShapedArray, ...], params: dict[str, Any], wraps: bool = False) -> ScatterRows:
    """Return the rows of a scatter whose operands are not empty.

    If it `wraps`, negative positions count from the end.
    """
    operand, indices, updates = avals
    starts, sizes, layout = scatter_of(avals, params)
    numbers = params["dimension_numbers"]
    absent = numbers.operand_batching_dims + numbers.inserted_window_dims
    steps, strides = contiguous_strides(updates.shape), contiguous_strides(operand.shape)
    present = [d for d in range(operand.ndim) if d not in absent]
    loops = {d: (sizes[d], steps[u], strides[d]) for d, u in zip(present, numbers.update_window_dims, strict=True)}
    moving = {d for d, _, limit in starts.addressed if limit and sizes[d] > 1}
    splits, block = ([loop for d, loop in loops.items() if (d in moving) == is_split] for is_split in (True, False))
    added = operand.shape[numbers.scatter_dims_to_operand_dims[0]] if wraps else 0
    # Blocks are traversed in the memory order of the updates.
    block.sort(key=lambda loop: -loop[1])
    columns = tuple(zip(*splits, strict=True)) or ((), (), ())
    merged_block = merged(*(zip(*block, strict=True) if block else ((), (), ())))
    return ScatterRows(starts, layout.batch, columns, merged_block, indices.dtype, operand.size, added)


# Segmented reduction: rows sorted by slots, and each slot's rows combined.
#
# Sorted rows are split into chunks. A slot's rows in a chunk are combined by one invocation (for each element of a row), in the order
# of the rows; if rows are long, it combines all slots of a chunk, one after the other. A result that is not of all of a slot's rows is
# kept: in the chunk's *tail* if more rows follow in the next chunk, else, or if the slot covers the chunk, in its *head*. Then tails
# are combined with the heads that follow them.

_OPERAND, _INDICES, _UPDATES, _RESULT, _SPACES = range(5)
_UINT32 = np.dtype(np.uint32)
_SHORTEST = 64

#: The fewest elements of long rows; the fewest and the most such rows that an invocation walks; and the invocations that keep a GPU busy.
_LONG, _WALKED, _BUSY = 32, (16, 128), 1 << 15

#: Rows whose loads are in flight together.
_AT_ONCE = 8

#: ``is_same(i)`` is the condition that row i has the slot.
Test = Callable[[str], str]

#: ``load(i)`` returns the values of row i.
Load = Callable[[str], list[Number]]


def combine_sorted(
    avals: tuple[ShapedArray, ...], rows: ScatterRows, op: Reduction, capabilities: TargetCapabilities
) -> tuple[list[Dispatch], tuple[int, ...]]:
    """Return the dispatches that combine all rows, and their workspaces."""
    workspaces = Workspaces(_SPACES)
    unit, block = in_units(avals[0].dtype.itemsize, rows.block, rows.distances)
    in_fours = unit == 16 and avals[0].dtype.itemsize == 4
    segments = _Segments(avals, rows.scaled(4, 16, block) if in_fours else rows, 4 if in_fours else 1, op, capabilities, workspaces)
    sorting = Sorting(1, rows.number, (SortWord(segments.key, rows.slots.bit_length()),), segments.emit)
    in_chunks = segments.walk_chunks if segments.walked else segments.combine_chunks
    dispatches = [*sort_rows(sorting, capabilities, workspaces), in_chunks()]
    if segments.chunks > 1:
        dispatches.append(segments.combine_tails())
    return dispatches, tuple(workspaces.sizes)


class _Segments:
    """The segments of a scatter, whose elements are single ones or fours of `lanes`."""

    def __init__(
        self,
        avals: tuple[ShapedArray, ...],
        rows: ScatterRows,
        lanes: int,
        op: Reduction,
        capabilities: TargetCapabilities,
        workspaces: Workspaces,
    ) -> None:
        self.rows, self.lanes, self.op, self.capabilities = rows, lanes, op, capabilities
        self.stored = avals[0].dtype
        self.sizes = {_RESULT: avals[0].size, _UPDATES: avals[2].size}
        self.dtype = wide_dtype(self.stored)
        self.slots, self.order = workspaces.words(rows.number), workspaces.words(rows.number)
        # A few more chunks than rows in a chunk. Products are not split: partial ones might overflow where the result does not.
        length = max(_SHORTEST, 1 << (rows.number.bit_length() // 2 - 1))
        if rows.elements >= _LONG:
            length = min(max(rows.number * rows.elements // _BUSY, _WALKED[0]), _WALKED[1])
        self.length = rows.number if op.step == "mul" else min(rows.number, length)
        self.chunks = -(-rows.number // self.length)
        self.walked = rows.elements >= _LONG and self.chunks > 1
        count = 2 * self.chunks * rows.elements * lanes
        self.partials = workspaces.words(count * self.dtype.itemsize // 4) if self.chunks > 1 else 0
        self.sizes[self.partials] = count

    def key(self, shader: Shader) -> Any:
        """Return the slots as keys; invalid rows come last."""
        indices = self.rows.indices(shader, _INDICES)

        def read(_: str, number: str) -> str:
            row = self.rows.row(shader, indices, number)
            slot = quotient(row.target, self.rows.spacing)
            return f"select({self.rows.slots}u, {slot}, {row.valid})" if row.valid else slot

        return read

    def emit(self, shader: Shader) -> Any:
        """Return the stores of sorted slots and the rows' numbers."""
        slots, order = (shader.buffer(n, _UINT32, written=True) for n in (self.slots, self.order))

        def write(_: str, position: str, slot: str, number: str) -> None:
            shader.emit(f"{slots.name}[{position}] = {slot};")
            shader.emit(f"{order.name}[{position}] = {number};")

        return write

    def _array(self, shader: Shader, number: int, dtype: np.dtype, written: bool = False) -> ShaderArray:
        return shader.buffer(number, dtype, written, self.sizes[number] if self.lanes == 4 else 0)

    def _load(self, shader: Shader, array: ShaderArray, at: str) -> list[Number]:
        read = array.load4(at) if self.lanes == 4 else [array.load(at)]
        return [convert(shader, x, self.dtype) for x in read]

    def _store(self, shader: Shader, array: ShaderArray, at: str, values: list[Number]) -> None:
        converted = [convert(shader, x, array.dtype) for x in values]
        if self.lanes == 4:
            array.store4(at, converted)
        else:
            array.store(at, converted[0])

    def _variables(self, shader: Shader, values: list[Number]) -> list[Number]:
        return [Number(self.dtype, shader.var(x.type, x.text)) for x in values]

    def _combine(self, shader: Shader, totals: list[Number], first: list[Number], then: list[Number]) -> None:
        """Set variables to the combinations of two lists of values."""
        for total, x, y in zip(totals, first, then, strict=True):
            shader.emit(f"{total.text} = {combine(shader, self.op, x, y).text};")

    def _combine_run(self, shader: Shader, totals: list[Number], next_: str, end: str, is_same: Test, load: Load) -> None:
        """Combine variables with the rows from `next_` on, up to the end or another slot."""
        with shader.block(f"while ({next_} < {end})"):
            following = [shader.let("u32", f"min({next_} + {k}u, {end} - 1u)") for k in range(_AT_ONCE)]
            # All conditions are evaluated before the first is used, so that their loads are in flight together.
            matches = [shader.let("bool", is_same(number)) for number in following]
            numbers, same = [], "true"
            for k, (number, match) in enumerate(zip(following, matches, strict=True)):
                same = shader.let("bool", f"{same} & ({next_} + {k}u < {end}) & {match}")
                # Rows of other slots are not read.
                numbers.append((shader.let("u32", f"select({next_}, {number}, {same})"), same))
            shader.emit(f"if (!{numbers[0][1]}) {{ break; }}")
            values = [load(number) for number, _ in numbers]
            for (_, same), value in zip(numbers, values, strict=True):
                with shader.block(f"if ({same})"):
                    self._combine(shader, totals, totals, value)
                    shader.emit(f"{next_} += 1u;")

    def combine_chunks(self) -> Dispatch:
        """Return the dispatch that combines the rows of each slot in each chunk."""
        shader, rows = Shader(self.capabilities, INVOCATIONS), self.rows
        slots, order = shader.buffer(self.slots, _UINT32), shader.buffer(self.order, _UINT32)
        source, target = self._array(shader, _UPDATES, self.stored), self._array(shader, _RESULT, self.stored, written=True)
        partials = self._array(shader, self.partials, self.dtype, written=True) if self.chunks > 1 else None

        def reduce(index: str) -> None:
            first = shader.let("u32", quotient(index, rows.elements))
            element = shader.let("u32", remainder(index, rows.elements))
            slot = slots.load(first).text
            begins = shader.let("bool", f"({first} == 0u) | ({slots.name}[max({first}, 1u) - 1u] != {slot})")
            cut = f" || {first} % {self.length}u == 0u" if partials else ""
            with shader.block(f"if ({slot} < {rows.slots}u && ({begins}{cut}))"):
                source_offset, target_offset = rows.within(shader, element)
                at = shader.let("u32", plus(times(slot, rows.spacing), target_offset))

                def update(number: str) -> list[Number]:
                    begin = rows.source(shader, order.load(number).text)
                    return self._load(shader, source, shader.let("u32", plus(begin, source_offset)))

                totals = self._variables(shader, update(first))
                with shader.block(f"if ({begins})"):
                    self._combine(shader, totals, self._load(shader, target, at), totals)
                end = shader.let("u32", f"min(({first} / {self.length}u + 1u) * {self.length}u, {rows.number}u)")
                next_ = shader.var("u32", f"{first} + 1u")
                self._combine_run(shader, totals, next_, end, lambda i: f"{slots.name}[{i}] == {slot}", update)
                if not partials:
                    return self._store(shader, target, at, totals)
                following = f"{slots.name}[min({end}, {rows.number - 1}u)] == {slot}"
                goes_on = shader.let("bool", f"{next_} == {end} && {end} < {rows.number}u && {following}")
                with shader.block(f"if ({begins} && !{goes_on})"):
                    self._store(shader, target, at, totals)
                with shader.block("else"):
                    number = f"({first} / {self.length}u) * 2u + select(0u, 1u, {begins})"
                    self._store(shader, partials, shader.let("u32", f"({number}) * {rows.elements}u + {element}"), totals)
            return None

        return shader.for_each(rows.number * rows.elements, reduce)

    def walk_chunks(self) -> Dispatch:
        """Return `combine_chunks` for long rows: an invocation walks along a chunk."""
        shader = Shader(self.capabilities, INVOCATIONS)
        return shader.for_each(self.chunks * self.rows.elements, lambda index: _Walk(self, shader, index).write())

    def combine_tails(self) -> Dispatch:
        """Return the dispatch that combines tails with the heads that follow them."""
        shader, rows = Shader(self.capabilities, INVOCATIONS), self.rows
        slots, partials = shader.buffer(self.slots, _UINT32), self._array(shader, self.partials, self.dtype)
        target = self._array(shader, _RESULT, self.stored, written=True)

        def reduce(index: str) -> None:
            chunk = shader.let("u32", quotient(index, rows.elements))
            element = shader.let("u32", remainder(index, rows.elements))
            following = shader.let("u32", f"({chunk} + 1u) * {self.length}u")
            slot = slots.load(f"{following} - 1u").text
            goes_on = f"{slots.name}[{following}] == {slot}"
            began = f"({chunk} == 0u || {slots.name}[max({chunk} * {self.length}u, 1u) - 1u] != {slot})"
            with shader.block(f"if ({slot} < {rows.slots}u && {goes_on} && {began})"):
                _, target_offset = rows.within(shader, element)

                def partial(number: str) -> list[Number]:
                    return self._load(shader, partials, shader.let("u32", f"{number} * {rows.elements}u + {element}"))

                totals = self._variables(shader, partial(f"({chunk} * 2u + 1u)"))
                next_ = shader.var("u32", f"{chunk} + 1u")

                def is_same(number: str) -> str:
                    return f"{slots.name}[{number} * {self.length}u] == {slot}"

                self._combine_run(shader, totals, next_, f"{self.chunks}u", is_same, lambda i: partial(f"({i} * 2u)"))
                self._store(shader, target, shader.let("u32", plus(times(slot, rows.spacing), target_offset)), totals)

        return shader.for_each((self.chunks - 1) * rows.elements, reduce)


class _Walk:
    """An invocation of `walk_chunks`, which combines one element of a chunk's rows."""

    def __init__(self, segments: _Segments, shader: Shader, index: str) -> None:
        self.segments, self.shader, self.rows = segments, shader, segments.rows
        s, rows = segments, segments.rows
        self.slots, self.order = shader.buffer(s.slots, _UINT32), shader.buffer(s.order, _UINT32)
        self.source = s._array(shader, _UPDATES, s.stored)
        self.target = s._array(shader, _RESULT, s.stored, written=True)
        self.partials = s._array(shader, s.partials, s.dtype, written=True)
        self.chunk, self.element = [shader.let("u32", f(index, rows.elements)) for f in (quotient, remainder)]
        #: The offsets of the element in a row of updates, and in a slot.
        self.source_offset, self.slot_offset = rows.within(shader, self.element)
        self.first = shader.let("u32", f"{self.chunk} * {s.length}u")
        self.end = shader.let("u32", f"min({self.first} + {s.length}u, {rows.number}u)")
        #: The slot of the rows that are being combined, whether the first of them is in this chunk, and their totals so far.
        self.slot = shader.var("u32", self.slots.load(f"max({self.first}, 1u) - 1u").text)
        self.began = shader.var("bool", "false")
        self.totals = s._variables(shader, [constant(s.dtype, 0)] * s.lanes)

    def write(self) -> None:
        with self.shader.loop(self.end, self.first, _AT_ONCE) as at:
            # All rows are loaded before the first is combined.
            s, shader, rows = self.segments, self.shader, self.rows
            numbers = [shader.let("u32", f"min({at} + {k}u, {self.end} - 1u)") for k in range(_AT_ONCE)]
            slots = [shader.let("u32", self.slots.load(i).text) for i in numbers]
            begins = [shader.let("bool", f"{x} != {y}") for x, y in zip(slots, [self.slot, *slots], strict=False)]
            begins[0] = shader.let("bool", f"{begins[0]} || {at} == 0u")
            # Where no slot begins, slot 0 is loaded, and not used.
            begun = [shader.let("u32", f"select(0u, {x}, {new} & ({x} < {rows.slots}u))") for x, new in zip(slots, begins, strict=True)]
            starts = [s._load(shader, self.target, self._target_offset(x)) for x in begun]
            sources = [rows.source(shader, self.order.load(i).text) for i in numbers]
            values = [s._load(shader, self.source, shader.let("u32", plus(x, self.source_offset))) for x in sources]
            for k, (start, value) in enumerate(zip(starts, values, strict=True)):
                with shader.block(f"if ({at} + {k}u < {self.end})"):
                    with shader.block(f"if ({begins[k]})"):
                        self._begin(slots[k], start, value)
                    with shader.block("else"):
                        s._combine(shader, self.totals, self.totals, value)
                        self._continue_previous_chunk(at, value if k == 0 else [])
        following = f"{self.slots.name}[min({self.end}, {self.rows.number - 1}u)] == {self.slot}"
        self._store(self.shader.let("bool", f"{self.end} < {self.rows.number}u && {following}"))

    def _continue_previous_chunk(self, at: str, value: list[Number]) -> None:
        """Take a chunk's first row alone: earlier ones are combined in the chunk before."""
        if value:
            only = [f"{total.text} = {x.text};" for total, x in zip(self.totals, value, strict=True)]
            self.shader.emit(f"if ({at} == {self.first}) {{ {' '.join(only)} }}")

    def _begin(self, slot: str, start: list[Number], value: list[Number]) -> None:
        """Store the totals so far, and begin another slot."""
        # What is stored before the first row of a chunk is never read.
        self._store("false")
        self.segments._combine(self.shader, self.totals, start, value)
        self.shader.emit(f"{self.slot} = {slot};")
        self.shader.emit(f"{self.began} = true;")

    def _target_offset(self, slot: str) -> str:
        return self.shader.let("u32", plus(times(slot, self.rows.spacing), self.slot_offset))

    def _store(self, goes_on: str) -> None:
        """Store the totals of a slot, as a partial result unless they are complete."""
        s, shader = self.segments, self.shader
        with shader.block(f"if ({self.slot} < {self.rows.slots}u)"):
            with shader.block(f"if ({self.began} && !{goes_on})"):
                s._store(shader, self.target, self._target_offset(self.slot), self.totals)
            with shader.block("else"):
                number = f"({self.chunk} * 2u + select(0u, 1u, {self.began}))"
                s._store(shader, self.partials, shader.let("u32", f"{number} * {self.rows.elements}u + {self.element}"), self.totals)


# Results have the same bits in every run. The first dispatch copies the operand; the others do not read it. Rows of updates that go to
# one slot must not conflict: of replacements only the last row of each slot is written. Integers that are added or compared may come in
# any order, atomically; many that go to few elements are combined in the memory of workgroups first. Otherwise one invocation combines all
# rows of a slot: every invocation searches a few rows; more are sorted by their slots. Many sorted rows are combined in chunks. float16 and
# bfloat16 are combined in float32, and rounded once.

_GROUP = 256

_ATOMIC = {"add": "atomicAdd", "min": "atomicMin", "max": "atomicMax"}

#: The most rows that every invocation searches.
_FEW = 32

#: The most elements of which workgroups hold a copy in their own memory, and the rows that each of them adds to its copy.
_FEW_ELEMENTS, _ROWS_OF_GROUP = 2048, 4096


def scatter(
    avals: tuple[ShapedArray, ...], params: dict[str, Any], capabilities: TargetCapabilities, name: str, wraps: bool = False
) -> Routine | None:
    """Return the routine of the primitive of that name.

    If it `wraps`, negative positions count from the end.
    """
    combines = PRIMITIVES[name].combines
    operand, indices, updates = avals
    if not operand.size:
        return Routine(())
    dtype = wide_dtype(operand.dtype)
    if combines and not supports(combines.step, (dtype, dtype), {}, capabilities):
        return None
    copied = copy(Shader(capabilities, INVOCATIONS), _OPERAND, _RESULT, operand.size * operand.dtype.itemsize)
    if not updates.size:
        return Routine((copied,))
    rows = rows_of(avals, params, wraps)
    alone = rows.number == 1 or never_meet(indices.shape, params)
    spaces: tuple[int, ...] = ()
    if combines is None:
        dispatches, spaces = _replace(avals, rows, alone, capabilities)
    elif alone or rows.number <= _FEW:
        dispatches = [_combine_few(avals, rows, combines, alone, capabilities)]
    elif combines.step in _ATOMIC and operand.dtype.kind in "iu" and operand.dtype.itemsize == 4:
        few = rows.elements == 1 and operand.size <= _FEW_ELEMENTS and rows.number >= 4 * _ROWS_OF_GROUP
        dispatches = [(_atomic_in_groups if few else _atomic)(avals, rows, combines, capabilities)]
    else:
        dispatches, spaces = combine_sorted(avals, rows, combines, capabilities)
    return Routine((copied, *dispatches), spaces)


def _meets(shader: Shader, rows: ScatterRows, target: str, indices: Integers, end: str | int, start: str | int = 0) -> str:
    """Emit whether a valid row from `start` to `end` has a target.

    The offset of an invalid row is clamped into the array, but does not count.
    """
    meets = shader.var("bool", "false")
    with shader.loop(end, start) as other:
        row = rows.row(shader, indices, other)
        shader.emit(f"{meets} = {meets} || ({row.target} == {target}{f' && {row.valid}' if row.valid else ''});")
    return meets


def _replace(
    avals: tuple[ShapedArray, ...], rows: ScatterRows, alone: bool, capabilities: TargetCapabilities
) -> tuple[list[Dispatch], tuple[int, ...]]:
    """Return the dispatches that write each slot's last row, and their workspaces."""
    operand, _, updates = avals
    itemsize = operand.dtype.itemsize
    unit, block = in_units(itemsize, rows.block, rows.distances)
    moved = rows.scaled(itemsize, unit, block)
    shader = Shader(capabilities, INVOCATIONS)
    source = unit_array(shader, _UPDATES, unit, updates.size * itemsize)
    target = shader.buffer(_RESULT, source.dtype, written=True, size=operand.size * itemsize // 4 if unit == 16 else 0)
    indices = moved.indices(shader, _INDICES)
    many = not alone and rows.number > _FEW
    last = shader.buffer(_SPACES, _UINT32) if many else None

    def write(index: str) -> None:
        number = shader.let("u32", quotient(index, moved.elements))
        row = moved.row(shader, indices, number)
        conditions = [row.valid] if row.valid else []
        if last:
            conditions.append(f"{last.load(quotient(row.target, moved.spacing)).text} == {number} + 1u")
        elif not alone:
            conditions.append(f"!{_meets(shader, moved, row.target, indices, moved.number, f'{number} + 1u')}")
        with shader.block(f"if ({' && '.join(conditions) or 'true'})"):
            source_offset, target_offset = moved.within(shader, remainder(index, moved.elements))
            value = load_unit(source, unit, shader.let("u32", plus(row.source, source_offset)))
            store_unit(target, unit, shader.let("u32", plus(row.target, target_offset)), value)

    dispatches = [shader.for_each(moved.number * moved.elements, write)]
    if not many:
        return dispatches, ()
    clear = Shader(capabilities, INVOCATIONS)
    cleared = fill(clear, clear.buffer(_SPACES, _UINT32, written=True), rows.slots, lambda _: constant(_UINT32, 0))
    return [cleared, _find_last(rows, capabilities), *dispatches], (4 * rows.slots,)


def _find_last(rows: ScatterRows, capabilities: TargetCapabilities) -> Dispatch:
    """Return the dispatch that finds each slot's last row, by its number plus one."""
    shader = Shader(capabilities, INVOCATIONS)
    last, indices = shader.atomics(_SPACES, _UINT32), rows.indices(shader, _INDICES)

    def mark(number: str) -> None:
        row = rows.row(shader, indices, number)
        with shader.block(f"if ({row.valid or 'true'})"):
            shader.emit(f"atomicMax(&{last.name}[{quotient(row.target, rows.spacing)}], {number} + 1u);")

    return shader.for_each(rows.number, mark)


def _atomic(avals: tuple[ShapedArray, ...], rows: ScatterRows, combines: Reduction, capabilities: TargetCapabilities) -> Dispatch:
    """Return the dispatch that combines integers, in any order."""
    shader = Shader(capabilities, INVOCATIONS)
    dtype = avals[_OPERAND].dtype
    target, source, indices = shader.atomics(_RESULT, dtype), shader.buffer(_UPDATES, dtype), rows.indices(shader, _INDICES)

    def write(index: str) -> None:
        row = rows.row(shader, indices, shader.let("u32", quotient(index, rows.elements)))
        with shader.block(f"if ({row.valid or 'true'})"):
            source_offset, target_offset = rows.within(shader, remainder(index, rows.elements))
            value = source.load(shader.let("u32", plus(row.source, source_offset)))
            shader.emit(f"{_ATOMIC[combines.step]}(&{target.name}[{plus(row.target, target_offset)}], {value.text});")

    return shader.for_each(rows.number * rows.elements, write)


def _atomic_in_groups(avals: tuple[ShapedArray, ...], rows: ScatterRows, combines: Reduction, capabilities: TargetCapabilities) -> Dispatch:
    """Return the same for many rows and few elements, combined by workgroups first."""
    shader = Shader(capabilities, _GROUP)
    dtype, size = avals[_OPERAND].dtype, avals[_OPERAND].size
    target, source, indices = shader.atomics(_RESULT, dtype), shader.buffer(_UPDATES, dtype), rows.indices(shader, _INDICES)
    neutral = constant(dtype, combines.start(dtype)).text
    shader.workgroup("partials", f"atomic<{wgsl_type(dtype)}>", size)
    with shader.loop(size, shader.local, _GROUP) as i:
        shader.emit(f"atomicStore(&partials[{i}], {neutral});")
    shader.emit("workgroupBarrier();")
    first = shader.let("u32", f"{shader.group} * {_ROWS_OF_GROUP}u")
    with shader.loop(f"min({first} + {_ROWS_OF_GROUP}u, {rows.number}u)", f"{first} + {shader.local}", _GROUP) as number:
        row = rows.row(shader, indices, number)
        with shader.block(f"if ({row.valid or 'true'})"):
            shader.emit(f"{_ATOMIC[combines.step]}(&partials[{row.target}], {source.load(row.source).text});")
    shader.emit("workgroupBarrier();")
    with shader.loop(size, shader.local, _GROUP) as i:
        value = shader.let(wgsl_type(dtype), f"atomicLoad(&partials[{i}])")
        shader.emit(f"if ({value} != {neutral}) {{ {_ATOMIC[combines.step]}(&{target.name}[{i}], {value}); }}")
    return shader.dispatch(-(-rows.number // _ROWS_OF_GROUP))


def _combine_few(
    avals: tuple[ShapedArray, ...], rows: ScatterRows, combines: Reduction, alone: bool, capabilities: TargetCapabilities
) -> Dispatch:
    """Return the dispatch in which the first row of each slot combines the later ones."""
    shader = Shader(capabilities, INVOCATIONS)
    stored = avals[_OPERAND].dtype
    dtype = wide_dtype(stored)
    target, source, indices = shader.buffer(_RESULT, stored, written=True), shader.buffer(_UPDATES, stored), rows.indices(shader, _INDICES)

    def write(index: str) -> None:
        number = shader.let("u32", quotient(index, rows.elements))
        row = rows.row(shader, indices, number)
        conditions = [row.valid] if row.valid else []
        if not alone:
            conditions.append(f"!{_meets(shader, rows, row.target, indices, number)}")
        with shader.block(f"if ({' && '.join(conditions) or 'true'})"):
            source_offset, target_offset = rows.within(shader, remainder(index, rows.elements))
            at = shader.let("u32", plus(row.target, target_offset))
            start = convert(shader, target.load(at), dtype)
            total = Number(dtype, shader.var(start.type, start.text))

            def add(other_source: str) -> None:
                value = convert(shader, source.load(shader.let("u32", plus(other_source, source_offset))), dtype)
                shader.emit(f"{total.text} = {combine(shader, combines, total, value).text};")

            add(row.source)
            if not alone:
                with shader.loop(rows.number, f"{number} + 1u") as other:
                    later = rows.row(shader, indices, other)
                    with shader.block(f"if ({later.target} == {row.target}{f' && {later.valid}' if later.valid else ''})"):
                        add(later.source)
            target.store(at, convert(shader, total, stored))

    return shader.for_each(rows.number * rows.elements, write)
