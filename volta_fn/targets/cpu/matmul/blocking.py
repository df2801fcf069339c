"""Blocking of a product (register tiles, cache blocks, tasks), and loops over it."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from typing import NamedTuple

from volta_fn.compiler.contractions import Operand, Walk
from volta_fn.runtime.llvm.text import Function, Value, i64
from volta_fn.targets.cpu.matmul.micro_kernel import ComputeType, tile_shapes

# The blocking follows from the shape alone, so that sums are formed in the same order whatever the number of threads.

_DEPTH = 256  # k in a block: a panel of A and one of B should fit into the level-1 cache
_UNBLOCKED_DEPTH = 384  # most k that are not cut into blocks
_BLOCK_BYTES = 600 << 10  # most bytes of B in a task, which goes over it repeatedly: most of a level-2 cache
_STACK_BYTES = 60 << 10  # most bytes of packed blocks on the stack
_TASK_STEPS = 10_000  # least multiplications of vectors in a task, some 2 µs
_SPLIT_STEPS = 40_000  # least multiplications of vectors in a split of a long sum, as the sums of splits have to be added
_TASKS = 16  # least tasks, so that every thread has its share
_MOST_TASKS = 64  # most tasks, so that threads finish together though some are slower
_PANELS = 4  # least panels of rows in a task, as it reads a block of B for them
_FEW = 20  # most panels of A for which tasks pack their columns of B themselves
_NEAR_BYTES = 300 << 10  # bytes of A for which tasks have few columns of B: fits a level-2 cache
_GROUP = 8  # most panels of A that are packed together where A is contiguous along m
_GROUP_BYTES = 32 << 10  # most bytes of panels that are packed together
_LARGE, _LARGE_GROUP_BYTES = 256 << 20, 128 << 10  # bytes of a large A, whose panels may have these bytes together
_APART = 1024  # A is packed ahead if consecutive k are at least this many bytes apart, and panels have few numbers of a cache line
_SET = 2048  # rows so many bytes apart, or a multiple, fall into two sets of a level-1 cache; twice as many, into one


class Packing(enum.Enum):
    """Where tiles read an operand: in place, packed by each task, or packed ahead."""

    NONE = 0
    TASK = 1
    AHEAD = 2


class Blocking(NamedTuple):
    """The cuts. Panels are rows of tiles (of A) or columns of tiles (of B)."""

    batch: int
    m: int
    n: int
    k: int
    #: Panels of A; the first `taller` of them have `rows` + 1 rows, the others `rows`.
    row_panels: int
    taller: int
    rows: int
    #: Columns of a panel of B; the last one may have fewer.
    width: int
    column_panels: int
    #: k in a block, of which there are `blocks`; each of the `splits` of the sum has `split_blocks` blocks.
    depth: int
    blocks: int
    splits: int
    split_blocks: int
    #: Tasks along the rows, and along the columns.
    row_tasks: int
    column_tasks: int
    pack_rows: Packing
    pack_columns: Packing
    #: Panels of A that a task packs together.
    row_group: int
    #: 1 if a row of initial sums follows each packed panel of B, as biased types need; else 0.
    initial: int = 0

    @property
    def tasks(self) -> int:
        """All tasks."""
        return self.batch * self.splits * self.row_tasks * self.column_tasks

    @property
    def task_columns(self) -> int:
        """The most panels of B of a task."""
        return -(-self.column_panels // self.column_tasks)

    @property
    def edge(self) -> int:
        """Columns of the last panel."""
        return self.n - (self.column_panels - 1) * self.width

    @property
    def tallest(self) -> int:
        """The most rows of a panel."""
        return self.rows + (self.taller > 0)

    @property
    def panel_elements(self) -> int:
        """The size of a packed panel of B."""
        return self.width * (self.depth + self.initial)

    @property
    def block_elements(self) -> int:
        """The size of a task's packed block of B."""
        return self.task_columns * self.panel_elements

    def on_stack(self, itemsize: int) -> bool:
        """Return True if a task's packed block of B is small enough for the stack."""
        rows = (self.rows + 4) * self.depth * self.row_group if self.pack_rows is Packing.TASK else 0
        return (self.block_elements + rows) * itemsize <= _STACK_BYTES


class BlockingOptions(NamedTuple):
    """Choices of a blocking that are forced; None where the blocking makes its own."""

    #: The most rows of a register tile, and its vectors.
    tile: tuple[int, int] | None = None
    #: k in a block, a multiple of 8, and the splits of the sum.
    depth: int | None = None
    splits: int | None = None
    #: Whether rows and columns make as many tasks as there are panels.
    many_tasks: bool = False
    pack_rows: Packing | None = None
    pack_columns: Packing | None = None
    #: Whether a kernel that follows from the sums waits for all columns of a task.
    strips: bool | None = None


UNFORCED = BlockingOptions()


def choose_blocking(
    work: ComputeType,
    sizes: tuple[int, int, int, int],
    lhs: tuple[int, int] | None,
    rhs: tuple[int, int] | None,
    *,
    transposed: bool = False,
    rows_apart: int = 0,
    options: BlockingOptions = UNFORCED,
) -> Blocking:
    """Choose the blocking for ``(batch, m, n, k)``.

    `lhs` and `rhs` are the strides (of m or n, and of k) of operands that can be read in place. `transposed` says that A is contiguous
    along m, not along k; its rows of m have `rows_apart` bytes between them then, if that is one stride.
    """
    batch, m, n, k = sizes
    rows, vectors = options.tile or _tile(work, m, n)
    row_panels = max(1, -(-m // rows))
    width = vectors * work.lanes
    column_panels = max(1, -(-n // width))
    depth, blocks = _depth(k) if options.depth is None else (options.depth, -(-k // options.depth))
    splits, split_blocks = _splits(batch * row_panels * column_panels, rows * vectors * depth, blocks)
    if options.splits is not None:
        split_blocks = -(-blocks // options.splits)
        splits = -(-blocks // split_blocks)
    panels = row_panels, column_panels
    # A large A is not packed ahead, which takes as much memory again for 3 % of the time, but more panels at a time.
    group_bytes = _LARGE_GROUP_BYTES if batch * m * k * work.itemsize > _LARGE else _GROUP_BYTES
    group = max(1, min(_GROUP, group_bytes // max(1, (rows + 3) * depth * work.itemsize))) if transposed else 1
    packed = not _near(work, rhs, row_panels) if options.pack_columns is None else options.pack_columns is not Packing.NONE
    row_tasks, column_tasks = _tasks(work, batch * splits, panels, (rows, vectors), depth, split_blocks, packed=packed)
    if options.many_tasks:
        row_tasks, column_tasks = panels
    pack_rows = options.pack_rows or _pack_rows(work, lhs, panels, rows, group, transposed=transposed)
    if lhs is None and options.pack_rows is None and rows_apart >= _APART // 4 and row_panels > 4 and group < 4:
        pack_rows = Packing.AHEAD
    ahead = row_tasks > 1 or options.pack_columns is Packing.AHEAD
    pack_columns = Packing.NONE if not packed else Packing.AHEAD if ahead else Packing.TASK
    return Blocking(
        batch, m, n, k, row_panels=row_panels, taller=m % row_panels, rows=m // row_panels, width=width, column_panels=column_panels,
        depth=depth, blocks=blocks, splits=splits, split_blocks=split_blocks, row_tasks=row_tasks, column_tasks=column_tasks,
        pack_rows=pack_rows, pack_columns=pack_columns, row_group=group, initial=int(work.biased),
    )  # fmt: skip


def unpacked_blocking(batch: int, m: int, n: int, k: int, *, splits: int, width: int) -> Blocking:
    """Return a blocking without packing, for products that use only its split-K."""
    none = Packing.NONE
    panels = -(-n // width)
    return Blocking(
        batch, m, n, k, row_panels=1, taller=0, rows=m, width=width, column_panels=panels, depth=k, blocks=1, splits=splits, split_blocks=1,
        row_tasks=1, column_tasks=panels, pack_rows=none, pack_columns=none, row_group=1,
    )  # fmt: skip


def _tile(work: ComputeType, m: int, n: int) -> tuple[int, int]:
    """Choose the rows and vectors of register tiles that take the least time."""
    vectors = max(1, -(-n // work.lanes))

    def cycles(shape: tuple[int, int]) -> float:
        wide, rows = shape
        total = 0.0
        for across, columns in _chunks(vectors, wide):
            for down, times in _chunks(max(m, 1), rows, even=True):
                # For each k: the latency of a multiplication, two multiplications a cycle, or two loads a cycle; and moving on.
                total += columns * times * (max(4.0, down * across / 2, (down + across) / 2) + 0.1 * across)
        return total

    wide, rows = min(tile_shapes().items(), key=cycles)
    return rows, min(wide, vectors)


def _chunks(total: int, size: int, *, even: bool = False) -> list[tuple[int, int]]:
    """Cut a total into chunks of at most `size`, all but equal if they are `even`.

    Return the sizes of the chunks, each with the number of chunks of that size.
    """
    count = -(-total // size)
    if even:
        larger = total % count
        return [(total // count + 1, larger), (total // count, count - larger)]
    return [(size, count - 1), (total - (count - 1) * size, 1)]


def _depth(k: int) -> tuple[int, int]:
    """Return the k of a block, and the number of blocks."""
    if k <= _UNBLOCKED_DEPTH:
        return k, 1
    blocks = -(-k // _DEPTH)
    depth = -(-k // blocks)
    depth += -depth % 8
    return depth, -(-k // depth)


def _splits(tiles: int, steps: int, blocks: int) -> tuple[int, int]:
    """Return the number of splits of few and long sums, and the blocks of a split."""
    if blocks < 4 or tiles > 4 * blocks:
        return 1, blocks
    most = _TASKS if tiles <= 2 * blocks else _TASKS // 2  # tiles make tasks, too, and splits have to be added
    splits = max(1, min(blocks, most, tiles * blocks * steps // _SPLIT_STEPS))
    split_blocks = -(-blocks // splits)
    return -(-blocks // split_blocks), split_blocks


def _tasks(
    work: ComputeType, stack: int, panels: tuple[int, int], shape: tuple[int, int], depth: int, split_blocks: int, *, packed: bool
) -> tuple[int, int]:
    """Return how many tasks there are along the rows and along the columns."""
    row_panels, column_panels = panels
    rows, vectors = shape
    stack = max(stack, 1)  # of no products
    panel = max(depth, 1) * vectors * work.lanes * work.itemsize
    few = row_panels <= _FEW or row_panels * rows * max(depth, 1) * work.itemsize <= _NEAR_BYTES
    columns = max(1, min(column_panels, (_STACK_BYTES if packed and few and panel <= _STACK_BYTES else _BLOCK_BYTES) // panel))
    tile = max(1, rows * vectors * depth * split_blocks)
    steps = stack * row_panels * column_panels * tile
    if few:
        columns = max(1, min(columns, -(-max(_TASK_STEPS, -(-steps // _TASKS)) // (tile * row_panels))))
    column_tasks = -(-column_panels // columns)
    if few:
        return 1, column_tasks
    enough, most = [-(-steps // (max(_TASK_STEPS, -(-steps // count)) * stack * column_tasks)) for count in (_TASKS, _MOST_TASKS)]
    return max(1, min(row_panels, enough), min(row_panels // _PANELS, most)), column_tasks


def _pack_rows(
    work: ComputeType, strides: tuple[int, int] | None, panels: tuple[int, int], rows: int, group: int, *, transposed: bool
) -> Packing:
    """Choose whether A is packed: if its rows conflict in the cache, or are distant."""
    if strides is None:
        return Packing.TASK
    outer, inner = strides[0] * work.itemsize, strides[1] * work.itemsize
    if inner == work.itemsize:
        return Packing.NONE if rows <= 6 or outer % (2 * _SET) else Packing.TASK
    if panels[1] == 1 or inner < 512:
        return Packing.NONE
    return Packing.AHEAD if transposed and group < 4 and inner >= _APART and panels[0] > 4 else Packing.TASK


def _near(work: ComputeType, strides: tuple[int, int] | None, row_panels: int) -> bool:
    """Return True if B is read in place: contiguous along n, with near or few rows."""
    if strides is None or strides[0] > 1:
        return False
    row_bytes = strides[1] * work.itemsize
    return row_panels <= 2 or (row_bytes <= 512 and row_bytes % 64 == 0) or (row_panels <= 4 and row_bytes % _SET != 0)


# Loops, indices and ranges in the generated code of products.


def each(f: Function, start: Value, end: Value, body: Callable[[Value], None], step: int = 1) -> None:
    """Emit ``for index in range(start, end, step): body(index)``."""
    f.loop(start, end, step, [], lambda index, _: body(index))


def origin(f: Function, operand: Operand, number: Value) -> Value:
    """Emit the offset of a matrix of a stack, in elements."""
    return f.plus(offset_of(f, operand.stack, number), i64(operand.start))


def offset_of(f: Function, walk: Walk, index: Value) -> Value:
    """Emit the offset of an index, in elements."""
    return f.dotted(f.coordinates(index, walk.sizes), walk.strides)


_POINTERS = frozenset({"buffers", "target", "a", "b", "strip"})


def parameters_of(*names: str) -> list[Value]:
    """Return parameters of functions, by name."""
    return [Value("ptr" if name in _POINTERS else "i64", f"%{name}") for name in names]


def range_of(f: Function, number: Value, count: int, total: int) -> tuple[Value, Value]:
    """Emit the range number `number` of ``range(total)`` in near-equal ranges."""
    if count == 1:
        return i64(0), i64(total)
    if total % count == 0:
        start = f.binary("mul", number, i64(total // count))
        return start, f.binary("add", start, i64(total // count))
    start, end = [f.binary("udiv", f.binary("mul", n, i64(total)), i64(count)) for n in (number, f.binary("add", number, i64(1)))]
    return start, end


# For tests: products under every blocking that they may have.


def legal_blockings(
    work: ComputeType,
    sizes: tuple[int, int, int, int],
    lhs: tuple[int, int] | None,
    rhs: tuple[int, int] | None,
    *,
    transposed: bool,
    rows_apart: int,
) -> Iterator[BlockingOptions]:
    """Yield options that differ from what is chosen.

    The arguments are those of `choose_blocking`.
    """
    blocking = choose_blocking(work, sizes, lhs, rhs, transposed=transposed, rows_apart=rows_apart)
    can_be_ahead = rows_apart or (transposed and lhs is not None)
    packings = [Packing.TASK, *([] if lhs is None else [Packing.NONE]), *([Packing.AHEAD] if can_be_ahead else [])]
    columns = [Packing.TASK, Packing.AHEAD, *([] if rhs is None or rhs[0] > 1 else [Packing.NONE])]
    yield UNFORCED
    yield BlockingOptions(many_tasks=True)
    yield BlockingOptions(strips=False)
    yield from [BlockingOptions(pack_rows=rows, pack_columns=packing) for rows in packings for packing in columns]
    tiles = [(1, 1), (4, 1), *[(rows, wide) for wide, rows in tile_shapes().items()]]
    yield from [BlockingOptions(tile=(rows, min(wide, -(-blocking.n // work.lanes))), many_tasks=wide % 2 == 0) for rows, wide in tiles]
    for depth in [d for d in (8, 24) if d < blocking.k]:
        blocks = -(-blocking.k // depth)
        yield from [BlockingOptions(tile=(4, 1), depth=depth, splits=splits) for splits in dict.fromkeys([1, 2, min(blocks, 5)])]
        yield from [
            BlockingOptions(tile=(3, 2), depth=depth, splits=1, pack_rows=rows, pack_columns=p) for rows in packings for p in columns
        ]
