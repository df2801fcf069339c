"""Sorting rows, of one or several operands, by one or several keys.

Keys are sorted together with the elements' numbers, by which the operands are put in order at the end. A single operand needs no numbers
if its keys can be turned back, nor does a second one whose bits can stand in for them.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from volta_fn.codegen.geometry.strides import row_offset
from volta_fn.compiler.target import TargetCapabilities
from volta_fn.core.aval import ShapedArray
from volta_fn.targets.wgsl.index_arith import TEXT, plus, quotient, remainder, times
from volta_fn.targets.wgsl.library.copy_units import INVOCATIONS, fill, result_array
from volta_fn.targets.wgsl.library.keys import KeyWord, key_words, lesser_zero, number_of, read_key, storage
from volta_fn.targets.wgsl.library.radix import sort_rows
from volta_fn.targets.wgsl.library.sorting import Emit, Key, Sorting, SortWord
from volta_fn.targets.wgsl.routine import Dispatch, Routine, Workspaces
from volta_fn.targets.wgsl.scalars import Array, Number, Shader

_UINT32 = np.dtype(np.uint32)


class SortRows(NamedTuple):
    """Rows along an axis: their number and size, and the columns after the axis."""

    number: int
    size: int
    columns: int

    def offset(self, row: str, i: str, size: int | None = None) -> str:
        """Return the offset of a row's element; rows may have another size."""
        return row_offset(TEXT, row, i, self.size if size is None else size, self.columns)

    def row_of(self, at: str, size: int) -> str:
        """Return the row of an element of an array whose rows have this size."""
        return plus(times(quotient(at, size * self.columns), self.columns), remainder(at, self.columns))


def rows_of(aval: ShapedArray, axis: int) -> SortRows:
    """Return the rows along an axis of an array that is not empty."""
    return SortRows(aval.size // aval.shape[axis], aval.shape[axis], math.prod(aval.shape[axis + 1 :]))


def sort(avals: tuple[ShapedArray, ...], params: dict[str, Any], device: TargetCapabilities) -> Routine | None:
    """Return the routine of the primitive."""
    if not avals[0].size:
        return Routine(())
    rows = rows_of(avals[0], params["dimension"])
    workspaces = Workspaces(2 * len(avals))
    first = avals[0].dtype
    small = len(avals) == 1 or (len(avals) == 2 and avals[1].dtype.itemsize <= 4)
    if params["num_keys"] == 1 and small and first.kind != "c" and first.itemsize <= 4:
        return Routine(tuple(sort_rows(_self_contained(avals, rows), device, workspaces)), tuple(workspaces.sizes))
    words = [(k, word) for k in range(params["num_keys"]) for word in key_words(avals[k].dtype)]
    order = workspaces.words(rows.number * rows.size)
    dispatches = sort_rows(by_keys(avals, rows, words, order), device, workspaces)
    moves = [ordered(aval, rows, rows.size, order, k, len(avals) + k, device) for k, aval in enumerate(avals)]
    return Routine((*dispatches, *moves), tuple(workspaces.sizes))


def _self_contained(avals: tuple[ShapedArray, ...], rows: SortRows) -> Sorting:
    """Return the sorting of keys that are turned back into the operand.

    Values are the second operand, if there is one.
    """
    dtype = avals[0].dtype
    (which,) = key_words(dtype)

    def key(shader: Shader) -> Any:
        array = shader.buffer(0, storage(dtype))
        return lambda row, i: read_key(shader, array, which, shader.let("u32", rows.offset(row, i)), faithful=True)

    def value(shader: Shader) -> Any:
        array = shader.buffer(1, storage(avals[1].dtype))
        return lambda row, i: array.load(rows.offset(row, i)).text

    def emit(shader: Shader) -> Any:
        targets = [shader.buffer(len(avals) + k, storage(aval.dtype), written=True) for k, aval in enumerate(avals)]

        def write(row: str, position: str, found: str, brought: str) -> None:
            at = shader.let("u32", rows.offset(row, position))
            numbers = (number_of(shader, dtype, found), Number(targets[-1].dtype, brought))
            for target, number in zip(targets, numbers, strict=False):
                target.store(at, number)

        return write

    words = (SortWord(key, which.bits, lesser_zero(dtype)),)
    two = len(avals) == 2
    return Sorting(rows.number, rows.size, words, emit, value if two else None, two)


def by_keys(
    avals: tuple[ShapedArray, ...],
    rows: SortRows,
    words: list[tuple[int, KeyWord]],
    order: int,
    falling: bool = False,
    wanted: int | None = None,
) -> Sorting:
    """Return the sorting that finds the order of the rows' elements.

    Of each row the first `wanted` (or all) go to buffer `order`, laid out as rows are.
    """
    bound: dict[tuple[Shader, int], Array] = {}
    count = rows.size if wanted is None else wanted

    def operand(shader: Shader, number: int) -> Array:
        if (shader, number) not in bound:
            bound[shader, number] = shader.buffer(number, storage(avals[number].dtype))
        return bound[shader, number]

    def key_for(number: int, which: KeyWord) -> Key:
        def key(shader: Shader) -> Any:
            array = operand(shader, number)
            return lambda row, i: read_key(shader, array, which, shader.let("u32", rows.offset(row, i)), falling=falling)

        return key

    def emit(shader: Shader) -> Any:
        target = shader.buffer(order, _UINT32, written=True)

        def write(row: str, position: str, _: str, number: str) -> None:
            kept = f"if ({position} < {count}u) " if count < rows.size else ""
            at = rows.offset(row, position, count)
            shader.emit(f"{kept}{{ {target.name}[{at}] = {number}; }}")

        return write

    put: Emit = emit
    return Sorting(rows.number, rows.size, tuple([SortWord(key_for(k, which), which.bits) for k, which in words]), put)


def ordered(aval: ShapedArray, rows: SortRows, wanted: int, order: int, source: int, target: int, device: TargetCapabilities) -> Dispatch:
    """Return the dispatch that stores an operand's `wanted` elements in order."""
    shader = Shader(device, INVOCATIONS)
    words = max(1, aval.dtype.itemsize // 4)
    count = rows.number * wanted
    array, positions = shader.buffer(source, storage(aval.dtype)), shader.buffer(order, _UINT32)

    def element(index: str) -> Number:
        component = remainder(index, words)
        at = shader.let("u32", quotient(index, words))
        found = rows.offset(rows.row_of(at, wanted), positions.load(at).text)
        return array.load(plus(times(found, words), component))

    return fill(shader, result_array(shader, target, storage(aval.dtype), count), count * words, element)
