"""How a product is cut up: tiles for the registers, blocks of k and of columns for the caches, tasks for the threads.

All of it follows from the shape alone, so that sums are formed in the same order whatever the number of threads.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

from volta_fn.backends.native.matmul.numbers import Working
from volta_fn.backends.native.matmul.tile import tile_shapes

_DEPTH = 384  # k in a block: a panel of A should fit into the level-1 cache
_WHOLE_DEPTH = 512  # so many k are not cut into blocks
_BLOCK_BYTES = 448 << 10  # of B that a task goes over again and again: half of a level-2 cache
_STACK_BYTES = 32 << 10  # a packed block of B may take on the stack
_TASK_STEPS = 40_000  # multiplications of vectors, some 10 µs, are too few for a task
_TASKS = 24  # are enough for any thread to have its share


class Packing(enum.Enum):
    """Where tiles read B: where it lies, or packed for each task, or packed as a whole beforehand."""

    NONE = 0
    TASK = 1
    WHOLE = 2


class Schedule(NamedTuple):
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
    #: k in a block, of which there are `blocks`; a part of the sum (there are `splits`) has `part` blocks.
    depth: int
    blocks: int
    splits: int
    part: int
    #: Panels in a task.
    task_rows: int
    task_columns: int
    pack_rows: bool
    packing: Packing
    #: Whether tiles fetch B ahead.
    prefetch: bool

    @property
    def row_tasks(self) -> int:
        """Tasks above one another."""
        return -(-self.row_panels // self.task_rows)

    @property
    def column_tasks(self) -> int:
        """Tasks beside one another."""
        return -(-self.column_panels // self.task_columns)

    @property
    def tasks(self) -> int:
        """All tasks."""
        return self.batch * self.splits * self.row_tasks * self.column_tasks

    @property
    def edge(self) -> int:
        """Columns of the last panel."""
        return self.n - (self.column_panels - 1) * self.width

    @property
    def tallest(self) -> int:
        """The most rows of a panel."""
        return self.rows + (self.taller > 0)

    @property
    def block_elements(self) -> int:
        """The size of a task's packed block of B."""
        return self.task_columns * self.width * self.depth

    def on_stack(self, itemsize: int) -> bool:
        """Whether a task's packed block of B is small enough for the stack."""
        return self.block_elements * itemsize <= _STACK_BYTES


def schedule(
    work: Working,
    sizes: tuple[int, int, int, int],
    rows_in_place: tuple[int, int] | None,
    columns_in_place: bool,
) -> Schedule:
    """The cuts for ``(batch, m, n, k)``; `rows_in_place` are the strides of A by m and k if it can be read where it lies."""
    batch, m, n, k = sizes
    rows, vectors = _tile(work, m, n)
    row_panels = max(1, -(-m // rows))
    width = vectors * work.lanes
    column_panels = max(1, -(-n // width))
    blocks = 1 if k <= _WHOLE_DEPTH else -(-k // _DEPTH)
    depth = -(-k // blocks)
    if blocks > 1:
        depth += -depth % 8
        blocks = -(-k // depth)
    splits, part = _splits(batch * row_panels * column_panels, rows * vectors * depth, blocks)
    task_rows, task_columns = _task(work, batch * splits, (row_panels, column_panels), (rows, vectors), depth, part)
    packing = Packing.TASK if task_rows >= row_panels else Packing.WHOLE
    if columns_in_place and row_panels <= 2:
        packing = Packing.NONE
    return Schedule(
        batch, m, n, k, row_panels, m % row_panels, m // row_panels, width, column_panels, depth, blocks, splits, part,
        task_rows, task_columns, rows_in_place is None or _crowded(work, rows_in_place, column_panels), packing, True,
    )  # fmt: skip


def _tile(work: Working, m: int, n: int) -> tuple[int, int]:
    """The rows and vectors of tiles that go over the whole in the least time."""
    vectors = max(1, -(-n // work.lanes))

    def cycles(shape: tuple[int, int]) -> float:
        wide, rows = shape
        total = 0.0
        for across in _pieces(vectors, wide):
            for down in _pieces(max(m, 1), rows, even=True):
                total += max(4.0, down * across / 2, (down + across) / 2, 2.0 * across / 2) + 0.1 * across
        return total

    wide, rows = min(tile_shapes().items(), key=cycles)
    return rows, min(wide, vectors)


def _pieces(total: int, size: int, *, even: bool = False) -> list[int]:
    """A total in pieces of at most `size`; `even` ones differ by no more than one."""
    count = -(-total // size)
    if even:
        return [total // count + (i < total % count) for i in range(count)]
    return [size] * (count - 1) + [total - (count - 1) * size]


def _splits(tiles: int, steps: int, blocks: int) -> tuple[int, int]:
    """Into how many parts to cut the sums, where there are few and long ones, and the blocks of a part."""
    if tiles >= 8 or blocks < 4 or tiles * blocks * steps < 8 * _TASK_STEPS:
        return 1, blocks
    splits = min(blocks, -(-_TASKS // (2 * tiles)))
    part = -(-blocks // splits)
    return -(-blocks // part), part


def _task(work: Working, stack: int, panels: tuple[int, int], shape: tuple[int, int], depth: int, part: int) -> tuple[int, int]:
    """The panels of A and of B in a task."""
    row_panels, column_panels = panels
    rows, vectors = shape
    columns = max(1, min(column_panels, _BLOCK_BYTES // (max(depth, 1) * vectors * work.lanes * work.itemsize)))
    columns = -(-column_panels // -(-column_panels // columns))
    tile = max(1, rows * vectors * depth * part)
    total = stack * row_panels * column_panels * tile
    wanted = max(_TASK_STEPS, total // _TASKS)
    down = max(1, min(row_panels, wanted // (tile * columns)))
    if down * columns * tile > 2 * wanted and down == 1:
        columns = max(1, min(columns, -(-wanted // tile)))
    return -(-row_panels // -(-row_panels // down)), columns


def _crowded(work: Working, strides: tuple[int, int], column_panels: int) -> bool:
    """Whether A is better copied: where its lines fall upon one another in the cache, or are far apart, and are read often."""
    line = max(strides) * work.itemsize
    return column_panels > 2 and line > 512 and (line % 1024 == 0 or strides[1] != 1)
