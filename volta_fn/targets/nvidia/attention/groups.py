"""Attention by `wgmma`, for GPUs of compute capability 9.0.

One warp group copies the block's queries, then keys and values tile by tile by the tensor memory accelerator. Each of the others has 64
queries: it multiplies them by a tile's keys, and the weights, from registers, by its values. While one of them computes weights, another
one multiplies, and, if the schedule says so, the next keys are multiplied meanwhile. The rest is as in `forward`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from volta_fn.compiler.attention import Attention, Rows
from volta_fn.runtime.llvm.text import Value
from volta_fn.targets.nvidia.attention.forward import exponentiate, finish
from volta_fn.targets.nvidia.attention.queries import LOWEST, masked
from volta_fn.targets.nvidia.attention.tiles import FRAGMENT, ZERO, FragmentKernel, number
from volta_fn.targets.nvidia.kernel import KernelHeader, TensorMap, kernel_module
from volta_fn.targets.nvidia.matmul.function import KernelFunction, i32
from volta_fn.targets.nvidia.matmul.problem import FORMATS, ROW
from volta_fn.targets.wgsl.routine import Dispatch

#: Rows of a warp group, features of a box, and terms of one `wgmma`.
_ROWS, _BOX, _TERMS = 64, 64, 16

#: The most axes of a tensor map besides features and rows.
_HEAD_AXES = 3

#: Registers by warp groups that multiply and blocks of a multiprocessor: no more together than 128, 168 and 128 for each thread.
_REGISTERS = {(1, 2): (40, 208), (2, 1): (40, 232), (3, 1): (32, 160)}


@dataclass(frozen=True)
class GroupSchedule:
    """A division of the work of a block: warp groups of 64 queries, and tiles of keys."""

    groups: int = 2
    tile: int = 128
    #: Tiles in shared memory.
    stages: int = 2
    #: Whether the next tile's keys are multiplied while weights of a tile are computed.
    ahead: bool = False
    #: Blocks that a multiprocessor has room for.
    residents: int = 1

    fragments = 1
    warp_rows = FRAGMENT

    @property
    def step(self) -> int:
        """Keys that are multiplied at a time."""
        return self.tile

    @property
    def rows(self) -> int:
        """Queries of a block."""
        return _ROWS * self.groups

    @property
    def threads(self) -> int:
        """Threads of a block: one warp group copies."""
        return 128 * (self.groups + 1)

    @property
    def registers(self) -> tuple[int, int]:
        """Registers of a thread that copies, and of one that multiplies.

        Together they must be no more than the block begins with, or it waits for ever.
        """
        return _REGISTERS[self.groups, self.residents]

    def shared(self, width: int) -> int:
        """Return the bytes of shared memory.

        It has queries, results, tiles of keys and of values, and barriers.
        """
        return 4 * self.rows * width + self.stages * 4 * self.tile * width + 8 * (1 + 4 * self.stages)


def has_tensor_maps(a: Attention) -> bool:
    """Return whether the tensor memory accelerator can copy the operands' rows.

    All strides must be multiples of 16 bytes.
    """
    return all(
        len(x.heads.sizes) <= _HEAD_AXES and x.step > 0 and all(stride >= 0 and stride % 8 == 0 for stride in (x.step, *x.heads.strides))
        for x in (a.q, a.k, a.v)
    )


def group_dispatch(a: Attention, schedule: GroupSchedule) -> Dispatch:
    """Return the dispatch of `forward.forward_dispatch` by this kernel."""
    kernel = _GroupKernel(a, schedule)
    header = KernelHeader(schedule.threads, schedule.shared(a.q.width), tuple([array.tensor_map for array in kernel.arrays]))
    module = kernel_module(header, 5, (3, 4), kernel.text())
    return Dispatch(module, (0, 1, 2, 3, 4), (kernel.blocks * a.stack, 1, 1))


class _Array(NamedTuple):
    """The rows of an operand in shared memory.

    They are in boxes of 64 features, whose rows of 128 bytes are those of the tile.
    """

    rows: Rows
    pointer: Value
    tile: int
    #: Where the first tile is.
    offset: int
    binding: int

    @property
    def bytes(self) -> int:
        """Bytes of a tile."""
        return 2 * self.tile * self.rows.width

    @property
    def axes(self) -> list[int]:
        """The axes of heads that lead to other rows, innermost first."""
        return [axis for axis, stride in reversed([*enumerate(self.rows.heads.strides)]) if stride]

    @property
    def tensor_map(self) -> TensorMap:
        """The map of boxes."""
        rows, heads = self.rows, self.rows.heads
        dims = rows.width, rows.count, *[heads.sizes[axis] for axis in self.axes]
        strides = rows.step, *[heads.strides[axis] for axis in self.axes]
        box = _BOX, self.tile, *[1 for _ in self.axes]
        return TensorMap(self.binding, rows.dtype.name, 0, dims, tuple([2 * stride for stride in strides]), box)


class _GroupKernel(FragmentKernel):
    """The kernel under construction."""

    def __init__(self, a: Attention, schedule: GroupSchedule) -> None:
        f = KernelFunction(3, 5, schedule.threads, schedule.residents)
        super().__init__(f, schedule, a.q.dtype, a.q.width, f.times(f.minus(f.warp, i32(4)), FRAGMENT))
        self.a, self.schedule = a, schedule
        self.blocks = -(-a.queries // schedule.rows)
        offset, arrays = 0, []
        for binding, (rows, tile, count) in enumerate(
            [(a.q, schedule.rows, 1), (a.k, schedule.tile, schedule.stages), (a.v, schedule.tile, schedule.stages)]
        ):
            arrays.append(_Array(rows, f.maps[binding], tile, offset, binding))
            offset += count * arrays[-1].bytes
        self.arrays: Sequence[_Array] = arrays
        self.results = offset
        self.base = f.shared_base()
        barriers = offset + 2 * schedule.rows * a.q.width
        #: The barriers that tell that queries have arrived, and of keys and of values, that a stage is full, and that it is empty again.
        self.begun = f.plus(self.base, i32(barriers))
        self.full = [f.plus(self.base, i32(barriers + 8 + 16 * schedule.stages * side)) for side in range(2)]
        self.empty = [f.plus(full, i32(8 * schedule.stages)) for full in self.full]
        position, self.head = f.divided(f.special("ctaid.x"), a.stack)
        self.first = f.times(f.minus(i32(self.blocks - 1), position), schedule.rows)  # those with most visible keys come first
        #: Tiles that the block sees.
        self.count = i32(-(-a.keys // schedule.tile))
        if a.causal:
            seen = f.quotient(f.plus(self.first, i32(schedule.rows + schedule.tile - 1)), schedule.tile)
            self.count = f.intrinsic("llvm.umin.i32", "i32", self.count, seen)

    def text(self) -> str:
        """Return the module."""
        f, registers = self.f, self.schedule.registers
        with f.only_if(f.equals(f.thread, 0)):
            f.begin_barrier(self.begun, 1)
            for side in range(2):
                for stage in range(self.schedule.stages):
                    f.begin_barrier(f.plus(self.full[side], i32(8 * stage)), 1)
                    f.begin_barrier(f.plus(self.empty[side], i32(8 * stage)), 4 * self.schedule.groups)
            f.publish_barriers()
        f.synchronise()
        f.do(f"br {f.below(f.warp, 4)}, label %copies, label %multiplies")
        f.label("copies")
        f.ptx(f"setmaxnreg.dec.sync.aligned.u32 {registers[0]};")
        with f.only_if(f.equals(f.thread, 0)):
            self._copy()
        f.do("br label %end")
        f.label("multiplies")
        f.ptx(f"setmaxnreg.inc.sync.aligned.u32 {registers[1]};")
        self._multiply()
        f.do("br label %end")
        f.label("end")
        return f.text()

    def _next(self, stage: Value, parity: Value) -> list[Value]:
        """Return the next stage, and the parity of its phase."""
        f = self.f
        following = f.plus(stage, i32(1))
        wraps = f.equals(following, self.schedule.stages)
        return [f.select(wraps, i32(0), following), f.binary("xor", parity, f.cast("zext", wraps, "i32"))]

    # the warp group that copies

    def _copy(self) -> None:
        f = self.f
        self._copy_rows(self.arrays[0], i32(0), self.first, self.begun)

        def copy_tile(tile: Value, state: list[Value]) -> list[Value]:
            stage, parity = state
            for side, array in enumerate(self.arrays[1:]):
                f.wait_for_barrier(f.plus(self.empty[side], f.times(stage, 8)), f.exclusive_or(parity, 1))
                self._copy_rows(array, stage, f.times(tile, self.schedule.tile), f.plus(self.full[side], f.times(stage, 8)))
            return self._next(stage, parity)

        f.repeat(i32(0), self.count, i32(1), [i32(0), i32(0)], copy_tile)

    def _copy_rows(self, array: _Array, stage: Value, first: Value, barrier: Value) -> None:
        """Begin to copy rows from `first` on, box by box.

        Those beyond the last become zeros.
        """
        f = self.f
        f.expect_bytes(barrier, array.bytes)
        positions = f.coordinates(self.head, array.rows.heads.sizes)
        to = f.plus(self.base, i32(array.offset), f.times(stage, array.bytes))
        for begin in range(0, array.rows.width, _BOX):
            box = [i32(begin), first, *[positions[axis] for axis in array.axes]]
            f.copy_box(f.plus(to, i32(begin // _BOX * array.tile * ROW)), array.pointer, box, barrier)

    # the warp groups that multiply

    def _multiply(self) -> None:
        f, a, tile = self.f, self.a, self.schedule.tile
        factor = number(a.scale * math.log2(math.e))
        keys, values = self.arrays[1:]
        group = f.minus(f.quotient(f.warp, 4), i32(1))
        queries = f.plus(self.base, f.times(group, _ROWS * ROW))
        query = f.plus(self.first, self.first_row)
        f.wait_for_barrier(self.begun, i32(0))

        def products(stage: Value, parity: Value, *, wait: bool) -> list[Value]:
            f.wait_for_barrier(f.plus(self.full[0], f.times(stage, 8)), parity)
            return self._logits(queries, f.plus(self.base, i32(keys.offset), f.times(stage, keys.bytes)), wait=wait)

        def release(side: int, stage: Value) -> None:
            f.arrive_in_first_lane(f.plus(self.empty[side], f.times(stage, 8)))

        def weigh(logits: list[Value], tile_number: Value, state: list[Value]) -> tuple[list[Value], list[list[Value]]]:
            """Return the state with sums that are scaled, and a tile's weights."""
            maxima, totals, sums = state[:2], state[2:4], self.nested(state[4:])
            nested = masked(self, a, self.nested(logits), query, f.times(tile_number, tile))
            maxima, totals = exponentiate(self, factor, nested, maxima, totals, sums)
            return [*maxima, *totals, *self.flat(sums)], self.fragments(nested)[0]

        def add(state: list[Value], weights: list[list[Value]], stage: Value, parity: Value, others: Sequence[Value] = ()) -> list[Value]:
            """Add the products of weights and values.

            Wait for all products, also of `others`.
            """
            f.wait_for_barrier(f.plus(self.full[1], f.times(stage, 8)), parity)
            start = f.plus(self.base, i32(values.offset), f.times(stage, values.bytes))
            results = self._add_products([*state[4:], *others], len(state) - 4, weights, start)
            release(1, stage)
            return [*state[:4], *results]

        def multiply_tile(tile_number: Value, values: list[Value]) -> list[Value]:
            stage, parity, *state = values
            logits = products(stage, parity, wait=True)
            release(0, stage)
            state, weights = weigh(logits, tile_number, state)
            return [*self._next(stage, parity), *add(state, weights, stage, parity)]

        def multiply_ahead(tile_number: Value, values: list[Value]) -> list[Value]:
            stage, parity, *rest = values
            logits, state = rest[: tile // 2], rest[tile // 2 :]
            following = self._next(stage, parity)
            more = products(*following, wait=False)
            state, weights = weigh(logits, tile_number, state)
            state = add(state, weights, stage, parity, more)
            release(0, following[0])
            state, more = state[: -len(more)], state[-len(more) :]
            return [*following, *more, *state]

        state = [i32(0), i32(0), LOWEST, LOWEST, ZERO, ZERO, *self.flat(self.zeros(self.width))]
        if self.schedule.ahead:
            logits = products(i32(0), i32(0), wait=True)
            release(0, i32(0))
            begin = [i32(0), i32(0), *logits, *state[2:]]
            last = f.minus(self.count, i32(1))
            more = f.compare("icmp ne", last, i32(0))
            values_ = f.branch(more, lambda: f.repeat(i32(0), last, i32(1), begin, multiply_ahead), lambda: begin)
            stage, parity, *rest = values_
            state, weights = weigh(rest[: tile // 2], last, rest[tile // 2 :])
            state = add(state, weights, stage, parity)
        else:
            state = f.repeat(i32(0), self.count, i32(1), state, multiply_tile)[2:]
        finish(self, a, self.head, self.first, self.results, state)

    def _logits(self, queries: Value, keys: Value, *, wait: bool) -> list[Value]:
        """Multiply the group's queries by a tile of keys.

        Without `wait` the products are under way.
        """
        f, tile = self.f, self.schedule.tile
        descriptors = f.descriptor(queries, 16), f.descriptor(keys, 16)
        count = tile // 2
        registers = ", ".join(f"${k}" for k in range(count))
        code = ["{", ".reg .pred adds, none;", ".reg .b64 a0, b;", "setp.ne.b32 adds, 1, 0;", "setp.ne.b32 none, 0, 0;"]
        code.append("wgmma.fence.sync.aligned;")
        for term in range(0, self.width, _TERMS):
            box, inside = divmod(term, _BOX)
            for k, (name, rows) in enumerate((("a0", self.schedule.rows), ("b", tile))):
                code.append(f"add.s64 {name}, ${count + k}, {(box * rows * ROW + 2 * inside) >> 4};")
            code.append(f"{self._shape(tile)} {{{registers}}}, a0, b, {'adds' if term else 'none'}, 1, 1, 0, 0;")
        return f.ptx("\n".join([*code, _COMMIT, *([_WAIT] if wait else []), "}"]), *descriptors, results=["float"] * count)

    def _add_products(self, sums: list[Value], width: int, weights: list[list[Value]], values: Value) -> list[Value]:
        """Multiply weights by a tile of values.

        The products are added to the first `width` of `sums`. The others are products under way, which are awaited, too.
        """
        f, count = self.f, len(sums)
        registers = ", ".join(f"${k}" for k in range(width))
        words = [word for fragment in weights for word in fragment]
        code = ["{", ".reg .pred adds;", ".reg .b64 b;", "setp.ne.b32 adds, 1, 0;", "wgmma.fence.sync.aligned;"]
        for k in range(len(weights)):
            left = ", ".join(f"${2 * count + 4 * k + word}" for word in range(4))
            code.append(f"add.s64 b, ${2 * count + len(words)}, {(_TERMS * k * ROW) >> 4};")
            code.append(f"{self._shape(self.width)} {{{registers}}}, {{{left}}}, b, adds, 1, 1, 1;")
        descriptor = f.descriptor(values, self.schedule.tile * ROW)
        return f.ptx("\n".join([*code, _COMMIT, _WAIT, "}"]), *words, descriptor, tied=sums)

    def _shape(self, columns: int) -> str:
        kind = FORMATS[np.dtype(self.dtype)]
        return f"wgmma.mma_async.sync.aligned.m64n{columns}k{_TERMS}.f32.{kind}.{kind}"


#: End a group of products, and wait for all.
_COMMIT, _WAIT = "wgmma.commit_group.sync.aligned;", "wgmma.wait_group.sync.aligned 0;"
