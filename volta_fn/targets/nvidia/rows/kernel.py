"""Kernels of products of few rows x by matrices, which are read once.

Outputs are the rows of the matrices, of which a block has a *tile*. Its warps divide a row's regions, hold as many of them in registers
as memory has latency for, and multiply them by matrix units: there the matrix is the left operand, and the rows of x are the columns of
the right one. The warps' sums are added up in shared memory. Several matrices of one layout that are multiplied by the same x share a
kernel.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from itertools import accumulate, islice, product
from math import ceil
from typing import NamedTuple

import numpy as np

from volta_fn.primitives.quantized import BLOCK, QuantizedLayout
from volta_fn.runtime.llvm.text import Value, i64, vector_of
from volta_fn.targets.nvidia.kernel import ZERO, KernelFunction, KernelHeader, half_type, i32

# Matrices: memory, and registers.
#
# A matrix has a row of numbers for each output. A *unit* is some bytes of a row that a thread loads at once, a *region* the units of four
# neighbouring threads, which matrix units multiply together; so a region has numbers of one group. Numbers are converted to the dtype of x,
# which represents each code exactly: a group's scale multiplies sums of products.

#: Bytes of a block of packed codes, and the units that a row may consist of, in bytes.
_PACKED, _UNITS = BLOCK // 2, (16, 8, 4)

#: Schemes of codes that are converted in registers. (A table of numbers, as NF4 has, would bound the kernel.)
_SCHEMES = frozenset(["int8", "int4", "fp8"])

#: By type: two numbers whose last bits count ones, 128 or 1024; and minus those and 8, the code of 0.
_COUNTING = {"bfloat": (0x43004300, -136.0), "half": (0x64006400, -1032.0)}


class WeightLayout(NamedTuple):
    """A matrix whose rows are contiguous.

    Strides and sizes of units are in bytes.
    """

    #: The dtype of x, and of a matrix of floats.
    dtype: np.dtype
    #: Numbers of a row, and bytes from one row to the next.
    size: int
    pitch: int
    #: How codes are grouped; None for a matrix of floats.
    quantized: QuantizedLayout | None
    #: The dtype of scales and offsets, and whether there are offsets.
    scale_dtype: np.dtype | None = None
    has_offsets: bool = False

    @property
    def scheme(self) -> str:
        """The scheme of codes, or the dtype of floats."""
        return self.dtype.name if self.quantized is None else self.quantized.scheme

    @property
    def is_packed(self) -> bool:
        """Whether a byte has two numbers."""
        return self.quantized is not None and self.quantized.is_packed

    @property
    def width(self) -> int:
        """The bytes of a row."""
        return self.size * self.dtype.itemsize if self.quantized is None else self.quantized.width

    @property
    def groups(self) -> int:
        """The groups of a row that have a scale; 1 without scales, too."""
        return 1 if self.quantized is None else self.quantized.groups

    @property
    def numbers(self) -> int:
        """The numbers of a unit."""
        return self.unit * 2 if self.is_packed else self.unit // (2 if self.quantized is None else 1)

    @property
    def unit(self) -> int:
        """The bytes of a unit; 0 if no unit divides rows and groups."""
        return next((unit for unit in _UNITS if self._fits(unit)), 0)

    def _fits(self, unit: int) -> bool:
        numbers = unit * 2 if self.is_packed else unit // (2 if self.quantized is None else 1)
        if numbers < 4 or self.pitch % unit or self.width % unit:
            return False
        return self.groups == 1 or (self.quantized is not None and self.quantized.group_size % (4 * numbers) == 0)

    @property
    def regions(self) -> int:
        """The regions of a row."""
        return ceil(self.width / (4 * self.unit))

    @property
    def is_computable(self) -> bool:
        """Whether there is a kernel for it."""
        return self.dtype.itemsize == 2 and (self.quantized is None or self.scheme in _SCHEMES) and self.size > 0 and self.unit > 0

    def place(self, f: KernelFunction, number: Value) -> Value:
        """Emit where a number of a row of x is in shared memory.

        Of four numbers that packed codes are multiplied by, those in the middle change places: halves of bytes 0 and 2 are one operand.
        """
        if not self.is_packed:
            return number
        low, four = f.remainder(number, 4), f.times(f.quotient(number, 4), 4)
        swapped = f.plus(f.times(f.remainder(low, 2), 2), f.quotient(low, 2))
        return f.plus(four, swapped)

    def segments(self, f: KernelFunction, unit: Value) -> list[tuple[Value, int]]:
        """Emit which numbers a unit has.

        There is the first one of each consecutive range, and their count.
        """
        if not self.is_packed:
            return [(f.times(unit, self.numbers), self.numbers)]
        block, inside = f.divided(unit, _PACKED // self.unit)
        first = f.plus(f.times(block, BLOCK), f.times(inside, self.unit))
        return [(first, self.unit), (f.plus(first, i32(BLOCK // 2)), self.unit)]


class Fragments:
    """The conversion of units to operands of matrix units.

    These are pairs of two 16-bit floats.

    The terms of a product of matrix units may be in any order, as long as both operands have the same.
    """

    def __init__(self, f: KernelFunction, layout: WeightLayout) -> None:
        self.f, self.layout = f, layout
        self.type = half_type(layout.dtype)

    def weights(self, words: Sequence[Value]) -> list[tuple[Value, Value]]:
        """Emit the numbers of a unit, four for each product."""
        scheme = self.layout.scheme
        if scheme == "int4":
            # The lower halves of the bytes, then the upper ones: of bytes 0 and 2, and of bytes 1 and 3.
            halves = [[self._nibbles(word, shift) for shift in (0, 8, 4, 12)] for word in words]
            return [(four[0], four[1]) for four in halves] + [(four[2], four[3]) for four in halves]
        if scheme == "int8":
            return [self._integers(word) for word in words]
        if scheme == "fp8":
            return [self._float8(word) for word in words]
        return list(zip(words[::2], words[1::2], strict=True))

    def ones(self) -> Value:
        """Return two ones."""
        return i32(0x3C003C00 if self.type == "half" else 0x3F803F80)

    def _nibbles(self, word: Value, shift: int) -> Value:
        """Emit the codes of 4 bits from bit `shift` and from 16 bits further on, minus 8."""
        f, (bits, least) = self.f, _COUNTING[self.type]
        shifted = f.binary("lshr", word, i32(shift)) if shift else word
        counted = f.binary("or", f.binary("and", shifted, i32(0x000F000F)), i32(bits))
        vector = f.cast("bitcast", counted, f"<2 x {self.type}>")
        constant = f"{self.type} {_literal(least, self.type)}"
        return f.cast("bitcast", f.fadd(vector, Value(vector.type, f"<{constant}, {constant}>")), "i32")

    def _integers(self, word: Value) -> tuple[Value, Value]:
        """Emit four integers of 8 bits."""
        f, (bits, _) = self.f, _COUNTING[self.type]
        pairs = []
        for selector in (0x4140, 0x4342):  # the lower and the upper two bytes, with zeros above each
            two = f.intrinsic("llvm.nvvm.prmt", "i32", word, i32(0), i32(selector))
            if self.type == "half":  # plus 128, from 0 to 255
                counted, least = f.binary("or", f.binary("xor", two, i32(0x00800080)), i32(bits)), i32(0x64806480)
            else:  # of 128 plus the lower bits 128 are taken, or 256 of negative ones: the last bit of the exponent is the sign
                counted = f.binary("or", f.binary("and", two, i32(0x007F007F)), i32(bits))
                least = f.binary("or", f.binary("and", two, i32(0x00800080)), i32(bits))
            both = [f.cast("bitcast", x, f"<2 x {self.type}>") for x in (counted, least)]
            pairs.append(f.cast("bitcast", f.fsub(*both), "i32"))
        return pairs[0], pairs[1]

    def _float8(self, word: Value) -> tuple[Value, Value]:
        """Emit four numbers of float8_e4m3fn."""
        f, pairs = self.f, []
        for half in range(2):
            two = f.cast("trunc", f.binary("lshr", word, i32(16)) if half else word, "i16")
            (halves,) = f.ptx("cvt.rn.f16x2.e4m3x2 $0, $1;", two, results=["i32"])
            if self.type == "bfloat":
                floats = f.cast("fpext", f.cast("bitcast", halves, "<2 x half>"), "<2 x float>")
                halves = f.cast("bitcast", f.cast("fptrunc", floats, "<2 x bfloat>"), "i32")
            pairs.append(halves)
        return pairs[0], pairs[1]


def _literal(number: float, type_: str) -> str:
    """Return a number that the 16-bit type represents, as LLVM writes it."""
    if type_ == "bfloat":
        return f"0xR{int(np.float32(number).view(np.uint32)) >> 16:04X}"
    return f"0xH{int(np.float16(number).view(np.uint16)):04X}"


def as_float(f: KernelFunction, number: Value, dtype: np.dtype) -> Value:
    """Emit a float of 16 or 32 bits as one of 32; bfloat16 is given as i16."""
    if dtype == np.float32:
        return number
    if dtype == np.float16:
        return f.cast("fpext", f.cast("bitcast", number, "half"), "float")
    return f.cast("bitcast", f.binary("shl", f.cast("zext", number, "i32"), i32(16)), "float")


# Products.

#: Rows of x that matrix units multiply at once.
COLUMNS = 8

#: The 16-bit floats of which a number of x is the sum, by its bytes.
TERMS = {2: 1, 4: 3}

#: Bytes after a row of x in shared memory, so that rows begin in different banks.
_PADDING = 16

#: The most warps of a block, regions that a warp holds in registers, and registers for them.
_WARPS, _HELD, _REGISTERS = 16, 8, 64

#: Outputs for each multiprocessor, and numbers of x, from which on tiles are large.
_MANY, _MUCH = 64, 1 << 14

#: The most numbers of x that a thread computes one after another without a loop.
_UNROLLED = 16

#: What a turn waits, and what a warp costs in the end, in regions that a warp multiplies.
_TURN, _WARP = 20, 0.5


class RowSchedule(NamedTuple):
    """How a block divides its work."""

    #: Outputs of a tile: 8, 16 or 32.
    tile: int
    warps: int
    #: Regions that a warp loads at a time, and how often it does.
    held: int
    turns: int

    @property
    def slots(self) -> int:
        """Regions for which a block has room: at least as many as a row has."""
        return self.warps * self.held * self.turns


def choose(layout: WeightLayout, outputs: int, columns: int, processors: int) -> RowSchedule:
    """Return the schedule estimated to be fastest.

    `columns` are the rows of x, or terms of which they consist.

    Few outputs are divided into small tiles, so that every multiprocessor has one. With large tiles fewer blocks read x, which counts where
    it has many numbers.
    """
    is_read_rarely = outputs > _MANY * processors and columns * layout.size >= _MUCH
    tile = 8 if outputs <= 16 * processors else 32 if is_read_rarely else 16
    registers = (layout.unit // 4 + (layout.groups > 1) * (1 + layout.has_offsets)) * (tile // 8)
    sizes = [(warps, held) for warps in range(1, _WARPS + 1) for held in range(1, _HELD + 1)]
    options = [RowSchedule(tile, *size, ceil(layout.regions / (size[0] * size[1]))) for size in sizes]
    # The regions of the next turn are in registers, too.
    fitting = [s for s in options if s.held * registers * min(s.turns, 2) <= _REGISTERS]
    return min(fitting, key=lambda s: s.turns * (_TURN + s.held) + _WARP * s.warps + (s.slots - layout.regions))


class Part(NamedTuple):
    """One of the matrices, by the bindings of its arrays and of its results."""

    outputs: int
    #: Bytes of its array before the first row.
    start: int
    weights: int
    scales: int | None
    offsets: int | None
    results: int


class UnitRegion(NamedTuple):
    """A thread's share of a region, as it is in memory.

    It has the words of a unit of each row, and the scales and offsets of the group.
    """

    words: list[list[Value]]
    scales: list[Value]

    @property
    def values(self) -> list[Value]:
        """All of it, one value after another."""
        return [*[word for words in self.words for word in words], *self.scales]


class Source(ABC):
    """Where the rows of x come from."""

    #: Bytes of shared memory that it needs besides those of x.
    workspace = 0
    #: The 16-bit floats of which a number of x is the sum.
    terms = 1

    @abstractmethod
    def put(self, kernel: RowsKernel) -> None:
        """Emit the stores of x to shared memory.

        Zeros beyond its end are stored, too. All threads take part.
        """


class RowsKernel:
    """A kernel under construction, for `rows` rows of x, with results of a dtype."""

    def __init__(
        self, layout: WeightLayout, parts: Sequence[Part], rows: int, source: Source, dtype: np.dtype, bindings: int, schedule: RowSchedule
    ) -> None:
        self.layout, self.parts, self.rows, self.schedule = layout, parts, rows, schedule
        self.source, self._dtype = source, dtype
        #: The columns of matrix units' right operand: rows of x, or the terms of which each consists.
        self.columns = rows * source.terms
        self.threads = 32 * schedule.warps
        #: Numbers of a row of x in shared memory, and bytes from one row to the next.
        self.numbers = schedule.slots * 4 * layout.numbers
        self.pitch = 2 * self.numbers + _PADDING
        #: Where sums are in shared memory, and the rows of x in groups of eight.
        self.x_bytes = self.columns * self.pitch
        self.eights = ceil(self.columns / COLUMNS)
        self._sums_at = self.x_bytes + source.workspace
        self.f = KernelFunction(0, bindings, self.threads)
        self._fragments = Fragments(self.f, layout)

    @property
    def blocks(self) -> int:
        """The blocks of the grid."""
        return sum(ceil(part.outputs / self.schedule.tile) for part in self.parts)

    @property
    def header(self) -> KernelHeader:
        """How the kernel is launched."""
        return KernelHeader(self.threads, self._sums_at + 4 * self.schedule.warps * self._tile_sums)

    @property
    def _tile_sums(self) -> int:
        return self.schedule.tile * COLUMNS * self.eights

    def text(self) -> str:
        """Return the finished module."""
        f, tile = self.f, self.schedule.tile
        self.block = f.special("ctaid.x")
        ends = list(accumulate(ceil(part.outputs / tile) for part in self.parts))
        #: Whether the block's part is a later one than each of the parts but the last.
        self._is_later = [f.compare("icmp uge", self.block, i32(end)) for end in ends[:-1]]
        self._tile(f.minus(self.block, self._of_part([i32(begin) for begin in (0, *ends[:-1])])))
        return f.text()

    def _of_part(self, values: Sequence[Value]) -> Value:
        """Emit the value that belongs to the block's part."""
        result = values[0]
        for is_later, value in zip(self._is_later, values[1:], strict=True):
            result = result if result == value else self.f.select(is_later, value, result)
        return result

    def _binding_of_part(self, numbers: Sequence[int | None]) -> Value | None:
        bindings = [self.f.bindings[number] for number in numbers if number is not None]
        return self._of_part(bindings) if bindings else None

    # a tile

    def _tile(self, tile: Value) -> None:
        """Compute a tile of a part's outputs."""
        f, schedule, layout, parts = self.f, self.schedule, self.layout, self.parts
        first = f.times(tile, schedule.tile)
        g, self._t = f.divided(f.lane, 4)
        self._outputs = self._of_part([i32(part.outputs) for part in parts])
        last = f.minus(self._outputs, i32(1))
        rows = [f.umin(f.plus(first, g, i32(8 * k)), last) for k in range(schedule.tile // 8)]
        start = self._of_part([i64(part.start) for part in parts])
        base = self._binding_of_part([part.weights for part in parts])
        assert base is not None
        base = f.further(base, start)
        self._by_group = [self._binding_of_part(numbers) for numbers in ([p.scales for p in parts], [p.offsets for p in parts])]
        self._lines = [f.further(base, f.wide_times(row, layout.pitch)) for row in rows]
        self._rows_of_scales = rows
        self._line_of_x = [f.times(self._within(f.plus(g, i32(8 * k)), self.columns), self.pitch) for k in range(self.eights)]
        count = len(rows) * 2 * self.eights
        totals = [ZERO] * (2 * count if layout.has_offsets and layout.groups == 1 else count)
        whole = None if layout.quantized is None or layout.groups > 1 else self._scales(i32(0))
        held = self._load(i32(0))
        flat = [value for region in held for value in region.values]
        self.source.put(self)
        f.synchronise()
        if schedule.turns == 1:
            totals = self._multiply(i32(0), held, totals)
        else:
            # The regions of the next turn are loaded before those of this one are multiplied.
            def turn(index: Value, state: list[Value]) -> list[Value]:
                ahead = self._load(self._within(f.plus(index, i32(1)), schedule.turns))
                following = [value for region in ahead for value in region.values]
                return [*following, *self._multiply(index, self._regions(state, held), state[len(flat) :])]

            totals = f.repeat(i32(0), i32(schedule.turns), i32(1), [*flat, *totals], turn)[len(flat) :]
        self._add_up(first, self._scaled(totals, self._pairs(whole)) if whole is not None else totals)

    def _within(self, index: Value, size: int) -> Value:
        return self.f.umin(index, i32(size - 1))

    # loads

    def _region(self, turn: Value, slot: int) -> Value:
        """Emit the number of a region of this warp."""
        f, schedule = self.f, self.schedule
        return f.plus(f.times(turn, schedule.warps * schedule.held), f.warp, i32(slot * schedule.warps))

    @property
    def _is_ragged(self) -> bool:
        return self.schedule.slots * 4 * self.layout.unit > self.layout.width

    def _load(self, turn: Value) -> list[UnitRegion]:
        """Load this thread's share of a turn's regions."""
        f, unit = self.f, self.layout.unit
        words = unit // 4
        result = []
        for slot in range(self.schedule.held):
            of_warp = self._region(turn, slot)
            number = f.plus(f.times(of_warp, 4), self._t)
            exists = None
            if self._is_ragged:
                exists = f.below(number, self.layout.width // unit)
                number = self._within(number, self.layout.width // unit)
            region = []
            for line in self._lines:
                vector = f.load(vector_of("i32", words), f.further(line, f.times(number, unit)), unit)
                numbers = f.elements(vector)
                # Codes of what does not exist are multiplied by zeros; floats could be infinite.
                is_float = self.layout.scheme in ("bfloat16", "float16", "fp8")
                region.append([f.select(exists, word, i32(0)) for word in numbers] if exists is not None and is_float else numbers)
            scales = []
            if self.layout.groups > 1:
                inside = self._within(of_warp, self.layout.regions) if self._is_ragged else of_warp
                scales = self._scales(f.quotient(inside, self._regions_of_group))
            result.append(UnitRegion(region, scales))
        return result

    @property
    def _regions_of_group(self) -> int:
        assert self.layout.quantized is not None
        return self.layout.quantized.group_size // (4 * self.layout.numbers)

    @staticmethod
    def _regions(flat: Sequence[Value], like: Sequence[UnitRegion]) -> list[UnitRegion]:
        """Return values one after another as regions like others."""
        values = iter(flat)
        return [
            UnitRegion([list(islice(values, len(words))) for words in each.words], list(islice(values, len(each.scales)))) for each in like
        ]

    def _scales(self, group: Value) -> list[Value]:
        """Load the scales of a group, for each of this thread's rows.

        Each is followed by the offset if there is one.
        """
        f, layout, result = self.f, self.layout, []
        assert layout.scale_dtype is not None
        size = layout.scale_dtype.itemsize
        for row in self._rows_of_scales:
            at = f.widened_index(f.times(f.plus(f.times(row, layout.groups), group), size))
            for array in self._by_group:
                if array is not None:
                    result.append(f.load("float" if size == 4 else "i16", f.further(array, at), size))
        return result

    def _pairs(self, scales: Sequence[Value]) -> list[tuple[Value, Value | None]]:
        """Emit scales and offsets as float32, row by row."""
        dtype = self.layout.scale_dtype
        assert dtype is not None
        floats = [as_float(self.f, value, dtype) for value in scales]
        if self.layout.has_offsets:
            return list(zip(floats[::2], floats[1::2], strict=True))
        return [(scale, None) for scale in floats]

    # products

    def _multiply(self, turn: Value, held: Sequence[UnitRegion], totals: list[Value]) -> list[Value]:
        """Multiply regions, and add to the sums of this warp.

        Sums are those of outputs, row by row, for each eight rows of x; with offsets, sums of x follow.
        """
        f, layout = self.f, self.layout
        for slot, region in enumerate(held):
            xs = self._load_x(f.plus(f.times(self._region(turn, slot), 4), self._t))
            if layout.groups == 1:
                totals = self._products(region.words, xs, totals)
                continue
            count = len(region.words) * 2 * self.eights
            sums = self._products(region.words, xs, [ZERO] * (2 * count if layout.has_offsets else count))
            scaled = self._scaled(sums, self._pairs(region.scales))
            totals = [f.fadd(x, y) for x, y in zip(totals, scaled, strict=True)]
        return totals

    def _scaled(self, sums: Sequence[Value], scales: Sequence[tuple[Value, Value | None]]) -> list[Value]:
        """Emit sums times scales, plus sums of x times offsets."""
        f, count = self.f, len(scales) * 2 * self.eights
        result = []
        for k in range(count):
            scale, offset = scales[k // 2 % len(scales)]
            value = f.fmul(sums[k], scale)
            result.append(value if offset is None else f.fadd(value, f.fmul(sums[count + k], offset)))
        return result

    def _load_x(self, unit: Value) -> list[list[tuple[Value, Value]]]:
        """Load the numbers of x for a unit, for each eight rows of x."""
        f, result = self.f, []
        segments = self.layout.segments(f, unit)
        for line in self._line_of_x:
            parts = []
            for first, count in segments:
                words: list[Value] = []
                step = min(count // 2, 4)
                for begin in range(0, count // 2, step):
                    at = f.plus(line, f.times(first, 2), i32(4 * begin))
                    vector = f.load(vector_of("i32", step), f.shared(at), 4 * step)
                    words += f.elements(vector)
                parts.append(words)
            result.append([pair for words in parts for pair in zip(words[::2], words[1::2], strict=True)])
        return result

    def _products(self, region: list[list[Value]], xs: list[list[tuple[Value, Value]]], totals: Sequence[Value]) -> list[Value]:
        """Add the products of a region to sums."""
        f, dtype, fragments = self.f, self.layout.dtype, self._fragments
        lefts = [fragments.weights(words) for words in region]
        count = len(region) * 2 * self.eights
        result = list(totals)
        # Matrix units multiply sixteen outputs: those of eight are there twice.
        pairs = [(row, min(row + 1, len(region) - 1)) for row in range(0, len(region), 2)]
        for k, eight, (low, high) in product(range(len(lefts[0])), range(self.eights), pairs):
            first, second = lefts[low][k], lefts[high][k]
            at, sums = eight * 2 * len(region) + 2 * low, 2 * (high - low + 1)
            for left, begin in (((first[0], second[0], first[1], second[1]), at), ((fragments.ones(),) * 4, count + at)):
                if begin < len(totals):
                    before = [*result[begin : begin + sums], ZERO, ZERO][:4]
                    result[begin : begin + sums] = f.multiply_add(dtype, left, xs[eight][k], before)[:sums]
        return result

    # results

    def _add_up(self, first: Value, totals: Sequence[Value]) -> None:
        """Add up the sums of all warps, and store the results of a tile."""
        f, schedule = self.f, self.schedule
        g = f.quotient(f.lane, 4)
        begin = f.plus(i32(self._sums_at), f.times(f.warp, 4 * self._tile_sums))
        half = schedule.tile // 8
        for eight in range(self.eights):
            for k in range(half):
                pair = f.vector(totals[2 * (eight * half + k) :][:2])
                line = f.plus(f.times(f.plus(g, i32(8 * k)), COLUMNS * 4), i32(eight * schedule.tile * COLUMNS * 4))
                f.store(pair, f.shared(f.plus(begin, line, f.times(self._t, 8))), 8)
        f.synchronise()
        count = schedule.tile * self.rows
        results = self._binding_of_part([part.results for part in self.parts])
        assert results is not None

        def result(index: Value) -> None:
            row, inside = f.divided(index, schedule.tile)
            output = f.plus(first, inside)
            total = None
            for term in reversed(range(self.source.terms)):  # the smallest first
                eight, column = f.divided(f.plus(f.times(row, self.source.terms), i32(term)), COLUMNS)
                place = f.plus(f.times(eight, schedule.tile * COLUMNS), f.times(inside, COLUMNS), column)
                at = f.plus(i32(self._sums_at), f.times(place, 4))
                for warp in range(schedule.warps):
                    one = f.load("float", f.shared(f.plus(at, i32(4 * warp * self._tile_sums))), 4)
                    total = one if total is None else f.fadd(total, one)
            assert total is not None
            is_ragged = any(part.outputs % schedule.tile for part in self.parts)
            with f.only_if(f.below(output, self._outputs) if is_ragged else None):
                self._store(results, row, output, total)

        self.each(count, result)

    def _store(self, results: Value, row: Value, output: Value, total: Value) -> None:
        """Round and store a sum."""
        f, size = self.f, self._dtype.itemsize
        if size == 2:
            total = f.rounded(total, self._dtype)
        place = f.plus(f.binary("mul", row, self._outputs) if self.rows > 1 else i32(0), output)
        f.store(total, f.further(results, f.times(place, size)), size)

    def put_number(self, row: Value, column: Value, number: Value) -> None:
        """Emit the store of a number of x, a float, to shared memory.

        One of float32 is the sum of three of bfloat16, of which an infinity is the first.
        """
        f, terms = self.f, self.source.terms
        line = f.plus(f.times(row, terms * self.pitch), f.times(self.layout.place(f, column), 2))
        for term in range(terms):
            rounded = f.cast("fptrunc", number, half_type(self.layout.dtype))
            f.store(f.cast("bitcast", rounded, "i16"), f.shared(f.plus(line, i32(term * self.pitch))), 2)
            if term < terms - 1:
                wide = f.cast("fpext", rounded, "float")
                size = f.binary("and", f.cast("bitcast", wide, "i32"), i32(0x7FFFFFFF))
                number = f.select(f.below(size, 0x7F800000), f.fsub(number, wide), ZERO)

    def unrolled(self, count: int) -> list[tuple[Value, Value | None]] | None:
        """Emit this thread's share of so many numbers.

        Each comes with whether it exists; others are the last one. None if they are too many.

        Loads of all of them are then under way at the same time.
        """
        f, turns = self.f, ceil(count / self.threads)
        if turns > _UNROLLED:
            return None
        result: list[tuple[Value, Value | None]] = []
        for turn in range(turns):
            index = f.plus(f.thread, i32(turn * self.threads))
            if (turn + 1) * self.threads > count:
                result.append((self._within(index, count), f.below(index, count)))
            else:
                result.append((index, None))
        return result

    def each(self, count: int, body: Callable[[Value], None]) -> None:
        """Emit a loop over so many numbers, which the threads divide."""
        f = self.f
        with f.only_if(f.below(f.thread, count) if count < self.threads else None):
            f.repeat(f.thread, i32(count), i32(self.threads), [], lambda index, _: body(index))


# Rows of x in memory.


class Copied(Source):
    """Rows that lie in memory, `stride` numbers apart, from number `start` on."""

    def __init__(self, binding: int, dtype: np.dtype, size: int, start: int, stride: int) -> None:
        self._binding, self._size, self._start, self._stride = binding, size, start, stride
        self.terms = TERMS[dtype.itemsize]

    def put(self, kernel: RowsKernel) -> None:
        """Copy the rows, eight numbers at a time where they are aligned."""
        f = kernel.f
        lanes = 8 if self.terms == 1 and not any(n % 8 for n in (self._size, self._start, self._stride)) else 1
        type_ = "float" if self.terms > 1 else "<4 x i32>" if lanes == 8 else "i16"
        zero = Value(type_, "zeroinitializer" if lanes == 8 else "0.0" if self.terms > 1 else "0")
        size, units, exist = 4 if self.terms > 1 else 2 * lanes, kernel.numbers // lanes, self._size // lanes

        def copy(index: Value) -> None:
            row, unit = f.divided(index, units)
            place = f.plus(f.times(row, self._stride // lanes), f.umin(unit, i32(exist - 1)), i32(self._start // lanes))
            number = f.load(type_, f.further(f.bindings[self._binding], f.times(place, size)), size)
            if units > exist:
                number = f.select(f.below(unit, exist), number, zero)
            if self.terms > 1:
                kernel.put_number(row, unit, number)
            else:
                place = f.times(unit, size) if lanes == 8 else f.times(kernel.layout.place(f, unit), size)
                number = _swapped(f, number) if lanes == 8 and kernel.layout.is_packed else number
                f.store(number, f.shared(f.plus(f.times(row, kernel.pitch), place)), size)

        kernel.each(kernel.rows * units, copy)


def _swapped(f: KernelFunction, eight: Value) -> Value:
    """Swap the numbers in the middle of each four of eight."""
    vector = f.cast("bitcast", eight, "<8 x i16>")
    return f.cast("bitcast", f.shuffle(vector, (0, 2, 1, 3, 4, 6, 5, 7)), eight.type)
