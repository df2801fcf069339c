"""Index vectors in buffers: where each window of a gather or scatter begins."""

from __future__ import annotations

import functools

import numpy as np

from volta_fn.codegen.geometry.window_offsets import Starts, WindowStart, window_start
from volta_fn.targets.wgsl.index_arith import plus, times
from volta_fn.targets.wgsl.scalars import Array, Shader

_UINT32 = np.dtype(np.uint32)


class Integers:
    """A buffer of positions, clamped into ranges; 64-bit ones are pairs of words.

    With a size to be `added`, negative int32 positions count from there.
    """

    def __init__(self, shader: Shader, number: int, dtype: np.dtype, added: int = 0) -> None:
        self.shader = shader
        self.added = added
        self.wide = dtype.itemsize == 8
        self.signed = dtype.kind == "i"
        self._number, self._dtype = number, _UINT32 if self.wide else dtype

    @functools.cached_property
    def array(self) -> Array:
        """The buffer, which is bound if an integer is asked for."""
        return self.shader.buffer(self._number, self._dtype)

    def within(self, index: str, limit: int) -> tuple[str, str]:
        """Emit an integer clamped to [0, limit], and whether it was there already."""
        f = self.shader
        if self.wide:
            low, high = (self.array.load(plus(times(index, 2), f"{k}u")).text for k in (0, 1))
            outer = f"select({limit}u, 0u, {high} >= 0x80000000u)" if self.signed else f"{limit}u"
            inside = f.let("bool", f"{high} == 0u && {low} <= {limit}u")
            return f.let("u32", f"select({outer}, min({low}, {limit}u), {high} == 0u)"), inside
        x = self.array.load(index).text
        if self.added:
            x = f.let("i32", f"select({x}, {x} + {self.added}i, {x} < 0i)")
        if self.signed:
            return f.let("u32", f"u32(clamp({x}, 0i, {limit}i))"), f.let("bool", f"bitcast<u32>({x}) <= {limit}u")
        return f.let("u32", f"min({x}, {limit}u)"), f.let("bool", f"{x} <= {limit}u")


def start_of(shader: Shader, starts: Starts, indices: Integers, number: str) -> WindowStart[str]:
    """Emit the start of the window of a number, in elements."""
    found = window_start(shader, starts, indices.within, "{} && {}".format, number)
    valid = None if found.valid is None else shader.let("bool", found.valid)
    return found._replace(valid=valid, offset=shader.let("u32", found.offset))
