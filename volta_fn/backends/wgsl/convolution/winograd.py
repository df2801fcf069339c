"""Winograd's convolution: windows that move by single steps, as products at points (see `compiler/contractions/points`).

The taps, and squares of n by n elements of the input that overlap (*tiles*), are transformed to workspaces ``[points, groups, …]``; at each
of the n² points tiles times channels are multiplied with channels times outputs; and the products are transformed to squares of m by m
places. Tiles are neighbours in the workspaces where places are in memory; channels and outputs are, where those are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

import numpy as np

from volta_fn.backends.wgsl.facts import Facts
from volta_fn.backends.wgsl.matmul.choice import choose
from volta_fn.backends.wgsl.matmul.epilogues import rounded
from volta_fn.backends.wgsl.matmul.indices import digits, total, walked
from volta_fn.backends.wgsl.matmul.tiles import Buffers, tiled
from volta_fn.backends.wgsl.matmul.working import Working, working
from volta_fn.backends.wgsl.routine import Dispatch, Routine
from volta_fn.backends.wgsl.scalars.memory import Array
from volta_fn.backends.wgsl.scalars.number import Number
from volta_fn.backends.wgsl.scalars.shader import Shader
from volta_fn.compiler.contractions.geometry import Correlation
from volta_fn.compiler.contractions.maps import Contraction, Map, Target
from volta_fn.compiler.contractions.points import of_input, of_taps, to_places
from volta_fn.compiler.contractions.problem import Walk

_INVOCATIONS = 128
_FLOAT = np.dtype(np.float32)

#: Channels above which six points round too much.
_MANY = 128

#: Multiplications that a large device does while it reads or writes a byte, and while a dispatch waits for the one before it.
_BYTE, _DISPATCH = 8, 80_000_000


def points_for(c: Correlation, dtypes: tuple[np.dtype, np.dtype, np.dtype], *, wanted: bool) -> int | None:
    """How many points along an axis serve a correlation, and round little enough; None if there are none, or others are faster.

    If it is `wanted`, it need not be faster.
    """
    if len(c.axes) != 2 or any((axis.stride, axis.dilation) != (1, 1) for axis in c.axes) or working(dtypes[2]).dtype != _FLOAT:
        return None
    taps = c.axes[0].taps, c.axes[1].taps
    found = {(3, 3): 4 if c.channels > _MANY else 6, (5, 5): 6}.get(taps)
    return found if found is not None and (wanted or Shape(c, found).cost < c.products) else None


@dataclass(frozen=True)
class Shape:
    """How a correlation is cut up."""

    c: Correlation
    points: int

    @property
    def places(self) -> int:
        """Places of a tile along an axis."""
        return self.points - self.c.axes[0].taps + 1

    @property
    def tiles(self) -> tuple[int, ...]:
        """Images, and tiles along both axes."""
        return self.c.images, *[-(-axis.places // self.places) for axis in self.c.axes]

    @property
    def count(self) -> int:
        """All tiles, and some that are none: a multiple of 4."""
        return -(-prod(self.tiles) // 4) * 4

    @property
    def stack(self) -> int:
        """Points times groups."""
        return self.points**2 * self.c.groups

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Elements of the workspaces: for taps, for tiles, for products."""
        c = self.c
        return self.stack * c.channels * c.outputs, self.stack * c.channels * self.count, self.stack * c.outputs * self.count

    @property
    def cost(self) -> float:
        """About how long it takes, in multiplications."""
        return self.stack * self.c.channels * self.c.outputs * self.count + 8 * _BYTE * sum(self.sizes) + 3 * _DISPATCH

    @property
    def by_tiles(self) -> tuple[bool, bool]:
        """Whether tiles are neighbours in the workspaces for tiles and for products."""
        return self.c.x.strides[2] != 1, self.c.y.strides[2] != 1


class Arithmetic:
    """The algebra of expressions."""

    def __init__(self, f: Shader) -> None:
        self.f = f

    def plus(self, x: str, y: str) -> str:
        """x + y"""
        return self.f.let("f32", f"{x} + {y}")

    def minus(self, x: str, y: str) -> str:
        """x - y"""
        return self.f.let("f32", f"{x} - {y}")

    def more(self, x: str, factor: float, y: str) -> str:
        """x + factor y"""
        return self.f.let("f32", f"fma({factor!r}f, {y}, {x})")

    def times(self, factor: float, x: str) -> str:
        """factor x"""
        return self.f.let("f32", f"{factor!r}f * {x}")


def winograd(
    c: Correlation,
    points: int,
    dtypes: tuple[np.dtype, np.dtype, np.dtype],
    facts: Facts,
    workspace: int,
) -> Routine:
    """The routine of a correlation; its three workspaces have the numbers from `workspace` on."""
    shape, work = Shape(c, points), working(dtypes[2])
    buffers = Buffers(workspace, workspace + 1, workspace + 2, workspace + 3)
    product, ordered = _product(shape, buffers)
    middle = tiled(product, work, choose(product, work, facts), facts, rounded(_FLOAT), ordered)
    writer = _Writer(shape, work, facts, workspace)
    taps = writer.taps(dtypes[1])
    tiles = writer.tiles(dtypes[0])
    results = writer.results(dtypes[2])
    return Routine((taps, tiles, *middle.dispatches, results), (*[4 * size for size in shape.sizes], *middle.workspaces))


def _product(shape: Shape, buffers: Buffers) -> tuple[Contraction, Buffers]:
    """The stack of products at points."""
    c, (t, p) = shape.c, shape.by_tiles
    channels, outputs, count, stack = c.channels, c.outputs, shape.count, shape.stack

    def walk(size: int, stride: int) -> Walk:
        return Walk((size,), (stride,))

    taps = Map(_FLOAT, shape.sizes[0], 0, walk(stack, channels * outputs), walk(outputs, 1), walk(channels, outputs))
    tile = walk(count, 1 if t else channels), walk(channels, count if t else 1)
    tiles = Map(_FLOAT, shape.sizes[1], 0, walk(stack, channels * count), *tile)
    target = Target(
        _FLOAT, shape.sizes[2], 0, walk(stack, outputs * count), walk(outputs, count if p else 1), walk(count, 1 if p else outputs)
    )
    whole = Contraction(taps, tiles, target)
    return (whole, buffers) if p else (whole.swapped(), buffers.swapped())


class _Writer:
    """The shaders of the transforms."""

    def __init__(self, shape: Shape, work: Working, facts: Facts, workspace: int) -> None:
        self.shape, self.c, self.work, self.facts, self.workspace = shape, shape.c, work, facts, workspace

    def _each(self, sizes: tuple[int, ...], write: Callable[[Shader, list[str]], None], f: Shader) -> Dispatch:
        """A shader with an invocation for each place in an array of these sizes."""
        number = f.let("u32", f"group * {_INVOCATIONS}u + local")
        with f.block(f"if ({number} < {prod(sizes)}u)"):
            write(f, digits(f, number, sizes))
        return f.dispatch(-(-prod(sizes) // _INVOCATIONS))

    def taps(self, dtype: np.dtype) -> Dispatch:
        """w at the points, ``[points, groups, channels, outputs]``."""
        c, n, r, f = self.c, self.shape.points, self.shape.c.axes[0].taps, Shader(self.facts, _INVOCATIONS)
        w, out = f.buffer(1, dtype), f.buffer(self.workspace, _FLOAT, True)

        def write(f: Shader, place: list[str]) -> None:
            group, channel, output = place
            a = Arithmetic(f)
            start = walked(f, [group, output, channel], c.w.strides[:3], c.w.offset)
            lines = [[self._read(f, w, total(f, start, i * c.w.strides[3] + j * c.w.strides[4])) for j in range(r)] for i in range(r)]
            across = [of_taps(a, line, n) for line in lines]
            found = [of_taps(a, [line[j] for line in across], n) for j in range(n)]
            self._scatter(f, out, found, walked(f, place, (c.channels * c.outputs, c.outputs, 1)), c.groups * c.channels * c.outputs)

        return self._each((c.groups, c.channels, c.outputs), write, f)

    def tiles(self, dtype: np.dtype) -> Dispatch:
        """x at the points, ``[points, groups, channels, tiles]`` or ``[points, groups, tiles, channels]``."""
        c, shape, f = self.c, self.shape, Shader(self.facts, _INVOCATIONS)
        x, out = f.buffer(0, dtype), f.buffer(self.workspace + 1, _FLOAT, True)

        def write(f: Shader, place: list[str]) -> None:
            group, channel, tile = place if shape.by_tiles[0] else (place[0], place[2], place[1])
            a, n = Arithmetic(f), shape.points
            image, *corner = digits(f, tile, shape.tiles)
            start = walked(f, [group, image, channel], c.x.strides[:3], c.x.offset)
            inside, offsets = [], []
            for number, axis, stride in zip(corner, c.axes, c.x.strides[3:], strict=True):
                at = [f.let("u32", f"{number} * {shape.places}u + {(i - axis.low) % 2**32}u") for i in range(n)]
                inside.append([f.let("bool", f"{i} < {axis.size}u") for i in at])
                offsets.append([f.let("u32", f"{i} * {stride}u") for i in at])
            lines = []
            for i in range(n):
                there = [f.let("bool", f"{inside[0][i]} && {inside[1][j]}") for j in range(n)]
                where = [f"select(0u, {start} + {offsets[0][i]} + {offsets[1][j]}, {there[j]})" for j in range(n)]
                line = [self._read(f, x, f.let("u32", at)) for at in where]
                lines.append(of_input(a, [f.let("f32", f"select(0.0f, {v}, {ok})") for v, ok in zip(line, there, strict=True)]))
            found = [of_input(a, [line[j] for line in lines]) for j in range(n)]
            steps = (c.channels * shape.count, shape.count, 1) if shape.by_tiles[0] else (c.channels * shape.count, c.channels, 1)
            self._scatter(f, out, found, walked(f, place, steps), c.groups * c.channels * shape.count)

        many = prod(shape.tiles)
        sizes = (c.groups, c.channels, many) if shape.by_tiles[0] else (c.groups, many, c.channels)
        return self._each(sizes, write, f)

    def results(self, dtype: np.dtype) -> Dispatch:
        """The places from the products."""
        c, shape, f = self.c, self.shape, Shader(self.facts, _INVOCATIONS)
        products, out = f.buffer(self.workspace + 2, _FLOAT), f.buffer(2, dtype, True)
        m, n = shape.places, shape.points
        sizes = [axis.places for axis in c.axes]

        def write(f: Shader, place: list[str]) -> None:
            group, output, tile = place if shape.by_tiles[1] else (place[0], place[2], place[1])
            a = Arithmetic(f)
            steps = (c.outputs * shape.count, shape.count, 1) if shape.by_tiles[1] else (c.outputs * shape.count, c.outputs, 1)
            start, step = walked(f, place, steps), c.groups * c.outputs * shape.count
            read = [[products.load(total(f, start, (i * n + j) * step)).text for j in range(n)] for i in range(n)]
            lines = [to_places(a, line, m) for line in read]
            found = [to_places(a, [line[j] for line in lines], m) for j in range(m)]  # by column and row
            image, *corner = digits(f, tile, shape.tiles)
            first = [f.let("u32", f"{number} * {m}u") for number in corner]
            base = walked(f, [group, image, output, *first], c.y.strides, c.y.offset)
            for i in range(m):
                for j in range(m):
                    with f.block(f"if ({first[0]} + {i}u < {sizes[0]}u && {first[1]} + {j}u < {sizes[1]}u)"):
                        result = self.work.number(f, found[j][i], dtype)
                        out.store(total(f, base, i * c.y.strides[3] + j * c.y.strides[4]), result)

        many = prod(shape.tiles)
        return self._each((c.groups, c.outputs, many) if shape.by_tiles[1] else (c.groups, many, c.outputs), write, f)

    def _read(self, f: Shader, array: Array, at: str) -> str:
        return self.work.read(f, array.load(at))

    @staticmethod
    def _scatter(f: Shader, out: Array, columns: list[list[str]], start: str, step: int) -> None:
        """Write values, by column and row, at points `step` elements apart."""
        n = len(columns)
        for i in range(n):
            for j in range(n):
                out.store(total(f, start, (i * n + j) * step), Number(_FLOAT, columns[j][i]))
