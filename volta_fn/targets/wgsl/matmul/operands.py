"""Operands of contractions: arithmetic of indices, and single elements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from volta_fn.compiler.contractions import OperandMap
from volta_fn.targets.wgsl.matmul.schedule import Working
from volta_fn.targets.wgsl.scalars.shader import Shader, ShaderArray
from volta_fn.targets.wgsl.shader import Function

# Arithmetic of indices: digits and offsets, as u32 modulo 2**32.
#
# Unlike the arithmetic of `shader.TEXT`, it names quotients, remainders and sums as it computes them, and takes negative strides.

ZERO = "0u"


def digits(f: Function, index: str, sizes: Sequence[int]) -> list[str]:
    """Split an index into its digits for an array of these sizes.

    The first digit is not reduced.
    """
    remainders: list[str] = []
    for size in reversed(sizes[1:]):
        remainders.append(remainder(f, index, size))
        index = quotient(f, index, size)
    return [*([index] if sizes else []), *reversed(remainders)]


def remainder(f: Function, index: str, size: int) -> str:
    """Return index % size."""
    return ZERO if index == ZERO or size == 1 else f.let("u32", f"{index} % {size}u")


def quotient(f: Function, index: str, size: int) -> str:
    """Return index / size."""
    return index if index == ZERO or size == 1 else f.let("u32", f"{index} / {size}u")


def total(f: Function, *terms: str | int) -> str:
    """Return the sum of terms, without zeros."""
    texts = [f"{term % 2**32}u" if isinstance(term, int) else term for term in terms]
    nonzero = [text for text in texts if text != ZERO]
    return f.named("u32", " + ".join(nonzero)) if nonzero else ZERO


def times(index: str, stride: int) -> str:
    """Return an index times a stride, as an expression."""
    if stride == 0 or index == ZERO:
        return ZERO
    return index if stride == 1 else f"{index} * {stride % 2**32}u"


def strided_offset(f: Function, positions: Sequence[str], strides: Sequence[int], start: int = 0) -> str:
    """Return the offset of an element, given its digits and strides."""
    return total(f, start, *[times(position, stride) for position, stride in zip(positions, strides, strict=True)])


# Load single elements of operands through their index maps.


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
        start = strided_offset(f, digits(f, stack, map_.stack.sizes), map_.stack.strides, map_.start)
        axis_indices = digits(f, outer, map_.outer.sizes)
        coordinates = [strided_offset(f, axis_indices, bound.outer, bound.start) for bound in map_.bounds]
        return OperandRow(total(f, start, strided_offset(f, axis_indices, map_.outer.strides)), coordinates)

    def load(self, row: OperandRow, inner: str | int) -> str:
        """Load the element at k = `inner`, a constant or an expression, or zero.

        It is zero out of bounds. With `fours`, it is the vector of four elements from there on.
        """
        f, map_ = self.f, self.map
        if isinstance(inner, int):
            inner_digits = _digits(inner, map_.inner.sizes)
            steps = [sum(d * s for d, s in zip(inner_digits, walk, strict=True)) for walk in self._walks]
            address, *coordinates = [total(f, base, step) for base, step in zip((row.address, *row.coordinates), steps, strict=True)]
        else:
            axis_indices = digits(f, inner, map_.inner.sizes)
            ways = zip((row.address, *row.coordinates), self._walks, strict=True)
            address, *coordinates = [total(f, base, strided_offset(f, axis_indices, walk)) for base, walk in ways]
        conditions = [f"{c} < {bound.size}u" for c, bound in zip(coordinates, map_.bounds, strict=True)]
        value, condition = loaded(f, self.work, self.array, address, conditions, fours=self.fours)
        type_ = self.work.vector if self.fours else self.work.type
        has_elements = all(bound.size for bound in map_.bounds)  # without any there are no terms, and no NaN
        zero = self.work.padding(f, type_) if has_elements else f"{type_}()"
        return f.let(type_, f"select({zero}, {value}, {condition})" if condition else value)

    @property
    def _walks(self) -> list[tuple[int, ...]]:
        return [self.map.inner.strides, *[bound.inner for bound in self.map.bounds]]


def loaded(f: Shader, work: Working, array: ShaderArray, address: str, conditions: list[str], *, fours: bool) -> tuple[str, str]:
    """Load a number, or (with `fours`) the vector of those from there on.

    It is arbitrary unless the conditions hold, whose variable is returned with it, empty if there are none.
    """
    condition = f.let("bool", " && ".join(conditions)) if conditions else ""
    if condition:
        address = f.let("u32", f"select(0u, {address}, {condition})")
    if not fours:
        return work.convert_operand(f, array.load(address)), condition
    four = [work.convert_operand(f, x) for x in array.load4(f.let("u32", f"{address} / 4u"))]
    return f"{work.vector}({', '.join(four)})", condition


def _digits(number: int, sizes: tuple[int, ...]) -> list[int]:
    remainders: list[int] = []
    for size in reversed(sizes[1:]):
        number, digit = divmod(number, size)
        remainders.append(digit)
    return [*([number] if sizes else []), *reversed(remainders)]
