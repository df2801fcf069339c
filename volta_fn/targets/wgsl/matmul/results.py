"""Operands, sums and results of contractions.

The arithmetic of sums and of indices, elements of operands, epilogues, and the partial sums of split-K.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from volta_fn.compiler.contractions import IndexedContraction, OperandMap
from volta_fn.compiler.target import TargetCapabilities
from volta_fn.targets.wgsl.routine import Dispatch, Routine, Shader, ShaderArray
from volta_fn.targets.wgsl.scalars.number import Number, wgsl_type
from volta_fn.targets.wgsl.scalars.operations import convert
from volta_fn.targets.wgsl.scalars.values import ShaderValue
from volta_fn.targets.wgsl.shader import Function, times

# float32, float64, integers of 32 and 64 bits and complex numbers are summed in their own dtype; float16 and bfloat16 in float32, rounded
# once at the end; narrower integers in 32 bits, of which they are the low ones; bools as 0 and 1, in "any of (a and b)".


@dataclass(frozen=True)
class Working:
    """The arithmetic of sums: their dtype, and how products are added.

    Sums of bools are uint32.
    """

    dtype: np.dtype
    boolean: bool = False

    @cached_property
    def type(self) -> str:
        """A sum's type in WGSL."""
        return wgsl_type(self.dtype)

    @cached_property
    def lanes(self) -> int:
        """Numbers that are computed at once: 4 if WGSL has vectors of them, otherwise 1."""
        return 4 if self.dtype.name in ("float32", "int32", "uint32", "float64") else 1

    @cached_property
    def vector(self) -> str:
        """The type of `lanes` numbers."""
        return f"vec4<{self.type}>" if self.lanes == 4 else self.type

    @property
    def zero(self) -> str:
        """A vector of zeros."""
        return f"{self.vector}()"

    def padding(self, f: Function, type_: str) -> str:
        """Return zeros of this type or a vector in place of numbers out of bounds.

        They are opaque: compilers would take the product of a literal zero with NaN for 0.
        """
        return f"{type_}({ShaderValue(f, 'f32', '').zero().text})" if self.dtype.kind in "fc" else f"{type_}()"

    def convert_operand(self, f: Function, x: Number) -> str:
        """Convert a number of an operand to the dtype of the sums."""
        if self.boolean:
            return f.let("u32", f"select(0u, 1u, {x.text})") if x.dtype == np.bool_ else x.text
        return convert(f, x, self.dtype).text

    def convert_sum(self, f: Function, text: str, dtype: np.dtype) -> Number:
        """Convert a sum to the dtype of the results."""
        if self.boolean:
            return Number(dtype, f.let("bool", f"{text} != 0u"))
        return convert(f, Number(self.dtype, text), dtype)

    def add(self, x: str, y: str) -> str:
        """Return the sum of two sums."""
        return f"{x} | {y}" if self.boolean else f"{x} + {y}"

    def sum_components(self, x: str) -> str:
        """Return the sum of a vector's four numbers."""
        return self.add(f"({self.add(f'{x}.x', f'{x}.y')})", f"({self.add(f'{x}.z', f'{x}.w')})")

    def add_product(self, x: str, y: str, total: str) -> str:
        """Return ``total + x * y`` for three numbers or three vectors, fused for floats."""
        if self.boolean:
            return f"{total} | ({x} & {y})"
        if self.dtype.kind == "c":
            return self.add_scaled(x, y, total)
        return f"fma({x}, {y}, {total})" if self.dtype.kind == "f" else f"{total} + {x} * {y}"

    def add_scaled(self, x: str, y: str, total: str) -> str:
        """Return ``total + x * y`` for a number x and vectors y and total."""
        if self.dtype.kind == "c":
            real = f"fma(-{x}.y, {y}.y, fma({x}.x, {y}.x, {total}.x))"
            return f"{self.type}({real}, fma({x}.y, {y}.x, fma({x}.x, {y}.y, {total}.y)))"
        return self.add_product(f"{self.vector}({x})", y, total)


def working(dtype: np.dtype) -> Working:
    """Return the dtype in which contractions with results of `dtype` sum."""
    if dtype == np.bool_:
        return Working(np.dtype(np.uint32), boolean=True)
    if dtype.kind in "iu" and dtype.itemsize < 4:
        return Working(np.dtype(f"{dtype.kind}4"))
    if dtype.kind in "iufc" and dtype != np.float16:
        return Working(dtype)
    return Working(np.dtype(np.float32))


# Arithmetic of indices: offsets, as u32 modulo 2**32. Sums are named as they are computed, and take negative numbers.

ZERO = "0u"


def total(f: Function, *terms: str | int) -> str:
    """Return the sum of terms, without zeros."""
    texts = [f"{term % 2**32}u" if isinstance(term, int) else term for term in terms]
    nonzero = [text for text in texts if text != ZERO]
    return f.named("u32", " + ".join(nonzero)) if nonzero else ZERO


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
        start = strided_offset(f, f.digits(stack, map_.stack.sizes), map_.stack.strides, map_.start)
        axis_indices = f.digits(outer, map_.outer.sizes)
        coordinates = [strided_offset(f, axis_indices, bound.outer, bound.start) for bound in map_.bounds]
        return OperandRow(total(f, start, strided_offset(f, axis_indices, map_.outer.strides)), coordinates)

    def load(self, row: OperandRow, inner: str | int) -> str:
        """Load the element at k = `inner`, a constant or an expression, or zero.

        It is zero out of bounds. With `fours`, it is the vector of four elements from there on.
        """
        f, map_ = self.f, self.map
        if isinstance(inner, int):
            inner_digits = [int(digit) for digit in np.unravel_index(inner, map_.inner.sizes)]
            steps = [sum(d * s for d, s in zip(inner_digits, walk, strict=True)) for walk in self._walks]
            address, *coordinates = [total(f, base, step) for base, step in zip((row.address, *row.coordinates), steps, strict=True)]
        else:
            axis_indices = f.digits(inner, map_.inner.sizes)
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


# Epilogues, which compute results from sums and store them.
#
# The plain one stores the sums themselves; `contract` has one that is a kernel.


class BufferNumbers(NamedTuple):
    """The numbers of the buffers: operands, results, and workspace for partial sums."""

    lhs: int = 0
    rhs: int = 1
    result: int = 2
    workspace: int = 3

    def swapped(self) -> BufferNumbers:
        """Return the numbers with the operands exchanged."""
        return self._replace(lhs=self.rhs, rhs=self.lhs)


class SumIndex(NamedTuple):
    """The position of sums: product, row, and the first column, as u32."""

    stack: str
    row: str
    column: str


class ResultStore(NamedTuple):
    """The function that stores the sums of `together` consecutive columns, 1 or 4."""

    together: int
    store: Callable[[SumIndex, Sequence[str]], None]


#: Declares the buffers of the results in a shader, and returns how they are stored: (shader, arithmetic of the sums, contraction, number of
#: the first result's buffer, lanes: the most consecutive columns that it gets at a time).
Epilogue = Callable[[Shader, Working, IndexedContraction, int, int], ResultStore]


def rounded(dtype: np.dtype) -> Epilogue:
    """Return the epilogue that stores the sums as numbers of a dtype."""

    def declare(f: Shader, work: Working, c: IndexedContraction, number: int, lanes: int) -> ResultStore:
        target, fours = c.target, c.target.fours and lanes == 4
        array = f.buffer(number, dtype, True, target.elements if fours else 0)

        def store(index: SumIndex, sums: Sequence[str]) -> None:
            numbers = [work.convert_sum(f, x, dtype) for x in sums]
            walks = zip(index, (target.stack, target.rows, target.columns), strict=True)
            at = total(f, target.start, *[strided_offset(f, f.digits(x, walk.sizes), walk.strides) for x, walk in walks])
            if fours:
                array.store4(f.let("u32", f"{at} / 4u"), numbers)
            else:
                array.store(at, numbers[0])

        return ResultStore(4 if fours else 1, store)

    return declare


# Store sums: through an epilogue, or as partial sums in a workspace.
#
# A *writer* is a function in the shader, ``put(stack, row, column, sums)``, of the sums of `lanes` consecutive columns, the first of
# which is a multiple of `lanes`. It stores nothing beyond the last row or column.


def emit_store(
    f: Shader, work: Working, c: IndexedContraction, epilogue: Epilogue, buffers: BufferNumbers, lanes: int, splits: int = 1
) -> str:
    """Emit the function that stores results, or partial sums; return its name."""
    partial = _partial(f, work, c, buffers.workspace, splits, lanes) if splits > 1 else None
    return _emit_store_function(f, work, c, lanes, partial or epilogue(f, work, c, buffers.result, lanes))


def _partial(f: Shader, work: Working, c: IndexedContraction, number: int, splits: int, lanes: int) -> ResultStore:
    """Return what stores partial sums to a workspace.

    It is an array [splits, stack, m, n]; `stack` is given as ``split * batch + stack``.
    """
    fours = c.n % 4 == 0 and lanes == 4
    array = f.buffer(number, work.dtype, True, splits * c.batch * c.m * c.n if fours else 0)

    def store(index: SumIndex, sums: Sequence[str]) -> None:
        at = f.let("u32", f"({index.stack} * {c.m}u + {index.row}) * {c.n}u + {index.column}")
        numbers = [Number(work.dtype, x) for x in sums]
        if fours:
            array.store4(f.let("u32", f"{at} / 4u"), numbers)
        else:
            array.store(at, numbers[0])

    return ResultStore(4 if fours else 1, store)


def _emit_store_function(f: Shader, work: Working, c: IndexedContraction, lanes: int, results: ResultStore) -> str:
    main, f.statements = f.statements, []
    with f.block(f"if (row < {c.m}u && column < {c.n}u)"):
        sums = [f"sums.{e}" for e in "xyzw"] if lanes == 4 else ["sums"]
        results.store(SumIndex("stack", "row", "column"), sums[: results.together])
        for e in range(results.together, lanes):
            with f.block(f"if (column + {e}u < {c.n}u)"):
                results.store(SumIndex("stack", "row", f.let("u32", f"column + {e}u")), [sums[e]])
    body, f.statements = f.statements, main
    type_ = f"vec4<{work.type}>" if lanes == 4 else work.type
    return f.helper("put", "\n".join([f"fn put(stack: u32, row: u32, column: u32, sums: {type_}) {{", *body, "}"]))


# Sums in chunks of K, whose partial sums are added up, always in the same order.

_INVOCATIONS = 128


def chunk(f: Shader, split: str, length: int, splits: int, terms: int) -> tuple[str, str]:
    """Return where chunk `split`, of `splits` with `length` terms, begins and ends."""
    if splits == 1:
        return ZERO, f"{terms}u"
    begin = f.let("u32", f"{split} * {length}u")
    return begin, f.let("u32", f"min({begin} + {length}u, {terms}u)")


def complete_routine(
    first: Dispatch,
    c: IndexedContraction,
    work: Working,
    splits: int,
    capabilities: TargetCapabilities,
    epilogue: Epilogue,
    buffers: BufferNumbers,
) -> Routine:
    """Return the routine of a dispatch, whose partial sums a second one adds up."""
    if splits == 1:
        return Routine((first,))
    size = splits * c.batch * c.m * c.n * work.dtype.itemsize
    return Routine((first, sum_dispatch(c, work, splits, capabilities, epilogue, buffers)), (size,))


def sum_dispatch(
    c: IndexedContraction, work: Working, splits: int, capabilities: TargetCapabilities, epilogue: Epilogue, buffers: BufferNumbers
) -> Dispatch:
    """Return the dispatch that adds up partial sums, and stores the results.

    The sums are `splits` arrays [stack, m, n]; without any, they are zeros.
    """
    f = Shader(capabilities, _INVOCATIONS)
    each = 4 if c.n % 4 == 0 and work.lanes == 4 else 1
    put = emit_store(f, work, c, epilogue, buffers, each)
    size = c.batch * c.m * c.n
    partials = f.buffer(buffers.workspace, work.dtype, False, splits * size if each == 4 else 0) if splits else None

    def add(number: str) -> None:
        sums = [f.var(work.type, f"{work.type}()") for _ in range(each)]
        if partials is not None:
            _add_partials(f, work, partials, sums, splits, size // each, number)
        stack, row, column = f.digits(number, (c.batch, c.m, c.n // each))
        every = f"vec4<{work.type}>({', '.join(sums)})" if each == 4 else sums[0]
        f.emit(f"{put}({stack}, {row}, {column} * {each}u, {every});")

    return f.for_each(size // each, add)


def _add_partials(f: Shader, work: Working, partials: ShaderArray, sums: list[str], splits: int, size: int, number: str) -> None:
    """Add to `sums`, one or four, the elements `number` of all arrays of partial sums.

    Each array has `size` elements, or vectors of four.
    """
    with f.loop(splits) as i:
        offset = f.let("u32", f"{i} * {size}u + {number}")
        values = partials.load4(offset) if len(sums) == 4 else [partials.load(offset)]
        for total, x in zip(sums, values, strict=True):
            f.emit(f"{total} = {work.add(total, x.text)};")
