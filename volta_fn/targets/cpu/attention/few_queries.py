"""Attention of few queries, as a decoder's step has it.

A task has the heads that share keys and values, all queries of these, and a chunk of the keys. Nothing is packed: vectors of features are
multiplied as they lie in memory, and each row of keys and of values serves all queries of its heads. The logits of a chunk stay on the
stack. Keys before the first and after the last that a query sees are not read. If there are several chunks, a launch before finds those
two keys, so that chunks divide what lies between them, and a launch after combines the chunks.

Rows are prefetched some kilobytes ahead: values while the last keys are multiplied, and the next group's keys during the last values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from volta_fn.compiler.attention import Attention, Rows
from volta_fn.dtypes import accumulator
from volta_fn.primitives.call import Window
from volta_fn.primitives.formulas.exponential import exp
from volta_fn.runtime.llvm.host import host
from volta_fn.runtime.llvm.text import Function, Value, i64, least, vector_of
from volta_fn.targets.cpu.attention.blocks import (
    BlockSizes,
    LogitBlock,
    RowBlock,
    at,
    copy_rows,
    each_vector,
    has_pairs,
    head_address,
    in_pairs,
    logit_arrays,
    number,
)
from volta_fn.targets.cpu.attention.kernels import State, clear, exponentiate, is_blind, store_results
from volta_fn.targets.cpu.matmul.gemv import LaneSums
from volta_fn.targets.cpu.matmul.micro_kernel import CACHE_LINE, compute_type, first_lanes, prefetch
from volta_fn.targets.cpu.matmul.micro_kernel import read as read_lanes
from volta_fn.targets.cpu.matmul.packing import across_rows
from volta_fn.targets.cpu.routine import BUFFERS, Routine, RoutineWriter, buffer_pointer
from volta_fn.targets.cpu.scalars.values import Lanes

#: Bytes of keys and values that a task reads, and of logits or sums that its stack holds.
_TASK_BYTES, _STACK_BYTES = 1 << 18, 1 << 17
#: Estimated nanoseconds for a byte of keys and values, for a multiplication of vectors, and for a look whether a key is seen.
_BYTE, _STEP, _SCAN = 0.03, 0.1, 0.2
#: Bytes of a range of keys.
_RANGE_BYTES = 16
#: Keys whose rows are read for one group of heads before the next, where groups are side by side in memory.
_BLOCK = 64
#: Bytes by which rows are prefetched.
_AHEAD = 16 << 10
#: Queries whose products with a row are summed together, and vectors of a row up to which their multiplications are written out.
_TOGETHER, _WRITTEN_OUT = 4, 8
#: Keys of an iteration: with many more, prefetches come in bursts that the CPU waits for.
_SEVERAL = 4

_CHUNK = "attention_chunk"
_NULL, _FALSE = Value("ptr", "null"), Value("i1", "false")


class _Keys(NamedTuple):
    """A range of keys: the first, and how many."""

    first: Value
    size: Value


class _RowArray(NamedTuple):
    """Keys or values, and the address of those of a head."""

    rows: Rows
    head: Value


class _Strip(NamedTuple):
    """Some rows of sums, and vectors of columns from a column on."""

    rows: list[Value]
    column: Value
    vectors: int


def forward(a: Attention) -> Routine:
    """Return the routine of attention; see `kernels.forward` for operands and results."""
    return _FewQueries(a).routine()


class _FewQueries:
    """The writer of the routine."""

    def __init__(self, a: Attention) -> None:
        self.a, self.is_paired = a, has_pairs(a)
        work = compute_type(accumulator(a.q.dtype))
        assert work is not None
        self.q, self.k = (in_pairs(a.q), in_pairs(a.k)) if self.is_paired else (a.q, a.k)
        panel = 2 * work.lanes
        row_bytes = (work.lanes + panel + a.q.width + a.v.width) * work.itemsize  # of each query's, on the stack
        groups = _adjacent_groups(a)
        #: Groups of a task, which share keys and values each, and its heads.
        self.bundle = groups if groups * a.shared * a.queries * row_bytes <= _STACK_BYTES else 1
        self.heads = self.bundle * a.shared
        key_bytes = self.bundle * (a.k.width * a.k.dtype.itemsize + a.v.width * a.v.dtype.itemsize)
        most_keys = min(_TASK_BYTES // key_bytes, _STACK_BYTES // (self.heads * a.queries * work.itemsize))
        panels = -(-a.keys // panel)
        #: Parts of the keys, and the sizes of a block of logits: those of a head with a part of the keys.
        self.chunks = -(-panels // max(1, most_keys // panel))
        self.b = BlockSizes(work._replace(group=2 if self.is_paired else 1), 1, a.queries, -(-panels // self.chunks) * panel)
        #: Keys by which rows are prefetched: whole vectors of logits.
        self.ahead = max(1, 2 * _AHEAD // key_bytes // work.lanes) * work.lanes
        #: Whether the last vector of keys lacks some.
        self.is_ragged = a.keys % panel > 0
        self.writer = RoutineWriter("attention", a.operands + (2 if self.chunks == 1 else 3))

    def routine(self) -> Routine:
        """Write the code."""
        a, b = self.a, self.b
        bundles = a.stack // self.heads
        bytes_ = a.groups * a.keys * (a.k.width * a.k.dtype.itemsize + a.v.width * a.v.dtype.itemsize)
        cost = max(bytes_ * _BYTE, a.products / b.work.lanes * _STEP)
        self._write_chunk()
        if self.chunks == 1:
            self.writer.launch(bundles, cost, self._whole_task)
            return self.writer.routine()
        sums = bundles * self.chunks * self._elements * b.work.itemsize
        ranges = -(-sums // _RANGE_BYTES)
        if self._hides_keys:
            self.writer.launch(bundles, bundles * a.keys * _SCAN, lambda f, pointers, task: self._range_task(f, pointers, task, ranges))
        self.writer.launch(bundles * self.chunks, cost, lambda f, pointers, task: self._chunk_task(f, pointers, task, bundles, ranges))
        self.writer.launch(bundles, sums * _BYTE, self._combining_task)
        return self.writer.routine((ranges + bundles) * _RANGE_BYTES)

    # sums in memory

    @property
    def _padded(self) -> int:
        """Numbers of a row of sums."""
        return self.b.padded(self.a.v.width)

    @property
    def _elements(self) -> int:
        """Numbers of a chunk's sums: of values, partial totals, and largest logits."""
        rows = self.heads * self.a.queries
        return rows * (self._padded + self.b.work.lanes) + self.b.padded(rows)

    def _state(self, f: Function, memory: Value, head: Value, queries: Value = _NULL, logits: Value = _NULL) -> State:
        """Emit the addresses of what belongs to a head of a task; `memory` has the sums."""
        b, lanes = self.b, self.b.work.lanes
        rows, first = self.heads * b.queries, f.times(head, b.queries)

        def part(base: Value, start: int, width: int) -> Value:
            return f.at(base, b.work.type, f.plus(f.times(first, width), i64(start)))

        return State(
            queries if queries is _NULL else part(queries, 0, b.padded(self.q.width)),
            logits if logits is _NULL else part(logits, 0, b.pitch),
            part(memory, 0, self._padded),
            part(memory, rows * (self._padded + lanes), 1),
            part(memory, rows * self._padded, lanes),
        )

    def _each_head(self, f: Function, body: Callable[[Value], None]) -> None:
        f.loop(i64(0), i64(self.heads), 1, [], lambda head, _: body(head), nonempty=True)

    def _block(self, f: Function, pointers: list[Value], head: Value) -> LogitBlock:
        """Emit the block of logits of a head of the array, from the first key on."""
        return LogitBlock(self.a, self.b, *logit_arrays(f, self.a, pointers, head), i64(0), i64(0), i64(self.b.keys))

    # tasks

    def _whole_task(self, f: Function, pointers: list[Value], bundle: Value) -> None:
        memory = f.alloca(self.b.work.type, self._elements)
        seen = self._seen(f, pointers, bundle) if self._hides_keys else self._all_keys
        f.run(_CHUNK, BUFFERS, bundle, *seen, memory)
        self._finish(f, pointers, bundle, memory, lambda: f.run(_CHUNK, BUFFERS, bundle, *self._all_keys, memory))

    def _range_task(self, f: Function, pointers: list[Value], bundle: Value, ranges: int) -> None:
        """Store the range of keys that a bundle's queries see, behind the sums."""
        for n, key in enumerate(self._seen(f, pointers, bundle)):
            f.store(key, f.at(self._range(f, pointers, bundle, ranges), "i64", i64(n)), 8)

    def _range(self, f: Function, pointers: list[Value], bundle: Value, ranges: int) -> Value:
        return f.at(pointers[-1], "[2 x i64]", f.plus(bundle, i64(ranges)))

    def _chunk_task(self, f: Function, pointers: list[Value], task: Value, bundles: int, ranges: int) -> None:
        chunk, bundle = f.divided(task, bundles)
        seen = self._all_keys
        if self._hides_keys:
            low, high = (f.load("i64", f.at(self._range(f, pointers, bundle, ranges), "i64", i64(n)), 8) for n in range(2))
            seen = low, high
        f.run(_CHUNK, BUFFERS, bundle, *self._part(f, seen, chunk), self._partial(f, pointers, bundle, chunk))

    def _part(self, f: Function, span: tuple[Value, Value], chunk: Value) -> tuple[Value, Value]:
        """Emit a chunk's part of a range of keys, of whole panels."""
        low, high = span
        panels = f.quotient(f.minus(high, low), self.b.panel)
        step = f.times(f.quotient(f.plus(panels, i64(self.chunks - 1)), self.chunks), self.b.panel)
        begin = least(f, f.plus(low, f.binary("mul", chunk, step)), high)
        return begin, least(f, f.plus(begin, step), high)

    def _partial(self, f: Function, pointers: list[Value], bundle: Value, chunk: Value) -> Value:
        """Emit the address of the sums of a chunk in the workspace."""
        return f.at(pointers[-1], f"[{self._elements} x {self.b.work.type}]", f.plus(f.times(bundle, self.chunks), chunk))

    def _combining_task(self, f: Function, pointers: list[Value], bundle: Value) -> None:
        memory = f.alloca(self.b.work.type, self._elements)
        self._combine(f, pointers, bundle, memory)

        def again() -> None:
            def chunk_of(chunk: Value, _: list[Value]) -> None:
                f.run(_CHUNK, BUFFERS, bundle, *self._part(f, self._all_keys, chunk), self._partial(f, pointers, bundle, chunk))

            f.loop(i64(0), i64(self.chunks), 1, [], chunk_of, nonempty=True)
            self._combine(f, pointers, bundle, memory)

        self._finish(f, pointers, bundle, memory, again)

    def _finish(self, f: Function, pointers: list[Value], bundle: Value, memory: Value, again: Callable[[], None]) -> None:
        """Emit the results of sums.

        These are computed `again` before if hidden keys count for a query.
        """
        first, out = f.times(bundle, self.heads), self.a.operands

        def check(head: Value, values: list[Value]) -> list[Value]:
            block = self._block(f, pointers, f.plus(first, head))
            return [f.binary("or", values[0], is_blind(f, block, self._state(f, memory, head)))]

        if self.a.may_be_blind:
            (blind,) = f.loop(i64(0), i64(self.heads), 1, [_FALSE], check, nonempty=True)
            f.branch(blind, again)

        def store(head: Value) -> None:
            number_ = f.plus(first, head)
            store_results(f, self._block(f, pointers, number_), self._state(f, memory, head), pointers[out : out + 2], number_)

        self._each_head(f, store)

    def _combine(self, f: Function, pointers: list[Value], bundle: Value, memory: Value) -> None:
        """Emit the sums of all chunks, relative to the largest of their logits."""
        work, lanes = self.b.work, self.b.work.lanes

        def head_of(head: Value) -> None:
            total = self._state(f, memory, head)
            clear(f, self._block(f, pointers, head), total)

            def chunk_of(chunk: Value, _: list[Value]) -> None:
                part = self._state(f, self._partial(f, pointers, bundle, chunk), head)
                f.loop(i64(0), i64(self.b.queries), 1, [], lambda row, _: add(part, row), nonempty=True)

            def add(part: State, row: Value) -> None:
                old, new = (f.load(work.type, f.at(state.largest, work.type, row), work.itemsize) for state in (total, part))
                largest = f.select(f.compare("fcmp ogt", new, old), new, old)
                f.store(largest, f.at(total.largest, work.type, row), work.itemsize)
                before, now = (Lanes(f, f.splat(exp(Lanes(f, f.binary("fsub", x, largest))).value, lanes)) for x in (old, new))
                for to, source, width in ((total.sums, part.sums, self._padded), (total.totals, part.totals, lanes)):

                    def vector(column: Value, _: object, to: Value = to, source: Value = source, width: int = width) -> None:
                        offset = f.plus(f.times(row, width), column)
                        x, y = (Lanes(f, f.load(work.vector, f.at(base, work.type, offset), work.itemsize)) for base in (to, source))
                        f.store((x * before + y * now).value, f.at(to, work.type, offset), work.itemsize)

                    each_vector(f, width, lanes, vector)

            f.loop(i64(0), i64(self.chunks), 1, [], chunk_of, nonempty=True)

        self._each_head(f, head_of)

    # a chunk of the keys

    def _write_chunk(self) -> None:
        """Write the function of a bundle's sums over a range of keys, of whole panels."""
        a, b, work = self.a, self.b, self.b.work
        bundle, low, high, memory = Value("i64", "%bundle"), Value("i64", "%low"), Value("i64", "%high"), Value("ptr", "%memory")
        f = Function(self.writer.module, _CHUNK, [BUFFERS, bundle, low, high, memory], "internal void")
        pointers = [buffer_pointer(f, n) for n in range(a.operands)]
        rows, first = self.heads * b.queries, f.times(bundle, self.heads)
        queries, logits = f.alloca(work.type, rows * b.padded(self.q.width)), f.alloca(work.type, rows * b.pitch)

        def begin(head: Value) -> None:
            state, number_ = self._state(f, memory, head, queries), f.plus(first, head)
            clear(f, self._block(f, pointers, number_), state)
            source = RowBlock(self.q, head_address(f, pointers[0], self.q, number_), i64(0))
            copy_rows(f, b, source, state.queries, 1.0 if self.is_paired else a.scale)

        self._each_head(f, begin)
        keys = _Keys(low, f.minus(high, low))

        def attend() -> None:
            self._multiply(f, pointers, first, keys, queries, logits)

            def weigh(head: Value) -> None:
                block = self._block(f, pointers, f.plus(first, head))._replace(key=low, width=keys.size)
                state = self._state(f, memory, head, logits=logits)
                block.finish(f, state.logits)
                exponentiate(f, block, state)

            self._each_head(f, weigh)
            self._add_values(f, pointers, first, keys, logits, memory)

        f.branch(f.compare("icmp sgt", keys.size, i64(0)), attend)
        f.finish()

    @property
    def _hides_keys(self) -> bool:
        """Whether there may be keys that no query sees."""
        return bool(self.a.masks) or self.a.window != Window()

    @property
    def _all_keys(self) -> tuple[Value, Value]:
        """The range of all keys, in whole panels."""
        return i64(0), i64(-(-self.a.keys // self.b.panel) * self.b.panel)

    def _seen(self, f: Function, pointers: list[Value], bundle: Value) -> tuple[Value, Value]:
        """Emit the range of keys that queries of a bundle see, of whole panels."""
        a, b = self.a, self.b
        first, (start, end) = f.times(bundle, self.heads), self._all_keys
        heads = self.heads if any(mask.heads.strides[-1] for mask in a.masks) else 1

        def panel_of(key: Value, carried: list[Value]) -> list[Value]:
            width = least(f, f.minus(i64(a.keys), key), i64(b.panel))

            def head_of(head: Value, seen: list[Value]) -> list[Value]:
                block = self._block(f, pointers, f.plus(first, head))._replace(key=key, width=width)
                return [f.binary("or", seen[0], block.is_seen(f))]

            (seen,) = f.loop(i64(0), i64(heads), 1, [_FALSE], head_of, nonempty=True)
            low, high = carried
            return [f.select(seen, least(f, low, key), low), f.select(seen, f.plus(key, i64(b.panel)), high)]

        low, high = f.loop(start, end, b.panel, [end, start], panel_of, nonempty=True)
        return low, high

    def _each_group(self, f: Function, keys: _Keys, body: Callable[[Value, Value, Value], None]) -> None:
        """Emit ``body(group, begin, end)`` for blocks of keys and the task's groups."""

        def block_of(begin: Value, _: list[Value]) -> None:
            end = least(f, f.plus(begin, i64(block)), keys.size)
            f.loop(i64(0), i64(self.bundle), 1, [], lambda group, _: body(group, begin, end), nonempty=True)

        block = -(-_BLOCK // self.b.panel) * self.b.panel
        f.loop(i64(0), keys.size, block, [], block_of, nonempty=True)

    def _rows(self, f: Function, array: _RowArray, keys: _Keys, key: Value, count: int) -> list[Value]:
        """Emit the addresses of the rows of neighbouring keys, the last one's beyond it."""
        rows, index = array.rows, f.plus(keys.first, key)
        if self.is_ragged:
            last = i64(rows.count - 1)
            numbers = [least(f, f.plus(index, i64(n)), last) for n in range(count)]
            return [at(f, array.head, rows.dtype.itemsize, f.times(number_, rows.step)) for number_ in numbers]
        start = at(f, array.head, rows.dtype.itemsize, f.times(index, rows.step))
        return [at(f, start, rows.dtype.itemsize, i64(n * rows.step)) for n in range(count)]

    def _later(
        self, f: Function, array: _RowArray, following: _RowArray, keys: _Keys, key: Value, *, continues: bool
    ) -> tuple[Value, Value]:
        """Emit the address of what is read some keys later, and its stride in bytes.

        It is in the same array, or in the one that is read next: from the first of these keys on, or, if it `continues`, behind the last.
        """
        later = f.plus(key, i64(self.ahead))
        inside = f.compare("icmp slt", later, keys.size)
        strides = [i64(x.rows.step * x.rows.dtype.itemsize) for x in (array, following)]
        stride = strides[0] if strides[0] == strides[1] else f.select(inside, *strides)
        number_ = f.plus(keys.first, later if continues else f.select(inside, later, f.minus(later, keys.size)))
        return f.at(f.select(inside, array.head, following.head), "i8", f.binary("mul", number_, stride)), stride

    def _array(self, f: Function, pointers: list[Value], side: int, head: Value) -> _RowArray:
        """Emit the keys, 1, or values, 2, of a head of the array."""
        rows = self.k if side == 1 else self.a.v
        return _RowArray(rows, head_address(f, pointers[side], rows, head))

    # products with keys

    def _multiply(self, f: Function, pointers: list[Value], first: Value, keys: _Keys, queries: Value, logits: Value) -> None:
        """Emit the scaled products of all queries of a task with keys.

        Vectors of products with some keys wait on the stack until there are as many as a vector has lanes.
        """
        a, b, work = self.a, self.b, self.b.work
        rows, several = a.shared * a.queries, min(_SEVERAL, work.lanes)
        parts = work.lanes // several
        waiting, factor = f.alloca(work.vector, rows * parts), f.splat(number(work, a.scale), work.lanes)

        def group_of(group: Value, begin: Value, end: Value) -> None:
            head = f.plus(first, f.times(group, a.shared))
            array, following = (self._array(f, pointers, side, head) for side in (1, 2))
            row_numbers = [f.plus(f.times(group, rows), i64(n)) for n in range(rows)]

            def some_keys(key: Value, part: Value) -> None:
                addresses, later = self._rows(f, array, keys, key, several), self._later(f, array, following, keys, key, continues=False)
                for start in range(0, rows, _TOGETHER):
                    query_rows = [
                        f.at(queries, work.type, f.times(n, b.padded(self.k.width))) for n in row_numbers[start : start + _TOGETHER]
                    ]
                    for n, product in enumerate(self._dot_products(f, addresses, query_rows, None if start else later)):
                        f.store(product, f.at(waiting, work.vector, f.plus(part, i64((start + n) * parts))), work.itemsize)

            def vector(key: Value, _: list[Value]) -> None:
                f.loop(i64(0), i64(parts), 1, [], lambda part, _: some_keys(f.plus(key, f.times(part, several)), part), nonempty=True)
                for n, row in enumerate(row_numbers):
                    sums = LaneSums(f, work)
                    for part in range(parts):
                        product = f.load(work.vector, f.at(waiting, work.vector, i64(n * parts + part)), work.itemsize)
                        sums.add(product, work.lanes // several)
                    total = f.binary("fmul", sums.total, factor) if self.is_paired else sums.total
                    f.store(total, f.at(logits, work.type, f.plus(f.times(row, b.pitch), key)), work.itemsize)

            f.loop(begin, end, work.lanes, [], vector, nonempty=True)

        self._each_group(f, keys, group_of)

    def _dot_products(self, f: Function, keys: list[Value], queries: list[Value], later: tuple[Value, Value] | None) -> list[Value]:
        """Emit for each query a vector with its products with some keys.

        Its lanes have yet to be added up.
        """
        work, width = self.b.work, self.k.width
        sums = [LaneSums(f, work) for _ in queries]
        whole = width // work.lanes
        written_out = -(-width // work.lanes) <= _WRITTEN_OUT
        mask = first_lanes(width % work.lanes, work.lanes) if width % work.lanes else None

        def query(pointer: Value, column: Value) -> Value:
            return f.load(vector_of(work.element, work.lanes), f.at(pointer, work.type, column), work.itemsize)

        def add(totals: list[Value], key: Value, column: Value, query_vectors: list[Value], mask: Value | None = None) -> list[Value]:
            address = at(f, key, self.k.dtype.itemsize, column)
            x = read_lanes(f, work.packed(1) if work.group > 1 else work, self.k.dtype, address, work.lanes, mask)
            return [work.multiply_add(f, y, x, total) for y, total in zip(query_vectors, totals, strict=True)]

        columns = [i64(n * work.lanes) for n in range(whole + (mask is not None))]
        held = [[query(pointer, column) for pointer in queries] for column in columns] if written_out else []
        for n, key in enumerate(keys):
            if later is not None:
                self._prefetch(f, later, n, self.k)
            totals = [work.zero()] * len(queries)
            if written_out:
                for number_, (column, query_vectors) in enumerate(zip(columns, held, strict=True)):
                    totals = add(totals, key, column, query_vectors, mask if number_ == whole else None)
            else:
                step = lambda column, carried, key=key: add(carried, key, column, [query(p, column) for p in queries])  # noqa: E731
                totals = f.loop(i64(0), i64(whole * work.lanes), work.lanes, totals, step, nonempty=True)
                if mask is not None:
                    totals = add(totals, key, columns[-1], [query(p, columns[-1]) for p in queries], mask)
            for each, total in zip(sums, totals, strict=True):
                each.add(total)
        return [each.total for each in sums]

    def _prefetch(self, f: Function, later: tuple[Value, Value], key: int, rows: Rows) -> None:
        """Emit the prefetch of the row of a later key."""
        pointer, stride = later
        for line in range(0, rows.width * rows.dtype.itemsize, CACHE_LINE):
            prefetch(f, f.at(pointer, "i8", f.plus(f.times(stride, key), i64(line))))

    # sums of values

    def _add_values(self, f: Function, pointers: list[Value], first: Value, keys: _Keys, weights: Value, memory: Value) -> None:
        """Emit the addition of weighted values to the sums."""
        a, work = self.a, self.b.work
        rows, vectors = a.shared * a.queries, self._padded // work.lanes
        most = 24 if host().vector_registers >= 32 else 10
        across = min(4, vectors)
        down = -(-rows // -(-rows // max(1, most // across)))

        def group_of(group: Value, begin: Value, end: Value) -> None:
            head = f.plus(first, f.times(group, a.shared))
            array = self._array(f, pointers, 2, head)
            next_head = f.plus(head, i64(self.heads if self.chunks == 1 else 0))
            following = self._array(f, pointers, 1, f.select(f.compare("icmp slt", next_head, i64(a.stack)), next_head, head))

            def tile(start: int, column: Value, count: int, *, fetches: bool) -> None:
                numbers = [f.plus(f.times(group, rows), i64(start + n)) for n in range(min(down, rows - start))]
                strip = _Strip(numbers, column, count)
                self._tile(f, strip, array, following if fetches else None, keys, (begin, end), weights, memory)

            whole, step = vectors // across, across * work.lanes
            for start in range(0, rows, down):

                def others(column: Value, _: list[Value], start: int = start) -> None:
                    tile(start, column, across, fetches=False)

                tile(start, i64(0), across, fetches=not start)
                if whole > 1:
                    f.loop(i64(step), i64(whole * step), step, [], others)
                if vectors % across:
                    tile(start, i64(whole * step), vectors % across, fetches=False)

        self._each_group(f, keys, group_of)

    def _tile(
        self,
        f: Function,
        strip: _Strip,
        array: _RowArray,
        following: _RowArray | None,
        keys: _Keys,
        span: tuple[Value, Value],
        weights: Value,
        memory: Value,
    ) -> None:
        """Emit the addition of values to the sums of some rows and vectors of columns."""
        b, work, group = self.b, self.b.work, self.b.work.group
        vectors = range(strip.vectors)
        starts = [f.at(memory, work.type, f.plus(f.times(row, self._padded), strip.column)) for row in strip.rows]
        addresses = [[f.at(start, work.type, i64(n * work.lanes)) for n in vectors] for start in starts]
        weight_rows = [f.at(weights, work.type, f.times(row, b.pitch)) for row in strip.rows]

        def several(key: Value, carried: list[Value]) -> list[Value]:
            totals = list(carried)
            rows = self._rows(f, array, keys, key, _SEVERAL)
            later = None if following is None else self._later(f, array, following, keys, key, continues=self.chunks > 1)
            for n in range(0, _SEVERAL, group):
                if later is not None:
                    for m in range(n, n + group):
                        self._prefetch(f, later, m, array.rows)
                values = [self._values(f, rows[n : n + group], strip, vector) for vector in vectors]
                for i, pointer in enumerate(weight_rows):
                    address = f.at(pointer, work.element, f.plus(f.quotient(key, group), i64(n // group)))
                    weight = f.splat(f.load(work.element, address, work.itemsize), work.lanes)
                    for j, value in enumerate(values):
                        index = i * strip.vectors + j
                        totals[index] = work.multiply_add(f, weight, value, totals[index])
            return totals

        sums = [f.load(work.vector, address, work.itemsize) for row in addresses for address in row]
        totals = f.loop(*span, _SEVERAL, sums, several, nonempty=True)
        for address, total in zip([address for row in addresses for address in row], totals, strict=True):
            f.store(total, address, work.itemsize)

    def _values(self, f: Function, rows: list[Value], strip: _Strip, vector: int) -> Value:
        """Emit a vector of features of a key's values, or of those of a pair of keys."""
        work, v = self.b.work, self.a.v
        rest = v.width % work.lanes
        is_last = f.known(strip.column) is not None and (f.known(strip.column) or 0) + (vector + 1) * work.lanes > v.width
        mask = first_lanes(rest, work.lanes) if rest and is_last else None
        column = f.plus(strip.column, i64(vector * work.lanes))
        pointers = [at(f, row, v.dtype.itemsize, column) for row in rows]
        return across_rows(f, work if work.group == 1 else work.packed(1), v.dtype, pointers, mask)


def _adjacent_groups(a: Attention) -> int:
    """Return how many groups of a batch entry have keys side by side in memory."""
    axis = len(a.k.heads.sizes) - (2 if a.shared > 1 else 1)
    is_inside = all(rows.heads.strides[axis] < rows.step for rows in (a.k, a.v))
    return a.k.heads.sizes[axis] if is_inside else 1
