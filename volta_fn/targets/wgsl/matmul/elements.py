"""Load single elements of operands through their index maps."""

from __future__ import annotations

from typing import NamedTuple

from volta_fn.compiler.contractions.index_maps import OperandMap
from volta_fn.targets.wgsl.matmul.compute_dtype import Working
from volta_fn.targets.wgsl.matmul.indices import digits, total, walked
from volta_fn.targets.wgsl.scalars.shader import Shader


class OperandRow(NamedTuple):
    """A row or column of an operand: its offset, and its coordinates, at k = 0."""

    address: str
    coordinates: list[str]


class Elements:
    """An operand in a buffer, read in vectors of four (`fours`) or one by one."""

    def __init__(self, f: Shader, work: Working, map_: OperandMap, number: int, *, fours: bool = False) -> None:
        self.f, self.work, self.map = f, work, map_
        self.array = f.buffer(number, map_.dtype, False, map_.elements if fours else 0)
        self.fours = fours

    def row(self, stack: str, outer: str) -> OperandRow:
        """Return row or column `outer` of product `stack`."""
        f, map_ = self.f, self.map
        start = walked(f, digits(f, stack, map_.stack.sizes), map_.stack.strides, map_.start)
        axis_indices = digits(f, outer, map_.outer.sizes)
        coordinates = [walked(f, axis_indices, bound.outer, bound.start) for bound in map_.bounds]
        return OperandRow(total(f, start, walked(f, axis_indices, map_.outer.strides)), coordinates)

    def load(self, row: OperandRow, inner: str | int) -> str:
        """Load the element at k = `inner`, a constant or an expression, or zero.

        It is zero out of bounds. With `fours`, it is the vector of four elements from there on.
        """
        f, map_ = self.f, self.map
        if isinstance(inner, int):
            known = _digits(inner, map_.inner.sizes)
            steps = [sum(d * s for d, s in zip(known, walk, strict=True)) for walk in self._walks]
            address, *coordinates = [total(f, base, step) for base, step in zip((row.address, *row.coordinates), steps, strict=True)]
        else:
            axis_indices = digits(f, inner, map_.inner.sizes)
            ways = zip((row.address, *row.coordinates), self._walks, strict=True)
            address, *coordinates = [total(f, base, walked(f, axis_indices, walk)) for base, walk in ways]
        condition = " && ".join(f"{c} < {bound.size}u" for c, bound in zip(coordinates, map_.bounds, strict=True))
        if condition:
            condition = f.let("bool", condition)
            address = f.let("u32", f"select(0u, {address}, {condition})")
        if self.fours:
            four = [self.work.read(f, x) for x in self.array.load4(f.let("u32", f"{address} / 4u"))]
            value, type_ = f"{self.work.vector}({', '.join(four)})", self.work.vector
        else:
            value, type_ = self.work.read(f, self.array.load(address)), self.work.type
        has_elements = all(bound.size for bound in map_.bounds)  # without any there are no terms, and no NaN
        zero = self.work.padding(f, type_) if has_elements else f"{type_}()"
        return f.let(type_, f"select({zero}, {value}, {condition})" if condition else value)

    @property
    def _walks(self) -> list[tuple[int, ...]]:
        return [self.map.inner.strides, *[bound.inner for bound in self.map.bounds]]


def _digits(number: int, sizes: tuple[int, ...]) -> list[int]:
    found: list[int] = []
    for size in reversed(sizes[1:]):
        number, digit = divmod(number, size)
        found.append(digit)
    return [*([number] if sizes else []), *reversed(found)]
