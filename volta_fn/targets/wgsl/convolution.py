"""Convolutions in WGSL, and both of their gradients.

With few outputs, by Winograd's transforms, and by matrix products.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from math import inf, prod
from typing import Any, NamedTuple

import numpy as np

from volta_fn.codegen.windows import inverse_transform, transform_input, transform_taps
from volta_fn.compiler.contractions import Correlation, IndexedContraction, OperandMap, ResultMap, Walk, correlations, of_correlation
from volta_fn.compiler.target import TargetCapabilities
from volta_fn.core.aval import ShapedArray
from volta_fn.targets.wgsl.library.movement import INVOCATIONS
from volta_fn.targets.wgsl.matmul.contract import choose, contract, oriented
from volta_fn.targets.wgsl.matmul.results import BufferNumbers, Working, rounded, strided_offset, total, working
from volta_fn.targets.wgsl.matmul.tiles import tiled
from volta_fn.targets.wgsl.routine import Dispatch, Routine, Shader, ShaderArray
from volta_fn.targets.wgsl.scalars import constant, is_supported
from volta_fn.targets.wgsl.scalars.number import Number
from volta_fn.targets.wgsl.shader import times

# Convolutions with few outputs: loaded elements serve several results.
#
# An invocation has several rows of results, for all outputs of a group. It iterates over channels and a window's columns, of which it
# loads what its results need; neighbouring invocations have neighbouring columns, so that they load neighbours. The taps are in
# workgroup memory, some channels of them at a time.

_INVOCATIONS = 128

#: Outputs, at most, and sums of an invocation.
_FEW, _SUMS = 4, 12

#: Terms of a sum, at most, per result: longer sums are better divided.
_LONG = 4

#: Taps, at most, and taps in workgroup memory at a time.
_TAPS, _STAGED = 64, 512


#: The dtypes of x, w and y.
_Dtypes = tuple[np.dtype, np.dtype, np.dtype]


def is_narrow(c: Correlation, dtype: np.dtype) -> bool:
    """Return whether this algorithm serves a correlation with results of a dtype."""
    if len(c.axes) != 2 or c.outputs > _FEW or not 4 <= c.taps <= _TAPS or working(dtype).lanes != 4:
        return False
    if c.x.strides[-1] != 1 or min(axis.positions for axis in c.axes) < 4 or 0 in (c.channels, *[axis.size for axis in c.axes]):
        return False
    return c.channels * c.taps <= _LONG * c.groups * c.images * c.positions


def narrow(c: Correlation, dtypes: _Dtypes, capabilities: TargetCapabilities) -> Dispatch:
    """Return the dispatch of a correlation with few outputs."""
    return _Narrow(c, working(dtypes[2]), dtypes, capabilities).dispatch()


class _Narrow:
    def __init__(self, c: Correlation, work: Working, dtypes: _Dtypes, capabilities: TargetCapabilities) -> None:
        self.c, self.work = c, work
        self.f = f = Shader(capabilities, _INVOCATIONS)
        self.x, self.w, self.y = f.buffer(0, dtypes[0]), f.buffer(1, dtypes[1]), f.buffer(2, dtypes[2], True)
        self.below = max(1, min(_SUMS // c.outputs, 8, c.axes[0].positions))
        self.channels = min(c.channels, _STAGED // c.taps)
        self.tap = work.vector if c.outputs > 1 else work.type
        self.taps = f.workgroup("taps", self.tap, self.channels * c.taps)

    def dispatch(self) -> Dispatch:
        c, f = self.c, self.f
        down, across = c.axes
        strips = -(-down.positions // self.below)
        count = c.images * strips * across.positions
        each = -(-count // _INVOCATIONS)
        group, number = f.digits(f.group, (c.groups, each))
        index = f.let("u32", f"{number} * {_INVOCATIONS}u + local")
        image, strip, column = f.digits(f.let("u32", f"min({index}, {count - 1}u)"), (c.images, strips, across.positions))
        first = f.let("u32", times(strip, self.below))
        start = strided_offset(f, [group, image], c.x.strides[:2], c.x.offset)
        self._locate_rows(first)
        self.left = f.let("u32", f"{times(column, across.stride)} + {-across.low % 2**32}u")
        self.sums = [[f.var(self.work.type, f"{self.work.type}()") for _ in range(c.outputs)] for _ in range(self.below)]
        if self.channels == c.channels:
            self._add(group, start, "0u", c.channels)
        else:
            with f.loop(c.channels, 0, self.channels) as channel:
                self._add(group, start, channel, f"min({self.channels}u, {c.channels}u - {channel})")
                f.emit("workgroupBarrier();")
        with f.block(f"if ({index} < {count}u)"):
            self._store(group, image, first, column)
        return f.dispatch(c.groups * each, c.products)

    def _locate_rows(self, first: str) -> None:
        """Compute the rows of x that the results meet: offsets, and whether they exist."""
        f, axis = self.f, self.c.axes[0]
        self.rows_of_x: dict[int, tuple[str, str]] = {}
        for step in sorted({p * axis.stride + k * axis.dilation for p in range(self.below) for k in range(axis.taps)}):
            at = f.let("u32", f"{times(first, axis.stride)} + {(step - axis.low) % 2**32}u")
            exists = f.let("bool", f"{at} < {axis.size}u")
            self.rows_of_x[step] = f.let("u32", times(f"min({at}, {axis.size - 1}u)", self.c.x.strides[3])), exists

    def _add(self, group: str, start: str, channel: str, count: int | str) -> None:
        """Add the products of some channels."""
        c, f, (down, across) = self.c, self.f, self.c.axes
        self._stage(group, channel)
        with f.loop(count) as i, f.loop(across.taps) as j:
            base = total(f, start, times(f"({total(f, channel, i)})", c.x.strides[2]))
            at = f.let("u32", f"{self.left} + {times(j, across.dilation)}")
            exists = f.let("bool", f"{at} < {across.size}u")
            base = f.let("u32", f"{base} + min({at}, {across.size - 1}u)")
            xs = {step: self._read(base, offset_and_bound, exists) for step, offset_and_bound in self.rows_of_x.items()}
            for k in range(down.taps):
                tap = f.let(self.tap, f"{self.taps}[({i} * {across.taps}u + {j}) * {down.taps}u + {k}u]")
                weights = [f"{tap}.{'xyzw'[o]}" if c.outputs > 1 else tap for o in range(c.outputs)]
                for (p, sums), (o, w) in product(enumerate(self.sums), enumerate(weights)):
                    f.emit(f"{sums[o]} = {self.work.add_product(xs[p * down.stride + k * down.dilation], w, sums[o])};")

    def _read(self, base: str, offset_and_bound: tuple[str, str], exists: str) -> str:
        f, (offset, row_exists) = self.f, offset_and_bound
        value = self.work.convert_operand(f, self.x.load(f.let("u32", f"{base} + {offset}")))
        return f.let(self.work.type, f"select({self.work.padding(f, self.work.type)}, {value}, {row_exists} && {exists})")

    def _stage(self, group: str, channel: str) -> None:
        """Load the taps of channels to workgroup memory, by channel, column and row."""
        c, f, work = self.c, self.f, self.work
        sizes = self.channels, c.axes[1].taps, c.axes[0].taps
        with f.loop(self.channels * c.taps, "local", _INVOCATIONS) as number:
            further, j, k = f.digits(number, sizes)
            # Beyond the last channel: the last one.
            existing = f.let("u32", f"min({total(f, channel, further)}, {c.channels - 1}u)")
            at = strided_offset(f, [group, existing, k, j], [c.w.strides[i] for i in (0, 2, 3, 4)], c.w.offset)
            taps = [work.convert_operand(f, self.w.load(total(f, at, o * c.w.strides[1]))) for o in range(c.outputs)]
            four = ", ".join([*taps, *[f"{work.type}()"] * (4 - c.outputs)])
            f.emit(f"{self.taps}[{number}] = {f'{self.tap}({four})' if c.outputs > 1 else taps[0]};")
        f.emit("workgroupBarrier();")

    def _store(self, group: str, image: str, first: str, column: str) -> None:
        c, f, down = self.c, self.f, self.c.axes[0]
        for p, sums in enumerate(self.sums):
            down_index = f.let("u32", f"{first} + {p}u")
            with f.block(f"if ({down_index} < {down.positions}u)" if down.positions % self.below else ""):
                at = strided_offset(f, [group, image, down_index, column], [c.y.strides[i] for i in (0, 1, 3, 4)], c.y.offset)
                for o, sum_ in enumerate(sums):
                    self.y.store(total(f, at, o * c.y.strides[2]), self.work.convert_sum(f, sum_, self.y.dtype))


# Tile a correlation for Winograd's convolution, and estimate its time.
#
# With n points along an axis, squares of n by n elements of x (*tiles*) and of r by r taps (*blocks*) give m by m results, m = n - r +
# 1. In a convolution a block has all taps, and the results are tiled. In a gradient by the weights the results are few: there a tile
# has them all, and the taps are divided into blocks, over which sums run.

#: Taps, or results, along both axes, and the numbers of points that serve them.
_POINTS = {(3, 3): (4, 6), (5, 5): (6,)}

#: Channels above which six points round too much, where windows have few taps.
_MANY = 128

#: Multiplications that a large device does while it accesses a byte, and while a dispatch waits for the one before it.
_BYTE, _DISPATCH = 8, 80_000_000


@dataclass(frozen=True)
class Tiling:
    """A tiling of a correlation."""

    c: Correlation
    points: int
    #: Taps of a block along an axis.
    block: int

    @property
    def positions(self) -> int:
        """Results of a tile along an axis."""
        return self.points - self.block + 1

    @property
    def tiles(self) -> tuple[int, ...]:
        """Images, and tiles along both axes."""
        return self.c.images, *[-(-axis.positions // self.positions) for axis in self.c.axes]

    @property
    def blocks(self) -> tuple[int, ...]:
        """Channels, and blocks of taps along both axes."""
        return self.c.channels, *[-(-axis.taps // self.block) for axis in self.c.axes]

    @property
    def count(self) -> int:
        """Tiles, padded to a multiple of 4."""
        return -(-prod(self.tiles) // 4) * 4

    @property
    def terms(self) -> int:
        """Terms of a sum: all blocks."""
        return prod(self.blocks)

    @property
    def stack(self) -> int:
        """Points times groups."""
        return self.points**2 * self.c.groups

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Elements of the workspaces for taps, tiles and products."""
        outputs, terms, count = self.c.outputs, self.terms, self.count
        return self.stack * terms * outputs, self.stack * terms * count, self.stack * outputs * count

    @property
    def cost(self) -> float:
        """The estimated time, in multiplications."""
        return self.stack * self.terms * self.c.outputs * self.count + 8 * _BYTE * sum(self.sizes) + 3 * _DISPATCH

    @property
    def by_outputs(self) -> bool:
        """Whether outputs, or else terms, are contiguous in the workspace for taps."""
        channel, *corner = self.c.w.strides[2:]
        steps = channel, *[self.block * stride for stride in corner]
        return self.c.w.strides[1] < min([step for step, count in zip(steps, self.blocks, strict=True) if count > 1], default=inf)

    @property
    def by_tiles(self) -> tuple[bool, bool]:
        """Whether tiles are contiguous, in the workspaces for tiles and for products.

        The alternatives are terms and outputs.
        """
        x, y = self.c.x.strides, self.c.y.strides
        divides_taps = max(self.blocks[1:]) > 1
        return x[1] == 1 if divides_taps else x[2] != 1, y[2] != 1


def tiling_of(
    c: Correlation, dtypes: tuple[np.dtype, np.dtype, np.dtype], capabilities: TargetCapabilities, *, forced: bool
) -> Tiling | None:
    """Return the fastest tiling that rounds little enough and fits the bindings."""
    if len(c.axes) != 2 or any((axis.stride, axis.dilation) != (1, 1) for axis in c.axes) or working(dtypes[2]).dtype != np.float32:
        return None
    taps, positions = (c.axes[0].taps, c.axes[1].taps), (c.axes[0].positions, c.axes[1].positions)
    tilings = [Tiling(c, n, taps[0]) for n in _POINTS.get(taps, ()) if n == 4 or taps != (3, 3) or c.channels <= _MANY]
    if not tilings:
        tilings = [Tiling(c, n, n - positions[0] + 1) for n in _POINTS.get(positions, ())]
    tilings = [tiling for tiling in tilings if 4 * max(tiling.sizes) <= capabilities.binding]
    best = min(tilings, key=lambda tiling: tiling.cost, default=None)
    return best if best is not None and (forced or best.cost < c.products) else None


# Compute Winograd's convolution: products at points.
#
# See `codegen.windows` for the transforms; windows move by single steps. The *blocks* of taps, and overlapping squares of n by n
# elements of the input (*tiles*), are transformed to workspaces ``[points, groups, …]``; at each of the n² points tiles times terms
# (channels and blocks) are multiplied with terms times outputs; and the products are transformed to squares of m by m results.
# Neighbours in memory stay neighbours in the workspaces.

_FLOAT = np.dtype(np.float32)


class Arithmetic:
    """The algebra of expressions, in which the transforms are written."""

    def __init__(self, f: Shader) -> None:
        self.f = f

    def plus(self, x: str, y: str) -> str:
        """Return x + y."""
        return self.f.let("f32", f"{x} + {y}")

    def minus(self, x: str, y: str) -> str:
        """Return x - y."""
        return self.f.let("f32", f"{x} - {y}")

    def more(self, x: str, factor: float, y: str) -> str:
        """Return x + factor y."""
        return self.f.let("f32", f"fma({factor!r}f, {y}, {x})")

    def times(self, factor: float, x: str) -> str:
        """Return factor x."""
        return self.f.let("f32", f"{factor!r}f * {x}")


def winograd(tiling: Tiling, dtypes: tuple[np.dtype, np.dtype, np.dtype], capabilities: TargetCapabilities, workspace: int) -> Routine:
    """Return the routine of a tiled correlation; its workspaces follow `workspace`."""
    work = working(dtypes[2])
    buffers = BufferNumbers(workspace, workspace + 1, workspace + 2, workspace + 3)
    product, ordered = product_of(tiling, buffers)
    middle = tiled(product, work, choose(product, work, capabilities), capabilities, rounded(_FLOAT), ordered)
    writer = _Writer(tiling, work, capabilities, workspace)
    taps = writer.taps(dtypes[1])
    tiles = writer.tiles(dtypes[0])
    results = writer.results(dtypes[2])
    return Routine((taps, tiles, *middle.dispatches, results), (*[4 * size for size in tiling.sizes], *middle.workspaces))


def product_of(tiling: Tiling, buffers: BufferNumbers) -> tuple[IndexedContraction, BufferNumbers]:
    """Return the stack of products at points."""
    o, (t, p) = tiling.by_outputs, tiling.by_tiles
    terms, outputs, count, stack = tiling.terms, tiling.c.outputs, tiling.count, tiling.stack

    def walk(size: int, stride: int) -> Walk:
        return Walk((size,), (stride,))

    tap = walk(outputs, 1 if o else terms), walk(terms, outputs if o else 1)
    taps = OperandMap(_FLOAT, tiling.sizes[0], 0, walk(stack, terms * outputs), *tap)
    tile = walk(count, 1 if t else terms), walk(terms, count if t else 1)
    tiles = OperandMap(_FLOAT, tiling.sizes[1], 0, walk(stack, terms * count), *tile)
    target = ResultMap(
        _FLOAT, tiling.sizes[2], 0, walk(stack, outputs * count), walk(outputs, count if p else 1), walk(count, 1 if p else outputs)
    )
    contraction = IndexedContraction(taps, tiles, target)
    return (contraction, buffers) if p else (contraction.swapped(), buffers.swapped())


class _Writer:
    """Writes the shaders of the transforms."""

    def __init__(self, tiling: Tiling, work: Working, capabilities: TargetCapabilities, workspace: int) -> None:
        self.tiling, self.c, self.work, self.capabilities, self.workspace = tiling, tiling.c, work, capabilities, workspace

    def _each(self, sizes: tuple[int, ...], write: Callable[[Shader, list[str]], None], f: Shader) -> Dispatch:
        """Write a shader with an invocation for each index of an array of these sizes."""
        return f.for_each(prod(sizes), lambda number: write(f, f.digits(number, sizes)))

    def taps(self, dtype: np.dtype) -> Dispatch:
        """Transform w to the points.

        The result is ``[points, groups, terms, outputs]`` or ``[points, groups, outputs, terms]``.
        """
        c, tiling, f = self.c, self.tiling, Shader(self.capabilities, _INVOCATIONS)
        w, out = f.buffer(1, dtype), f.buffer(self.workspace, _FLOAT, True)
        terms, n, r = tiling.terms, tiling.points, tiling.block

        def write(f: Shader, index: list[str]) -> None:
            group, term, output = index if tiling.by_outputs else (index[0], index[2], index[1])
            channel, *corner = f.digits(term, tiling.blocks)
            start = strided_offset(f, [group, output, channel], c.w.strides[:3], c.w.offset)
            square = _Square(f, c.w.strides[3:], [axis.taps for axis in c.axes])
            for number, axis in zip(corner, c.axes, strict=True):
                square.row([f.let("u32", f"{number} * {r}u + {i}u") for i in range(r)], check=axis.taps % r != 0)
            a, rows = Arithmetic(f), square.read(lambda at: self._read(f, w, at), start)
            across = [transform_taps(a, row, n) for row in rows]
            columns = [transform_taps(a, [row[j] for row in across], n) for j in range(n)]
            steps = (terms * c.outputs, c.outputs, 1) if tiling.by_outputs else (terms * c.outputs, terms, 1)
            self._scatter(f, out, columns, strided_offset(f, index, steps), c.groups * terms * c.outputs)

        return self._each((c.groups, terms, c.outputs) if tiling.by_outputs else (c.groups, c.outputs, terms), write, f)

    def tiles(self, dtype: np.dtype) -> Dispatch:
        """Transform x to the points.

        The result is ``[points, groups, terms, tiles]`` or ``[points, groups, tiles, terms]``.
        """
        c, tiling, f = self.c, self.tiling, Shader(self.capabilities, _INVOCATIONS)
        x, out = f.buffer(0, dtype), f.buffer(self.workspace + 1, _FLOAT, True)
        terms, count, n = tiling.terms, tiling.count, tiling.points

        def write(f: Shader, index: list[str]) -> None:
            group, term, tile = index if tiling.by_tiles[0] else (index[0], index[2], index[1])
            (image, *corner), (channel, *further) = f.digits(tile, tiling.tiles), f.digits(term, tiling.blocks)
            start = strided_offset(f, [group, image, channel], c.x.strides[:3], c.x.offset)
            square = _Square(f, c.x.strides[3:], [axis.size for axis in c.axes])
            for number, block, axis in zip(corner, further, c.axes, strict=True):
                first = total(f, times(number, tiling.positions), times(block, tiling.block))
                square.row([f.let("u32", f"{first} + {(i - axis.low) % 2**32}u") for i in range(n)], check=True)
            a, rows = Arithmetic(f), square.read(lambda at: self._read(f, x, at), start)
            across = [transform_input(a, row) for row in rows]
            columns = [transform_input(a, [row[j] for row in across]) for j in range(n)]
            steps = (terms * count, count, 1) if tiling.by_tiles[0] else (terms * count, terms, 1)
            self._scatter(f, out, columns, strided_offset(f, index, steps), c.groups * terms * count)

        many = prod(tiling.tiles)
        return self._each((c.groups, terms, many) if tiling.by_tiles[0] else (c.groups, many, terms), write, f)

    def results(self, dtype: np.dtype) -> Dispatch:
        c, tiling, f = self.c, self.tiling, Shader(self.capabilities, _INVOCATIONS)
        products, out = f.buffer(self.workspace + 2, _FLOAT), f.buffer(2, dtype, True)
        m, n = tiling.positions, tiling.points
        sizes = [axis.positions for axis in c.axes]

        def write(f: Shader, index: list[str]) -> None:
            group, output, tile = index if tiling.by_tiles[1] else (index[0], index[2], index[1])
            a = Arithmetic(f)
            steps = (c.outputs * tiling.count, tiling.count, 1) if tiling.by_tiles[1] else (c.outputs * tiling.count, c.outputs, 1)
            start, step = strided_offset(f, index, steps), c.groups * c.outputs * tiling.count
            read = [[products.load(total(f, start, (i * n + j) * step)).text for j in range(n)] for i in range(n)]
            rows = [inverse_transform(a, row, m) for row in read]
            columns = [inverse_transform(a, [row[j] for row in rows], m) for j in range(m)]  # by column and row
            image, *corner = f.digits(tile, tiling.tiles)
            first = [f.let("u32", f"{number} * {m}u") for number in corner]
            base = strided_offset(f, [group, image, output, *first], c.y.strides, c.y.offset)
            for i in range(m):
                for j in range(m):
                    with f.block(f"if ({first[0]} + {i}u < {sizes[0]}u && {first[1]} + {j}u < {sizes[1]}u)"):
                        result = self.work.convert_sum(f, columns[j][i], dtype)
                        out.store(total(f, base, i * c.y.strides[3] + j * c.y.strides[4]), result)

        many = prod(tiling.tiles)
        return self._each((c.groups, c.outputs, many) if tiling.by_tiles[1] else (c.groups, many, c.outputs), write, f)

    def _read(self, f: Shader, array: ShaderArray, at: str) -> str:
        return self.work.convert_operand(f, array.load(at))

    @staticmethod
    def _scatter(f: Shader, out: ShaderArray, columns: list[list[str]], start: str, step: int) -> None:
        """Store values, by column and row, at points with a stride of `step` elements."""
        n = len(columns)
        for i in range(n):
            for j in range(n):
                out.store(total(f, start, (i * n + j) * step), Number(_FLOAT, columns[j][i]))


class _Square:
    """The elements of some rows and columns; those outside of the array are zero."""

    def __init__(self, f: Shader, strides: Sequence[int], sizes: Sequence[int]) -> None:
        self.f, self.strides, self.sizes = f, strides, sizes
        self.offsets: list[list[str]] = []
        self.inside: list[list[str]] = []

    def row(self, positions: list[str], *, check: bool) -> None:
        """Add the offsets along the next axis; `check` tells whether some may be outside."""
        f, axis = self.f, len(self.offsets)
        self.offsets.append([f.let("u32", times(at, self.strides[axis])) for at in positions])
        self.inside.append([f.let("bool", f"{at} < {self.sizes[axis]}u") for at in positions] if check else [])

    def read(self, load: Callable[[str], str], start: str) -> list[list[str]]:
        """Load all elements, by row and column."""
        f, (rows, columns), (above, left) = self.f, self.offsets, self.inside

        def load_element(i: int, j: int) -> str:
            tests = [row[k] for row, k in ((above, i), (left, j)) if row]
            index = f"{start} + {rows[i]} + {columns[j]}"
            if not tests:
                return load(f.let("u32", index))
            is_inside = f.let("bool", " && ".join(tests))
            value = load(f.let("u32", f"select(0u, {index}, {is_inside})"))
            return f.let("f32", f"select(0.0f, {value}, {is_inside})")

        return [[load_element(i, j) for j in range(len(columns))] for i in range(len(rows))]


# The choice of algorithm for a convolution, or a gradient of one.

_UINT32 = np.dtype(np.uint32)

#: Multiplications that keep a GPU busy alone.
_MUCH = 1 << 26


def conv_general_dilated(avals: tuple[ShapedArray, ...], params: dict[str, Any], capabilities: TargetCapabilities) -> Routine | None:
    """Return the routine of a convolution.

    None for dtypes that the device lacks, and for results without elements.
    """
    problems, dtypes, elements = canonical(avals, params)
    if not all(is_supported(dtype, capabilities) for dtype in dtypes):
        return None
    algorithm = params.get("algorithm", "auto")
    summed = [c for c in problems if c.taps * c.channels]
    dispatches: list[Dispatch] = [] if summed == problems else [zeros(dtypes[2], elements[2], capabilities)]
    workspaces: list[int] = []
    for c in summed:
        first = len(avals) + 1 + len(workspaces)
        tiling = tiling_of(c, dtypes, capabilities, forced=algorithm == "winograd") if algorithm in ("auto", "winograd") else None
        if tiling is not None:
            routine = winograd(tiling, dtypes, capabilities, first)
        elif algorithm == "auto" and is_narrow(c, dtypes[2]):
            routine = Routine((narrow(c, dtypes, capabilities),))
        else:
            contraction, buffers = oriented(of_correlation(c, dtypes, elements))
            routine = contract(contraction, capabilities, buffers._replace(workspace=first), alone=c.products >= _MUCH)
        dispatches += routine.dispatches
        workspaces += routine.workspaces
    return Routine(tuple(dispatches), tuple(workspaces)) if dispatches else None


def zeros(dtype: np.dtype, size: int, capabilities: TargetCapabilities) -> Dispatch:
    """Write zeros to all results."""
    shader, words = Shader(capabilities, INVOCATIONS), -(-size * dtype.itemsize // 4)
    target = shader.buffer(2, _UINT32, written=True, size=words)
    return shader.for_each(-(-words // 4), lambda four: target.store4(four, [constant(_UINT32, 0)] * 4))


def contractions(avals: tuple[ShapedArray, ...], params: dict[str, Any]) -> list[tuple[IndexedContraction, BufferNumbers]]:
    """Return the contractions that make a convolution; none if it has no elements."""
    problems, dtypes, elements = canonical(avals, params)
    return [oriented(of_correlation(c, dtypes, elements)) for c in problems]


def products_at_points(
    avals: tuple[ShapedArray, ...], params: dict[str, Any], capabilities: TargetCapabilities
) -> list[tuple[IndexedContraction, BufferNumbers]]:
    """Return the products at points of correlations that use Winograd's algorithm."""
    problems, dtypes, _ = canonical(avals, params)
    tilings = [tiling_of(c, dtypes, capabilities, forced=False) for c in problems]
    return [product_of(tiling, BufferNumbers()) for tiling in tilings if tiling is not None]


class Canonical(NamedTuple):
    """A convolution as correlations, with the dtypes and sizes of operands and result."""

    problems: list[Correlation]
    dtypes: tuple[np.dtype, np.dtype, np.dtype]
    elements: tuple[int, int, int]


def canonical(avals: tuple[ShapedArray, ...], params: dict[str, Any]) -> Canonical:
    """Return a convolution as correlations; none if it has no elements."""
    lhs, rhs = avals
    preferred = params["preferred_element_type"]
    dtype = np.promote_types(lhs.dtype, rhs.dtype) if preferred is None else np.dtype(preferred)
    problems = correlations(lhs.shape, rhs.shape, params)
    size = sum(c.groups * c.images * c.outputs * c.positions for c in problems)
    return Canonical(problems if size else [], (lhs.dtype, rhs.dtype, dtype), (prod(lhs.shape), prod(rhs.shape), size))


#: Makers of routines by the name of the primitive.
ROUTINES = {"conv_general_dilated": conv_general_dilated}
