"""Blocks of attention on the CPU: sizes, packed operands, products, and logits.

Matrices in memory are in the dtype of logits, or pairs of bfloat16, and padded to whole vectors. A *panel* has a row of two vectors for
each k, which the micro-kernel multiplies by a tile of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import lcm
from typing import NamedTuple

import ml_dtypes
import numpy as np

from volta_fn.compiler.attention import Attention, LogitWalk, Rows
from volta_fn.dtypes import accumulator
from volta_fn.runtime.llvm.text import Function, Value, counting, greatest, i64, least, transposed, vector_of
from volta_fn.targets.cpu.matmul.micro_kernel import ComputeType, MicroKernel, compute_type, micro_kernel, tile_shapes, type_of_groups
from volta_fn.targets.cpu.matmul.packing import joined
from volta_fn.targets.cpu.routine import converted
from volta_fn.targets.cpu.scalars import Number, apply, load, store
from volta_fn.targets.cpu.scalars.values import Lanes

#: Vectors of a panel's row.
_VECTORS = 2
#: Bytes of a block's matrices, which stay in the level-2 cache and on a thread's stack.
_BLOCK_BYTES = 96 << 10
#: The most keys of a block: more would not be multiplied faster, and more of them be hidden ones.
_MOST_KEYS = 256
_NULL = Value("ptr", "null")


class BlockSizes(NamedTuple):
    """The sizes of blocks: of logits, `queries` rows by `keys` columns."""

    work: ComputeType
    #: Rows of a tile, which divide those of a block.
    tile: int
    queries: int
    #: Whole panels, and whole tiles.
    keys: int

    @property
    def panel(self) -> int:
        """Columns of a panel."""
        return _VECTORS * self.work.lanes

    @property
    def pitch(self) -> int:
        """Elements from a row of logits to the next.

        Neighbours are in different sets of the caches.
        """
        return self.keys + self.work.lanes

    def padded(self, width: int) -> int:
        """Return a width rounded up to whole vectors."""
        return -(-width // self.work.lanes) * self.work.lanes

    def panels(self, count: int) -> int:
        """Return how many panels have `count` columns."""
        return -(-count // self.panel)


def block_sizes(a: Attention) -> BlockSizes:
    """Choose the sizes of blocks for a problem."""
    work = compute_type(accumulator(a.q.dtype))
    assert work is not None
    tallest = tile_shapes()[_VECTORS]
    tiles = -(-a.queries // tallest)
    tile = -(-a.queries // tiles)
    unit = lcm(_VECTORS * work.lanes, tile)
    if unit > _MOST_KEYS:  # of few queries
        tile, unit = tallest, lcm(_VECTORS * work.lanes, tallest)
    keys = max(1, min(_MOST_KEYS, -(-a.keys // unit) * unit) // unit) * unit
    row_bytes = (keys + a.q.width + a.v.width) * work.itemsize
    most = max(1, _BLOCK_BYTES // (tile * row_bytes))
    blocks = -(-tiles // min(most, 8))
    return BlockSizes(work, tile, -(-tiles // blocks) * tile, keys)


# Pairs of bfloat16, whose products the CPU may have an instruction for.

BFLOAT16, _PAIR = np.dtype(ml_dtypes.bfloat16), np.dtype(np.int32)


def has_pairs(a: Attention) -> bool:
    """Return True if products are those of pairs of bfloat16.

    Heads have pairs of adjacent features then.
    """
    sides = (a.q, a.k)
    steps = [step for rows in sides for step in (rows.width, rows.step, *rows.heads.strides)]
    is_half = all(rows.dtype == BFLOAT16 for rows in (*sides, a.v))
    return is_half and type_of_groups((BFLOAT16, BFLOAT16), np.dtype(np.float32)) is not None and all(step % 2 == 0 for step in steps)


def in_pairs(rows: Rows) -> Rows:
    """Return rows of bfloat16 as rows of pairs, integers of 32 bits."""
    heads = rows.heads._replace(strides=tuple([stride // 2 for stride in rows.heads.strides]))
    return replace(rows, dtype=_PAIR, width=rows.width // 2, step=rows.step // 2, heads=heads)


# Numbers in the dtype of logits.


def read(f: Function, dtype: np.dtype, pointer: Value, lanes: int, count: Value | None = None) -> Value:
    """Emit the load of numbers in the dtype of logits; zero beyond `count`.

    Pairs of bfloat16, as `in_pairs` has them, stay what they are.
    """
    if dtype == _PAIR:
        return load(f, dtype, pointer, lanes, count=count).value
    return converted(f, load(f, dtype, pointer, lanes, count=count), accumulator(dtype)).value


def write(f: Function, dtype: np.dtype, value: Value, pointer: Value, count: Value | None = None) -> None:
    """Emit the store of numbers, rounded to a dtype."""
    store(f, converted(f, Number(accumulator(dtype), (value,)), dtype), pointer, count=count)


def at(f: Function, base: Value, itemsize: int, offset: Value) -> Value:
    """Emit the address of an element."""
    return f.at(base, f"[{itemsize} x i8]", offset)


def head_address(f: Function, base: Value, rows: Rows, head: Value) -> Value:
    """Emit the address of the rows of a head."""
    return at(f, base, rows.dtype.itemsize, f.dotted(f.coordinates(head, rows.heads.sizes), rows.heads.strides))


def each_vector(f: Function, width: int, lanes: int, body: Callable[[Value, Value | None], None]) -> None:
    """Emit ``body(column, count)`` for the vectors of a row of `width` numbers.

    Of the last one, `count` numbers exist.
    """
    if whole := width // lanes * lanes:
        f.loop(i64(0), i64(whole), lanes, [], lambda column, _: body(column, None), nonempty=True)
    if width % lanes:
        body(i64(whole), i64(width % lanes))


class RowBlock(NamedTuple):
    """Neighbouring rows of a head: the address of the head, and the first row."""

    rows: Rows
    head: Value
    first: Value

    def row(self, f: Function, number: Value) -> Value:
        """Emit the address of a row of the block; those beyond the last row get its own."""
        index = least(f, f.plus(self.first, number), i64(self.rows.count - 1))
        return at(f, self.head, self.rows.dtype.itemsize, f.times(index, self.rows.step))

    def exists(self, f: Function, number: Value) -> Value:
        """Emit whether the block has a row."""
        return f.compare("icmp slt", f.plus(self.first, number), i64(self.rows.count))


def copy_rows(f: Function, b: BlockSizes, source: RowBlock, target: Value, scale: float = 1.0) -> None:
    """Emit the copy of a block of queries, times a factor.

    Rows and columns beyond the last are zero.
    """
    work, pitch = b.work, b.padded(source.rows.width)
    factor = f.splat(number(work, scale), work.lanes)

    def copy(row: Value, _: list[Value]) -> None:
        address = source.row(f, row)
        exists = f.splat(source.exists(f, row), work.lanes)

        def vector(column: Value, count: Value | None) -> None:
            x = read(f, source.rows.dtype, at(f, address, source.rows.dtype.itemsize, column), work.lanes, count)
            x = x if scale == 1.0 else f.binary("fmul", x, factor)
            f.store(
                f.select(exists, x, Value(x.type, "zeroinitializer")),
                f.at(target, work.type, f.plus(f.times(row, pitch), column)),
                work.itemsize,
            )

        each_vector(f, source.rows.width, work.lanes, vector)

    f.loop(i64(0), i64(b.queries), 1, [], copy, nonempty=True)


def number(work: ComputeType, x: float) -> Value:
    """Return a constant in the dtype of logits."""
    wide = np.float32(x) if work.type == "float" else np.float64(x)
    return Value(work.type, f"0x{np.float64(wide).view(np.uint64):016X}")


def largest_number(work: ComputeType, sign: float = 1.0) -> Value:
    """Return the finite number that is farthest from 0."""
    return number(work, sign * float(np.finfo(np.float32 if work.type == "float" else np.float64).max))


def fill(f: Function, work: ComputeType, pointer: Value, count: Value | int, value: Value | None = None) -> None:
    """Emit the store of copies of a number, or zeros, to whole vectors."""
    vector = work.zero() if value is None else f.splat(value, work.lanes)
    end = i64(count) if isinstance(count, int) else count
    f.loop(i64(0), end, work.lanes, [], lambda i, _: f.store(vector, f.at(pointer, work.type, i), work.itemsize))


# Operands packed ahead, for all blocks.


class Packed(NamedTuple):
    """A matrix of each head in the workspace, by panels of rows or of features.

    Attributes:
        rows: the matrices.
        start: where they begin in the workspace, in bytes.
        transposed: whether a panel's columns are rows of the matrix, not features.
    """

    rows: Rows
    start: int
    transposed: bool

    def elements(self, b: BlockSizes) -> int:
        """Return the elements of a head's panels."""
        if self.transposed:
            return b.panels(self.rows.count) * b.panel * self.rows.width
        return self.depth(b) * b.padded(self.rows.width)

    def depth(self, b: BlockSizes) -> int:
        """Return how many rows panels of features have: of pairs, half as many."""
        return -(-self.rows.count // b.work.group)

    def base(self, f: Function, b: BlockSizes, workspace: Value, head: Value) -> Value:
        """Emit the address of a head's panels."""
        begin = f.at(workspace, "i8", i64(self.start))
        return f.at(begin, b.work.type, f.times(head, self.elements(b)))

    def panels_from(self, f: Function, b: BlockSizes, base: Value, first: Value) -> PanelOperand:
        """Emit the panels from a row of the matrix on.

        If transposed, its number is a multiple of a panel's columns.
        """
        if self.transposed:
            pointer = f.at(base, b.work.type, f.times(first, self.rows.width))
            return PanelOperand(pointer, b.panel * self.rows.width, b.panel, 0)
        return PanelOperand(base, b.panel * self.depth(b), 0, self.rows.width, f.quotient(first, b.work.group))

    def pack(self, f: Function, b: BlockSizes, source: Value, base: Value, first: Value) -> None:
        """Emit the packing of a panel's worth of rows of a head."""
        if self.transposed:
            self._pack_transposed(f, b, source, base, first)
        else:
            self._pack_rows(f, b, source, base, first)

    def _pack_transposed(self, f: Function, b: BlockSizes, source: Value, base: Value, first: Value) -> None:
        lanes, rows, work = b.work.lanes, self.rows, b.work
        target = f.at(base, work.type, f.times(first, rows.width))

        def square(row: int, feature: Value, count: Value | None) -> None:
            block = RowBlock(rows, source, first)
            vectors = [
                read(f, rows.dtype, at(f, block.row(f, i64(row + k)), rows.dtype.itemsize, feature), lanes, count) for k in range(lanes)
            ]
            for j, vector in enumerate(transposed(f, vectors)[: lanes if count is None else f.known(count)]):
                f.store(vector, f.at(target, work.type, f.plus(f.times(f.plus(feature, i64(j)), b.panel), i64(row))), work.itemsize)

        for row in range(0, b.panel, lanes):
            each_vector(f, rows.width, lanes, lambda feature, count, row=row: square(row, feature, count))  # type: ignore[misc]

    def _pack_rows(self, f: Function, b: BlockSizes, source: Value, base: Value, first: Value) -> None:
        rows, work = self.rows, b.work
        padded, parts = b.padded(rows.width), range(b.work.group)

        def loaded(row: Value, starts: Sequence[Value], count: Value | None) -> Value:
            if work.group == 1:
                return read(f, rows.dtype, starts[0], work.lanes, count)
            bits = np.dtype(np.uint16)
            one = load(f, bits, starts[0], work.lanes, count=count).value
            exists = f.compare("icmp slt", f.plus(f.times(row, 2), i64(1)), i64(rows.count))
            (other,) = f.branch(
                exists, lambda: [load(f, bits, starts[1], work.lanes, count=count).value], lambda: [Value(one.type, "zeroinitializer")]
            )
            return joined(f, work.packed(1), [one, other])

        def pack(row: Value, _: list[Value]) -> None:
            addresses = [at(f, source, rows.dtype.itemsize, f.times(f.plus(f.times(row, b.work.group), i64(k)), rows.step)) for k in parts]
            for panel, start in enumerate(range(0, padded, b.panel)):
                width = min(b.panel, padded - start)
                target = f.at(base, work.type, f.plus(i64(panel * b.panel * self.depth(b)), f.times(row, width)))
                for column in range(start, start + width, work.lanes):
                    count = None if column + work.lanes <= rows.width else i64(rows.width - column)
                    starts = [at(f, address, rows.dtype.itemsize, i64(column)) for address in addresses]
                    f.store(loaded(row, starts, count), f.at(target, work.type, i64(column - start)), work.itemsize)

        end = least(f, f.plus(first, i64(b.panel)), i64(rows.count))
        f.loop(f.quotient(first, b.work.group), rounded_up(f, end, b.work.group), 1, [], pack)


class PanelOperand(NamedTuple):
    """The right factor of a product.

    Attributes:
        pointer: the address of the first panel.
        stride: elements from a panel to the next.
        inner: elements from a row of a panel to the next; 0: as many as it has columns.
        width: the columns of all panels; 0: as many as a product asks for.
        first: the first row of a panel that is read.
    """

    pointer: Value
    stride: int
    inner: int
    width: int = 0
    first: Value | None = None


class Left(NamedTuple):
    """The left factor of a product by (row, k), and its strides in elements."""

    pointer: Value
    row: int
    k: int


class Product(NamedTuple):
    """The rows of a result in memory.

    Attributes:
        pointer: the address of the first one.
        pitch: elements from a row to the next.
        tiles: how many tiles of rows there are.
    """

    pointer: Value
    pitch: int
    tiles: Value


def multiply(
    f: Function,
    b: BlockSizes,
    left: Left,
    right: PanelOperand,
    depth: Value,
    result: Product,
    *,
    panels: Value | None = None,
    add: bool = False,
) -> None:
    """Emit the product of matrices, or its addition to what there is.

    There are `panels` of columns, or those of the right factor's width. No column of a panel is left out: there is room for whole
    vectors.
    """
    work = b.work

    def strip(panel: Value, width: int) -> None:
        kind = MicroKernel(work, b.tile, width, left.row, left.k, right.inner or width, padded=True)
        kernel = micro_kernel(kind)
        start = f.at(right.pointer, work.type, f.times(panel, right.stride))
        if right.first is not None:
            start = f.at(start, work.type, f.times(right.first, right.inner or width))
        target = f.at(result.pointer, work.type, f.times(panel, b.panel))

        def tile(number: Value, _: list[Value]) -> None:
            row = f.at(left.pointer, work.type, f.times(number, b.tile * left.row))
            to = f.at(target, work.type, f.times(number, b.tile * result.pitch))
            stride = i64(result.pitch * work.itemsize)
            f.run_shared(kernel, row, i64(0), start, depth, to if add else _NULL, stride, to, stride)

        f.loop(i64(0), result.tiles, 1, [], tile)

    if panels is not None:
        f.loop(i64(0), panels, 1, [], lambda panel, _: strip(panel, b.panel))
        return
    padded = b.padded(right.width)
    whole = padded // b.panel
    if whole:
        f.loop(i64(0), i64(whole), 1, [], lambda panel, _: strip(panel, b.panel), nonempty=True)
    if padded % b.panel:
        strip(i64(whole), padded % b.panel)


def rounded_up(f: Function, x: Value, unit: int) -> Value:
    """Emit how many units of a size have `x` elements."""
    return f.quotient(f.plus(x, i64(unit - 1)), unit)


def reserve(sizes: Sequence[int]) -> list[int]:
    """Return where parts of these bytes begin, and the end; aligned to cache lines."""
    starts = [0]
    for size in sizes:
        starts.append(starts[-1] + size + -size % 64)
    return starts


# Logits: what queries see of keys, biases, and bounds.

#: The first of the operands after q, k and v.
_EXTRA = 3
#: How much greater than the logits of hidden keys a query's largest one is if their weights are 0 in float32 and float64.
_HIDDEN = {"float": 110.0, "double": 750.0}
_TRUE, _FALSE = Value("i1", "true"), Value("i1", "false")


class LogitArray(NamedTuple):
    """A mask or bias of one head."""

    walk: LogitWalk
    base: Value

    def vector(self, f: Function, b: BlockSizes, query: Value, key: Value, keys: int) -> Value:
        """Emit the elements of a query, from a key on.

        Those beyond the last key are arbitrary.
        """
        lanes, itemsize = b.work.lanes, self.walk.dtype.itemsize
        start = at(f, self.base, itemsize, f.plus(f.times(query, self.walk.query), f.times(key, self.walk.key)))
        if not self.walk.key:
            return f.splat(self._load(f, b, start, 1, None), lanes)
        if keys % b.panel == 0:  # or else a panel's last vector may begin beyond the last key
            return self._load(f, b, start, lanes, None)
        rest = f.minus(i64(keys), key)
        whole = f.compare("icmp sge", rest, i64(lanes))
        return f.branch(
            whole,
            lambda: [self._load(f, b, start, lanes, None)],
            lambda: [self._load(f, b, start, lanes, greatest(f, rest, i64(0)))],
        )[0]

    def _load(self, f: Function, b: BlockSizes, start: Value, lanes: int, count: Value | None) -> Value:
        if self.walk.dtype == np.bool_:
            return load(f, self.walk.dtype, start, lanes, count=count).value
        x = read(f, self.walk.dtype, start, lanes, count)
        return f.cast("fpext", x, vector_of(b.work.type, lanes))


class LogitBlock(NamedTuple):
    """The block of logits of some queries and keys of a head.

    Attributes:
        a, b: the problem and the sizes of blocks.
        bias: of the head, if there is one.
        masks: of the head.
        query: the first query.
        key: the first key.
        width: the number of keys, up to that of a block.
    """

    a: Attention
    b: BlockSizes
    bias: LogitArray | None
    masks: tuple[LogitArray, ...]
    query: Value
    key: Value
    width: Value

    def panels(self, f: Function) -> Value:
        """Emit the number of panels that have the keys."""
        return rounded_up(f, self.width, self.b.panel)

    def each_vector(
        self, f: Function, row: Value, carried: list[Value], body: Callable[[Value, Value, list[Value]], list[Value]]
    ) -> list[Value]:
        """Emit ``carried = body(offset, column, carried)`` for a row's vectors.

        The offset is that of the vector in the block.
        """
        lanes, panel = self.b.work.lanes, self.b.panel

        def panel_of(column: Value, values: list[Value]) -> list[Value]:
            for start in range(0, panel, lanes):
                here = f.plus(column, i64(start))
                values = body(f.plus(f.times(row, self.b.pitch), here), here, values)
            return values

        return f.loop(i64(0), f.times(self.panels(f), panel), panel, carried, panel_of, nonempty=True)

    # what queries see

    def is_partial(self, f: Function) -> Value:
        """Emit whether some logits differ from the scaled products."""
        a, b = self.a, self.b
        if self.bias is not None or self.masks or a.softcap:
            return _TRUE
        ragged = a.keys % b.panel > 0
        is_ragged = f.compare("icmp sgt", f.plus(self.key, i64(b.panel - 1), self.width), i64(a.keys)) if ragged else _FALSE
        return f.binary("or", is_ragged, self.hides(f))

    def hides(self, f: Function) -> Value:
        """Emit whether queries of the block may not see keys of it."""
        a, b = self.a, self.b
        if self.masks:
            return _TRUE
        conditions = []
        if a.window.after is not None:
            last_key = f.plus(self.key, f.times(self.panels(f), b.panel))
            conditions.append(f.compare("icmp sgt", last_key, f.plus(self.query, i64(a.window.after + 1))))
        if a.window.before is not None:
            conditions.append(f.compare("icmp slt", f.plus(self.key, i64(a.window.before)), f.plus(self.query, i64(b.queries - 1))))
        return _any(f, conditions)

    def is_seen(self, f: Function) -> Value:
        """Emit whether a query of the block sees a key of it."""
        a, b = self.a, self.b
        last = least(f, f.plus(self.query, i64(b.queries - 1)), i64(a.queries - 1))
        conditions = []
        if a.window.after is not None:
            conditions.append(f.compare("icmp sle", self.key, f.plus(last, i64(a.window.after))))
        if a.window.before is not None:
            end = f.plus(self.key, self.width, i64(a.window.before - 1))
            conditions.append(f.compare("icmp sge", end, self.query))
        by_position = _all(f, conditions)
        if not self.masks:
            return by_position
        return f.branch(by_position, lambda: [self._is_seen_by_masks(f)], lambda: [_FALSE])[0]

    def _is_seen_by_masks(self, f: Function) -> Value:
        """Emit whether all masks let some query see some key."""
        b, varies = self.b, any(mask.walk.query for mask in self.masks)
        lanes = b.work.lanes
        rows = least(f, i64(b.queries), f.minus(i64(self.a.queries), self.query)) if varies else i64(1)
        none = f.splat(_FALSE, lanes)

        def row_of(row: Value, carried: list[Value]) -> list[Value]:
            def vector(_: Value, column: Value, values: list[Value]) -> list[Value]:
                return [f.binary("or", values[0], f.binary("and", self._masked(f, row, column), self._is_key(f, column)))]

            return self.each_vector(f, i64(0), carried, vector)

        (seen,) = f.loop(i64(0), rows, 1, [none], row_of, nonempty=True)
        return Lanes(f, seen).any()

    def _is_key(self, f: Function, column: Value) -> Value:
        """Emit the lanes whose keys belong to the block."""
        lanes = self.b.work.lanes
        return f.compare("icmp slt", f.binary("add", f.splat(column, lanes), counting(lanes)), f.splat(self.width, lanes))

    def _masked(self, f: Function, row: Value, column: Value) -> Value:
        """Emit where all masks let a query see keys."""
        query, key = self._position(f, row, column)
        vectors = [mask.vector(f, self.b, query, key, self.a.keys) for mask in self.masks]
        result = vectors[0]
        for vector in vectors[1:]:
            result = f.binary("and", result, vector)
        return result

    def _position(self, f: Function, row: Value, column: Value) -> tuple[Value, Value]:
        return least(f, f.plus(self.query, row), i64(self.a.queries - 1)), f.plus(self.key, column)

    def visible(self, f: Function, row: Value, column: Value) -> Value | None:
        """Emit where a query sees keys; None if it sees all."""
        a, lanes = self.a, self.b.work.lanes
        conditions = [self._masked(f, row, column)] if self.masks else []
        window = a.window
        if window.before is not None or window.after is not None:
            ahead = f.minus(f.plus(self.key, column), f.plus(self.query, row))  # of the first lane
            numbers = f.binary("add", f.splat(ahead, lanes), counting(lanes))
            if window.after is not None:
                conditions.append(f.compare("icmp sle", numbers, f.splat(i64(window.after), lanes)))
            if window.before is not None:
                conditions.append(f.compare("icmp sge", numbers, f.splat(i64(-window.before), lanes)))
        return _all(f, conditions) if conditions else None

    # logits

    def multiply(self, f: Function, queries: Value, packed: Packed, base: Value, result: Value) -> None:
        """Emit the products of rows, of width `packed.rows.width`, with the block's keys."""
        b = self.b
        right: PanelOperand = packed.panels_from(f, b, base, self.key)
        left = Left(queries, b.padded(packed.rows.width), 1)
        product = Product(result, b.pitch, i64(b.queries // b.tile))
        multiply(f, b, left, right, i64(packed.rows.width), product, panels=self.panels(f))

    def finish(self, f: Function, logits: Value, bends: Value | None = None) -> None:
        """Emit logits in place of scaled products.

        `bends` get the derivatives of bounded ones by these. Logits are `a.unseen` where a query does not see a key, and -inf beyond the
        last key.
        """
        a, b = self.a, self.b
        work = b.work
        lanes = work.lanes

        def row_of(row: Value, _: list[Value]) -> None:
            def vector(offset: Value, column: Value, values: list[Value]) -> list[Value]:
                address = f.at(logits, work.type, offset)
                x = f.load(work.vector, address, work.itemsize)
                if a.softcap:
                    x = self._bounded(f, x, None if bends is None else f.at(bends, work.type, offset))
                if self.bias is not None:
                    x = f.binary("fadd", x, self.bias.vector(f, b, *self._position(f, row, column), a.keys))
                if (seen := self.visible(f, row, column)) is not None:
                    x = f.select(seen, x, f.splat(number(work, a.unseen), lanes))
                if a.keys % b.panel:
                    keys = f.binary("add", f.splat(f.plus(self.key, column), lanes), counting(lanes))
                    x = f.select(f.compare("icmp slt", keys, f.splat(i64(a.keys), lanes)), x, f.splat(number(work, -np.inf), lanes))
                f.store(x, address, work.itemsize)
                return values

            self.each_vector(f, row, [], vector)

        f.branch(self.is_partial(f), lambda: _rows(f, b, row_of))

    def _bounded(self, f: Function, x: Value, bend: Value | None) -> Value:
        """Emit a bounded product, and the store of its derivative."""
        work, dtype = self.b.work, np.dtype("float32" if self.b.work.type == "float" else "float64")
        cap = f.splat(number(work, self.a.softcap), work.lanes)
        ratio = f.binary("fmul", x, f.splat(number(work, 1 / self.a.softcap), work.lanes))
        bounded = apply(f, "tanh", (Number(dtype, (ratio,)),), dtype, {}).value
        if bend is not None:
            one = f.splat(number(work, 1.0), work.lanes)
            f.store(f.binary("fsub", one, f.binary("fmul", bounded, bounded)), bend, work.itemsize)
        return f.binary("fmul", bounded, cap)


def _rows(f: Function, b: BlockSizes, body: Callable[[Value, list[Value]], None]) -> None:
    f.loop(i64(0), i64(b.queries), 1, [], body, nonempty=True)


def may_be_blind(f: Function, a: Attention, b: BlockSizes, largest: Value) -> Value:
    """Emit whether hidden keys may have weights besides a query's largest logit."""
    return f.compare("fcmp ole", largest, number(b.work, a.unseen + _HIDDEN[b.work.type]))


def _all(f: Function, conditions: list[Value]) -> Value:
    result = conditions[0] if conditions else _TRUE
    for condition in conditions[1:]:
        result = f.binary("and", result, condition)
    return result


def _any(f: Function, conditions: list[Value]) -> Value:
    result = conditions[0] if conditions else _FALSE
    for condition in conditions[1:]:
        result = f.binary("or", result, condition)
    return result


def logit_arrays(f: Function, a: Attention, pointers: list[Value], head: Value) -> tuple[LogitArray | None, tuple[LogitArray, ...]]:
    """Emit the addresses of the bias and the masks of a head."""
    arrays = []
    for pointer, walk in zip(pointers[_EXTRA:], [*([] if a.bias is None else [a.bias]), *a.masks], strict=False):
        offset = f.dotted(f.coordinates(head, walk.heads.sizes), walk.heads.strides)
        arrays.append(LogitArray(walk, at(f, pointer, walk.dtype.itemsize, offset)))
    return (None, tuple(arrays)) if a.bias is None else (arrays[0], tuple(arrays[1:]))
