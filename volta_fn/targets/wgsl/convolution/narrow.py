"""Convolutions with few outputs: loaded elements serve several results."""

from __future__ import annotations

from itertools import product

import numpy as np

from volta_fn.compiler.correlations import Correlation
from volta_fn.compiler.target import TargetCapabilities
from volta_fn.targets.wgsl.matmul.operands import digits, strided_offset, times, total
from volta_fn.targets.wgsl.matmul.schedule import Working, working
from volta_fn.targets.wgsl.routine import Dispatch
from volta_fn.targets.wgsl.scalars.shader import Shader

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
        group, number = digits(f, f.group, (c.groups, each))
        index = f.let("u32", f"{number} * {_INVOCATIONS}u + local")
        image, strip, column = digits(f, f.let("u32", f"min({index}, {count - 1}u)"), (c.images, strips, across.positions))
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
            further, j, k = digits(f, number, sizes)
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
