"""All gradients of attention by five products, for GPUs of compute capability 9.0.

A block has keys, as in `kernels.GroupByKeys`, whose warp groups compute the cotangents of logits. They store these in shared memory, where
one more warp group multiplies them by the block's keys. Threads of the warp group that copies add the products to the gradient of Q in a
workspace, in float32. Blocks add to the queries of a tile one after another, in the order of their keys, so that every run rounds alike: a
counter of the tile has the number of the block whose turn it is. Blocks take their places in the order in which they begin, so that each
waits only for those that run.

The workspace has the numbers of queries, the tiles of sums, their counters, and a counter of blocks, in this order. Sums of a tile lie as
the threads have them: by columns of eight, then by threads. The last dispatch scales, rounds and stores them.
"""

from __future__ import annotations

from dataclasses import dataclass

from volta_fn.compiler.attention import Attention, Rows
from volta_fn.runtime.llvm.text import Value, i64
from volta_fn.targets.nvidia.attention.groups import BOX, GroupSchedule
from volta_fn.targets.nvidia.attention.kernels import (
    MOST_QUERIES,
    OPERANDS,
    TO_K,
    TO_Q,
    TO_V,
    WORK,
    AnySchedule,
    GroupByKeys,
    key_dispatch,
    padded,
    query_dispatch,
    statistics_dispatch,
    workspace,
)
from volta_fn.targets.nvidia.attention.tiles import FRAGMENT, Fragments, Sums
from volta_fn.targets.nvidia.kernel import MINUS_INFINITY, KernelFunction, KernelHeader, f32, i32, kernel_dispatch
from volta_fn.targets.nvidia.matmul.problem import ROW, UNIT
from volta_fn.targets.nvidia.matrix_units import BARRIER, ROWS, GroupProduct, GroupStep, SharedMatrix, TilePipeline
from volta_fn.targets.wgsl.routine import Dispatch

#: Tiles of cotangents of logits in shared memory.
_BUFFERS = 2

#: Terms of one `wgmma`, and the alignment of swizzled rows.
_TERMS, _ALIGNMENT = 16, 1024

#: The most bytes of the sums of heads whose blocks take turns, so that a GPU's cache has them.
_CACHED = 34e6

#: Threads of a block of the last dispatch.
_THREADS = 256


@dataclass(frozen=True)
class JointSchedule(GroupSchedule):
    """A division of the work of a block that computes all gradients."""

    tile: int = MOST_QUERIES
    stages: int = 3
    retained: bool = True
    #: Registers of a thread that copies or adds, and of one of the last warp group.
    least: int = 24
    last: int = 72
    #: Threads that add, each of which has a tile of sums.
    adders: int = 3

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 128 * (self.groups + 2)

    @property
    def registers(self) -> tuple[int, int]:
        """Registers of a thread that copies, and of one that multiplies."""
        return self.least, (512 - self.least - self.last) // self.groups // 8 * 8

    def result_bytes(self, width: int) -> int:
        """Return no bytes: results lie where tiles were."""
        return 0

    def slopes(self, width: int, operands: int, extra: int) -> int:
        """Return where tiles of cotangents of logits begin.

        Tiles of sums follow.
        """
        return -(-(super().shared(width, operands, extra) + BARRIER * (1 + 2 * (_BUFFERS + self.adders))) // _ALIGNMENT) * _ALIGNMENT

    def shared(self, width: int, operands: int, extra: int) -> int:
        """Return the bytes of shared memory."""
        return self.slopes(width, operands, extra) + _BUFFERS * self.rows * ROW + self.adders * 4 * self.tile * width


# The workspace.


def _tiles(a: Attention) -> int:
    """Return the tiles of queries of a head."""
    return padded(a) // MOST_QUERIES


def _tile_bytes(a: Attention) -> int:
    """Return the bytes of the sums of a tile."""
    return 4 * MOST_QUERIES * a.q.width


def _counters(a: Attention) -> tuple[int, int]:
    """Return where counters begin, and how many there are."""
    tiles = a.stack * _tiles(a)
    return workspace(a) + tiles * _tile_bytes(a), tiles + 1


def joint_workspace(a: Attention) -> int:
    """Return the bytes of the workspace."""
    start, count = _counters(a)
    return -(-(start + 4 * count) // UNIT) * UNIT


# The kernel of all gradients.


class _Joint(GroupByKeys):
    """The kernel under construction."""

    schedule: JointSchedule

    def place(self) -> tuple[Value, Value]:
        """Return the block's number among those of a head of K and V, and the head.

        Blocks of several heads alternate, and those of other heads follow.
        """
        f, a, schedule = self.f, self.a, self.schedule
        start, count = _counters(a)
        self.slopes_start = schedule.slopes(self.width, len(self.row_arrays), self.extra_bytes // schedule.tile)
        self.sums_start = self.slopes_start + _BUFFERS * schedule.rows * ROW
        barriers = self.slopes_start - BARRIER * 2 * (_BUFFERS + schedule.adders)
        self.slopes = TilePipeline(f, self.base, barriers, _BUFFERS)
        self.sums = TilePipeline(f, self.base, barriers + BARRIER * 2 * _BUFFERS, schedule.adders)
        shared = f.shared(i32(barriers - BARRIER))
        with f.only_if(f.equals(f.thread, 0)):
            counter = f.further(f.bindings[4], i64(start + 4 * (count - 1)))
            (number,) = f.ptx("atom.relaxed.gpu.global.add.u32 $0, [$1], 1;", f.cast("ptrtoint", counter, "i64"), results=["i32"])
            f.store(number, shared, 4)
        f.synchronise()
        number = f.intrinsic("llvm.nvvm.shfl.sync.idx.i32", "i32", i32(-1), f.load("i32", shared, 4), i32(0), i32(31))
        blocks, together = -(-a.keys // schedule.rows), self._heads_together()
        heads, inside = f.divided(number, blocks * together)
        position, head = f.divided(inside, together)
        return position, f.plus(f.times(heads, together), head)

    def position(self, tile_number: Value) -> tuple[Value, Value]:
        """Return the head of a tile, and its first query.

        The last queries come first, which all blocks of a head see, and of each tile all heads that share the block's keys. So under a
        causal mask no block waits for one with more tiles, but for what it has done in as many.
        """
        f = self.f
        tile, head = f.divided(tile_number, self.a.shared)
        return f.plus(self.head, head), f.times(f.minus(i32(_tiles(self.a) - 1), tile), MOST_QUERIES)

    def middle(self) -> tuple[Value | None, bool]:
        """Return the tile at which masks begin, and that they do not end there."""
        f, a = self.f, self.a
        if not a.causal:
            return None, False
        seen = f.minus(i32(_tiles(a)), f.umin(self.first_tile_seen_whole(), i32(_tiles(a))))
        return f.times(seen, a.shared), False

    def _heads_together(self) -> int:
        """Return how many heads of K and V alternate."""
        a = self.a
        each = a.shared * _tiles(a) * _tile_bytes(a)
        return max(n for n in range(1, a.groups + 1) if a.groups % n == 0 and (n == 1 or n * each <= _CACHED))

    def begin_barriers(self) -> None:
        """Initialise the barriers of cotangents of logits, and of sums."""
        self.slopes.begin(4, 4 * self.schedule.groups)
        self.sums.begin(1, 4)

    # the warp groups that have keys

    def begin_tile(self, tile_number: Value) -> None:
        """Wait until there is room for the tile's cotangents of logits."""
        stage, parity = self._buffer(tile_number)
        self.slopes.wait_for_room(stage, parity)

    def _buffer(self, tile_number: Value) -> tuple[Value, Value]:
        """Return the buffer of a tile, and the parity of its phase."""
        number, stage = self.f.divided(tile_number, _BUFFERS)
        return stage, self.f.remainder(number, 2)

    def visible(self, weights: Sums) -> Sums:
        """Return products of the block's keys, or minus infinity where there is no key.

        What they give would be multiplied by zeros, and may be infinite.
        """
        f, a = self.f, self.a
        if a.keys % self.schedule.rows == 0:
            return weights
        row = f.plus(self.first, self.first_row, self.g)
        exist = [f.below(f.plus(row, i32(8 * half)), a.keys) for half in range(2)]
        return [[[f.select(exist[k // 2], x, MINUS_INFINITY) for k, x in enumerate(columns)] for columns in weights[0]]]

    def share(self, tile_number: Value, slopes: Fragments) -> None:
        """Store the cotangents of a tile's logits, whose rows are keys."""
        f = self.f
        stage, _ = self._buffer(tile_number)
        start = f.plus(f.times(stage, self.schedule.rows * ROW), i32(self.slopes_start))
        row = f.plus(self.first_row, self.g)
        place = f.plus(start, f.times(row, ROW), f.times(self.g, UNIT), f.times(self.t, 4))
        for u, words in enumerate(slopes[0]):
            for k, word in enumerate(words):
                unit = f.exclusive_or(place, UNIT * (2 * u + k // 2))
                f.store(word, f.shared(f.plus(unit, i32(8 * ROW * (k % 2)))), 4)
        f.ptx("fence.proxy.async.shared::cta;")
        f.synchronise_warp()
        self.slopes.fill(stage)

    def begin_results(self) -> int:
        """Return where results pass through shared memory: where tiles were.

        Both warp groups have done with them then.
        """
        self.f.ptx(f"bar.sync 1, {128 * self.schedule.groups};")
        return self.column_arrays[0].offset

    # the warp group that multiplies by keys

    def divide_groups(self) -> None:
        """Append what the last warp group does."""
        f = self.f
        f.do(f"br {f.below(f.warp, 4 * (self.schedule.groups + 1))}, label %keys, label %last")
        f.label("last")
        f.ptx(f"setmaxnreg.dec.sync.aligned.u32 {self.schedule.last};")
        self._multiply_by_keys()
        f.do("br label %end")
        f.label("keys")

    def _multiply_by_keys(self) -> None:
        """Append the loop that multiplies cotangents of logits by keys."""
        f, schedule, keys = self.f, self.schedule, self.row_arrays[0]
        key_matrix = f.descriptor(self.tile_address(keys, i32(0)), keys.tile * ROW)
        product = GroupProduct(self.dtype, BOX, left_across=True, right_across=True)
        places = [(_TERMS * k * ROW) >> 4 for k in range(schedule.rows // _TERMS)]
        thread = f.times(f.remainder(f.thread, 128), UNIT)
        f.wait_for_barrier(self.begun, i32(0))

        def multiply_tile(tile_number: Value, _: list[Value]) -> None:
            stage, parity = self._buffer(tile_number)
            self.slopes.wait(stage, parity)
            slope_matrix = f.descriptor(f.plus(self.base, i32(self.slopes_start), f.times(stage, schedule.rows * ROW)), UNIT)
            round_, buffer = f.divided(tile_number, schedule.adders)
            place = f.plus(i32(self.sums_start), f.times(buffer, _tile_bytes(self.a)), thread)
            for box in range(self.width // BOX):
                begin = box * keys.tile * ROW >> 4
                steps = [GroupStep(SharedMatrix(slope_matrix, further), SharedMatrix(key_matrix, begin + further)) for further in places]
                sums = self.await_products(product.begin(f, steps))
                if not box:
                    self.sums.wait_for_room(buffer, f.remainder(round_, 2))
                for n in range(BOX // 8):
                    offset = 128 * UNIT * (box * BOX // 8 + n)
                    f.store(f.vector(sums[4 * n : 4 * n + 4]), f.shared(f.plus(place, i32(offset))), 16)
            self.slopes.release(stage)
            f.ptx("fence.proxy.async.shared::cta;")
            f.synchronise_warp()
            self.sums.fill(buffer)

        f.repeat(i32(0), self.count, i32(1), [], multiply_tile)

    # the threads that add

    def assist(self) -> None:
        """Append what threads do that add tiles of sums to those in the workspace.

        Each has every second tile, or third.
        """
        f, schedule = self.f, self.schedule
        buffer = f.minus(f.warp, i32(1))
        adds = f.binary("and", f.equals(f.lane, 0), f.below(buffer, f.umin(self.count, i32(schedule.adders))))
        source = f.plus(self.base, i32(self.sums_start), f.times(buffer, _tile_bytes(self.a)))

        def add_tile(tile_number: Value, state: list[Value]) -> list[Value]:
            (parity,) = state
            self.sums.wait(buffer, parity)
            self._add_sums(tile_number, source, buffer)
            return [f.exclusive_or(parity, 1)]

        with f.only_if(adds):
            f.repeat(buffer, self.count, i32(schedule.adders), [i32(0)], add_tile)

    def _add_sums(self, tile_number: Value, source: Value, buffer: Value) -> None:
        """Add a tile of sums to those in the workspace, in the block's turn.

        The first block stores them. The buffer is free when it has been read, before the next block may add.
        """
        f, a, number = self.f, self.a, self.block.number
        start, _ = _counters(a)
        head, query = self.position(tile_number)
        tile = f.plus(f.times(head, _tiles(a)), f.quotient(query, MOST_QUERIES))
        counter = f.cast("ptrtoint", f.element(f.further(f.bindings[4], i64(start)), f.widened_index(tile), 4), "i64")
        target = f.further(f.bindings[4], f.binary("add", f.wide_times(tile, _tile_bytes(a)), i64(workspace(a))))
        operands = f.cast("ptrtoint", target, "i64"), source, i32(_tile_bytes(a))
        with f.only_if(f.equals(number, 0)):
            f.ptx("cp.async.bulk.global.shared::cta.bulk_group [$0], [$1], $2;", *operands)
        with f.only_if(f.compare("icmp ne", number, i32(0))):
            f.wait_for_count(counter, number)
            f.ptx("fence.proxy.async;")
            f.ptx("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [$0], [$1], $2;", *operands)
        f.ptx("cp.async.bulk.commit_group;")
        f.ptx("cp.async.bulk.wait_group.read 0;")
        self.sums.release(buffer)
        f.ptx("cp.async.bulk.wait_group 0;")
        f.ptx("fence.proxy.async;")
        f.count(counter)


def rounding_dispatch(a: Attention) -> Dispatch:
    """Return the dispatch that scales, rounds and stores the gradient of Q.

    A thread has eight columns of two rows.
    """
    f = KernelFunction(0, 2, _THREADS)
    each = ROWS // 2 * (a.q.width // 8)
    number = f.plus(f.times(f.special("ctaid.x"), _THREADS), f.thread)
    tile, inside = f.divided(number, each)
    column, rows = f.divided(inside, ROWS // 2)
    warp, g = f.divided(rows, 8)
    head, position = f.divided(tile, _tiles(a))
    with f.only_if(f.below(head, a.stack)):
        sums = f.binary("add", f.wide_times(tile, _tile_bytes(a)), i64(workspace(a)))
        place = f.plus(f.times(column, 128 * UNIT), f.times(rows, 4 * UNIT))
        base = f.further(f.further(f.bindings[0], sums), place)
        quads = [f.elements(f.load("<4 x float>", f.further(base, i64(UNIT * t)), 16)) for t in range(4)]
        target = f.offset(head, a.q.heads)
        for half in range(2):
            query = f.plus(f.times(position, MOST_QUERIES), f.times(warp, FRAGMENT), g, i32(8 * half))
            scaled = f.vector([f.fmul(x, f32(a.scale)) for quad in quads for x in quad[2 * half : 2 * half + 2]])
            words = f.cast("bitcast", f.rounded(scaled, a.q.dtype), "<4 x i32>")
            with f.only_if(f.below(query, a.queries)):
                offset = f.binary("add", f.wide_times(query, a.q.step), f.widened_index(f.times(column, 8)))
                f.store(words, f.element(f.bindings[1], f.binary("add", target, offset), 2), 16)
    blocks = -(-a.stack * _tiles(a) * each // _THREADS)
    return kernel_dispatch(KernelHeader(_THREADS, 0), (WORK, TO_Q), 1, f.text(), blocks)


# All dispatches.

#: The fewest queries with which the kernel is faster than two: without a mask, under a causal one, and under that with shared keys. With
#: fewer tiles blocks wait for each other too much of their time.
_FEWEST, _FEWEST_CAUSAL, _FEWEST_SHARED = 1024, 4096, 8192


def is_worthwhile(a: Attention) -> bool:
    """Return whether there are queries enough for the kernel."""
    least = _FEWEST if not a.causal else _FEWEST_SHARED if a.shared > 1 else _FEWEST_CAUSAL
    return a.queries >= least


def gradient_dispatches(
    a: Attention, cotangent: Rows, by_queries: AnySchedule, by_keys: AnySchedule
) -> tuple[Dispatch, Dispatch, Dispatch]:
    """Return all dispatches.

    Operands are q, k, v, the result, its statistics (see `forward_dispatch`) and cotangent; results are the gradients of q, k and v. There
    is a workspace.
    """
    if isinstance(by_keys, JointSchedule):
        joint = _Joint(a, cotangent, by_keys).dispatch((*OPERANDS, TO_K, TO_V), 3)
        return statistics_dispatch(a, cotangent, _counters(a)), joint, rounding_dispatch(a)
    return statistics_dispatch(a, cotangent), query_dispatch(a, cotangent, by_queries), key_dispatch(a, cotangent, by_keys)


def gradient_workspace(a: Attention, by_keys: AnySchedule) -> int:
    """Return the bytes of the workspace of all dispatches."""
    return joint_workspace(a) if isinstance(by_keys, JointSchedule) else workspace(a)
