"""Sorting problems and their keys, and the sort of short rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from volta_fn.codegen.scalars import INFINITY, is_float, number_of_key, sort_key
from volta_fn.compiler.target import TargetCapabilities
from volta_fn.targets.wgsl.library.movement import INVOCATIONS, for_each
from volta_fn.targets.wgsl.library.tile_sort import (
    Tile,
    collect,
    exclusive,
    lanes_of,
    numbers_in_tile,
    sort_by_ballots,
    sort_keys,
    sort_tile,
    spread,
)
from volta_fn.targets.wgsl.loops.schedule import power_above
from volta_fn.targets.wgsl.routine import Dispatch
from volta_fn.targets.wgsl.scalars import Number, Shader, ShaderArray
from volta_fn.targets.wgsl.scalars.values import ShaderValue
from volta_fn.targets.wgsl.shader import quotient, remainder, times

# Sort keys (`codegen.indices`) in shaders.
#
# Keys of more than 32 bits are several words, the most significant first.

_UINT32 = np.dtype(np.uint32)


class KeyWord(NamedTuple):
    """A word of the keys of a dtype.

    Attributes:
        dtype: the dtype of the number, or of one component of complex numbers.
        words: how many words of memory are an element (1, too, if several elements are in one).
        first: the word of memory with which the number begins.
        lower: whether this is the lower word of two.
    """

    dtype: np.dtype
    words: int = 1
    first: int = 0
    lower: bool = False

    @property
    def bits(self) -> int:
        """The number of bits that distinguish keys."""
        return 1 if self.dtype.kind == "b" else min(32, 8 * self.dtype.itemsize)


def key_words(dtype: np.dtype) -> list[KeyWord]:
    """Return all words of the keys of a dtype."""
    component = np.dtype(f"f{dtype.itemsize // 2}") if dtype.kind == "c" else dtype
    step, words = max(1, component.itemsize // 4), max(1, dtype.itemsize // 4)
    return [KeyWord(component, words, first, lower) for first in range(0, words, step) for lower in (False, True)[:step]]


def storage(dtype: np.dtype) -> np.dtype:
    """Return the dtype as which numbers are loaded to get their bits."""
    return np.dtype(f"u{min(4, dtype.itemsize)}")


def read_key(shader: Shader, array: ShaderArray, which: KeyWord, index: str, faithful: bool = False, falling: bool = False) -> str:
    """Emit a word of the key of an element, in an array of `storage`.

    Of `falling` keys the greatest number has the least.
    """
    if which.dtype.itemsize == 8:
        low, high = (array.load(f"{index} * {which.words}u + {which.first + k}u").text for k in (0, 1))
        key = _word_of_two(shader, which, low, high)
    else:
        bits = array.load(f"{index} * {which.words}u + {which.first}u" if which.words > 1 else index).text
        key = key_of(shader, which.dtype, bits, faithful)
    return f"({key} ^ {(1 << which.bits) - 1}u)" if falling else key


def key_of(shader: Shader, dtype: np.dtype, bits: str, faithful: bool) -> str:
    """Emit the key of a number of at most 32 bits."""
    return sort_key(ShaderValue(shader, "u32", bits), dtype, faithful=faithful).text


def _word_of_two(shader: Shader, which: KeyWord, low: str, high: str) -> str:
    if not is_float(which.dtype):
        return low if which.lower else f"({high} ^ 0x80000000u)" if which.dtype.kind == "i" else high
    size = shader.let("u32", f"{high} & 0x7fffffffu")
    infinity = INFINITY["float64"] >> 32
    nan = f"({size} > {infinity}u || ({size} == {infinity}u && {low} != 0u))"
    mine, sign = (low, "0u") if which.lower else (high, "0x80000000u")
    turned = f"({mine} ^ select({sign}, 0xffffffffu, {high} >= 0x80000000u))"
    turned = f"select({turned}, {sign}, ({size} | {low}) == 0u)"
    return shader.let("u32", f"select({turned}, 0xffffffffu, {nan})")


def number_of(shader: Shader, dtype: np.dtype, faithful: str) -> Number:
    """Emit the bits of the number of a faithful key, in the dtype's `storage`."""
    return Number(storage(dtype), number_of_key(ShaderValue(shader, "u32", faithful), dtype).text)


def lesser_zero(dtype: np.dtype) -> int | None:
    """Return the faithful key of -0.0, next to that of 0.0; None if there is no -0.0."""
    return (1 << (8 * dtype.itemsize - 1)) - 1 if is_float(dtype) else None


# Sorting problems: rows of elements with keys of 32 bits.

#: The key of padding beyond a row's end: it comes last, since the sort is stable and padding is last at first.
LAST = "0xffffffffu"

#: ``key(shader)`` binds buffers and gives ``read(row, value)``, the key of the element with that value.
Key = Callable[[Shader], Callable[[str, str], str]]

#: ``write(row, position, key, value)`` stores a sorted element.
Write = Callable[[str, str, str, str], None]

#: ``emit(shader)`` binds buffers and gives `Write`.
Emit = Callable[[Shader], Write]


class SortWord(NamedTuple):
    """A word of the keys.

    Attributes:
        key: how keys are read.
        bits: how many of their bits count.
        equals: a key that is ranked as the next greater one is, though they differ (None: there is none).
    """

    key: Key
    bits: int
    equals: int | None = None

    def rank(self, key: str) -> str:
        """Return the rank that a key is sorted by."""
        return key if self.equals is None else f"({key} + select(0u, 1u, {key} == {self.equals}u))"


class Sorting(NamedTuple):
    """A sorting problem.

    Attributes:
        rows, size: the number of rows, and their elements.
        words: the words of the keys, the most significant first. Only a single word has keys that are equal though they differ.
        emit: where the result goes.
        value: reads, as `Key` does, the value of an element by its number in the row; None: the value is that number.
        valued: whether there are values at all; if not, there is one word.
    """

    rows: int
    size: int
    words: tuple[SortWord, ...]
    emit: Emit
    value: Key | None = None
    valued: bool = True


def variables(shader: Shader, count: int) -> list[str]:
    """Declare `count` variables for keys, or for values."""
    return [shader.var("u32", LAST) for _ in range(count)]


# Rows sorted by an invocation for each element, or by a workgroup each.
#
# Of very short rows every element counts those that come before it. Longer ones are held by a workgroup each: keys alone are sorted by
# comparisons, keys with values by digits, for which subgroups vote where they can.

#: The most elements of a row.
SHORT = 2048

#: Elements of rows up to this size are compared with all others.
_VERY_SHORT = 32

#: Keys that an invocation holds, at most: so that a thousand mostly take one subgroup.
_KEYS = 32

#: Elements that an invocation sorts by digits, at most.
_ELEMENTS = 8


def sort_short(sorting: Sorting, capabilities: TargetCapabilities) -> Dispatch:
    """Return the dispatch that sorts."""
    if sorting.size <= _VERY_SHORT:
        return _count_before(sorting, capabilities)
    return _by_digits(sorting, capabilities) if sorting.valued else _by_comparisons(sorting, capabilities)


def _count_before(sorting: Sorting, capabilities: TargetCapabilities) -> Dispatch:
    """Return the dispatch in which each element counts those that precede it."""
    shader = Shader(capabilities, INVOCATIONS)
    readers = [word.key(shader) for word in sorting.words]
    value, write = sorting.value(shader) if sorting.value else None, sorting.emit(shader)

    def keys(row: str, i: str) -> list[str]:
        return [shader.let("u32", read(row, i)) for read in readers]

    def sort_element(index: str) -> None:
        row, i = shader.let("u32", quotient(index, sorting.size)), shader.let("u32", remainder(index, sorting.size))
        mine, position = keys(row, i), shader.var("u32", "0u")
        with shader.loop(sorting.size) as j:
            before = f"{j} < {i}"
            for word, key, other in reversed(list(zip(sorting.words, mine, keys(row, j), strict=True))):
                a, b = shader.let("u32", word.rank(other)), shader.let("u32", word.rank(key))
                before = shader.let("bool", f"{a} < {b} || ({a} == {b} && {before})")
            shader.emit(f"{position} += select(0u, 1u, {before});")
        write(row, position, mine[0], value(row, i) if value else i)

    return for_each(shader, sorting.rows * sorting.size, sort_element)


def _by_digits(sorting: Sorting, capabilities: TargetCapabilities) -> Dispatch:
    """Return the dispatch that sorts each row by a workgroup, with values."""
    lanes, size = lanes_of(capabilities), sorting.size
    invocations = max(lanes or 64, power_above(-(-size // _ELEMENTS)))
    tile = Tile(invocations, -(-size // invocations))
    shader = Shader(capabilities, invocations)
    keys, values = variables(shader, tile.each), variables(shader, tile.each)
    numbers = numbers_in_tile(shader, tile) if lanes else _neighbours(shader, tile)
    value = sorting.value(shader) if sorting.value else None
    # Unconditional loads are in flight together, and do not diverge.
    inside = [shader.let("u32", f"min({number}, {size - 1}u)") for number in numbers]
    for number, variable in zip(inside, values, strict=True):
        shader.emit(f"{variable} = {value(shader.group, number) if value else number};")
    least_first = sorting.words[::-1]
    readers = [word.key(shader) for word in least_first]
    with shader.loop(len(readers)) as word_number:
        for t, read in enumerate(readers):
            with shader.block(f"if ({word_number} == {t}u)"):
                for k, key in enumerate(keys):
                    # Later words are read of the elements in their order so far.
                    next_key = read(shader.group, values[k] if len(readers) > 1 else inside[k])
                    shader.emit(f"{key} = select({LAST}, {next_key}, {numbers[k]} < {size}u);")
        bits = shader.let("u32", f"array({', '.join(f'{word.bits}u' for word in least_first)})[{word_number}]")
        if lanes:
            sort_by_ballots(shader, tile, keys, values, sorting.words[0].rank, bits)
        else:
            sort_tile(shader, tile, keys, values, sorting.words[0].rank, "0u", bits)
    write = sorting.emit(shader)
    for number, key, sorted_value in zip(numbers, keys, values, strict=True):
        with shader.block(f"if ({number} < {size}u)"):
            write(shader.group, number, key, sorted_value)
    return shader.dispatch(sorting.rows)


def _neighbours(shader: Shader, tile: Tile) -> list[str]:
    first = shader.let("u32", times(shader.local, tile.each))
    return [shader.let("u32", f"{first} + {k}u") for k in range(tile.each)]


def _by_comparisons(sorting: Sorting, capabilities: TargetCapabilities) -> Dispatch:
    """Return the dispatch that sorts each row by a workgroup, without values.

    Keys that are equal though they differ are moved separately.
    """
    (word,) = sorting.words
    lanes = max(capabilities.subgroup_least, 32)
    each = max(2, min(_KEYS, power_above(-(-sorting.size // lanes))))
    tile = Tile(max(lanes, power_above(-(-sorting.size // each))), each)
    shader = Shader(capabilities, tile.invocations)
    keys, read = variables(shader, tile.each), word.key(shader)
    numbers = [shader.let("u32", f"{shader.local} + {k * tile.invocations}u") for k in range(tile.each)]
    for key, number in zip(keys, numbers, strict=True):
        with shader.block(f"if ({number} < {sorting.size}u)"):
            shader.emit(f"{key} = {read(shader.group, number)};")
    write_equals = _remember_equals(shader, tile, keys, word)
    sort_keys(shader, tile, keys)
    spread(shader, tile, keys)
    write = sorting.emit(shader)
    for number, key in zip(numbers, keys, strict=True):
        others = "" if word.equals is None else f" && {key} - {word.equals}u > 1u"
        with shader.block(f"if ({number} < {sorting.size}u{others})"):
            write(shader.group, number, key, "0u")
    write_equals(write)
    return shader.dispatch(sorting.rows)


def _remember_equals(shader: Shader, tile: Tile, keys: list[str], word: SortWord) -> Callable[[Write], None]:
    """Emit the positions of keys that differ though equal.

    Returns the function that stores them.
    """
    least = word.equals
    if least is None:
        return lambda write: None
    collect(shader, tile, keys)

    def bits(condition: str) -> str:
        return shader.let("u32", " | ".join(f"select(0u, {1 << k}u, {key} {condition})" for k, key in enumerate(keys)))

    equal, greater, less = bits(f"- {least}u < 2u"), bits(f"> {least}u"), bits(f"< {least}u")
    sums = exclusive(shader, f"(countOneBits({less}) | (countOneBits({equal}) << 16u))")

    def write_equals(write: Write) -> None:
        left = shader.var("u32", equal)
        position = shader.var("u32", f"({sums}.y & 0xffffu) + ({sums}.x >> 16u)")
        with shader.block(f"while ({left} != 0u)"):
            bit = shader.let("u32", f"{left} & (~{left} + 1u)")
            write(shader.group, position, f"({least}u + select(0u, 1u, ({greater} & {bit}) != 0u))", "0u")
            shader.emit(f"{left} ^= {bit};")
            shader.emit(f"{position} += 1u;")

    return write_equals
