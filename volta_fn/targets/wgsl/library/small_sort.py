"""Sorts within a workgroup.

Problems and their keys, short rows, and tiles in its memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from volta_fn.codegen.scalars import INFINITY, is_float, number_of_key, sort_key
from volta_fn.compiler.target import TargetCapabilities
from volta_fn.targets.wgsl.library.movement import INVOCATIONS
from volta_fn.targets.wgsl.loops.schedule import power_above
from volta_fn.targets.wgsl.routine import Dispatch, Shader, ShaderArray
from volta_fn.targets.wgsl.scalars import Number
from volta_fn.targets.wgsl.scalars.values import ShaderValue
from volta_fn.targets.wgsl.shader import quotient, remainder, times

# A workgroup's keys sorted by a network of comparisons, mostly without memory.
#
# Every invocation holds some neighbouring keys. Sorted runs are merged to ones twice as long: each key meets its mirror image in both
# runs, then those at ever smaller distances, the lesser one of two going first (bitonic merges). Where both are in one invocation
# nothing is moved; neighbours in a subgroup exchange keys by shuffles, others in the workgroup's memory. The sort is not stable.


def sort_keys(shader: Shader, tile: Tile, keys: list[str]) -> None:
    """Sort variables, neighbours in each invocation.

    Their number and that of invocations are powers of two.
    """
    shader.workgroup("scratch", "u32", tile.room)
    capabilities = shader.module.capabilities
    shuffled = (
        capabilities.subgroups
        and capabilities.subgroup_least == capabilities.subgroup_most
        and tile.invocations % capabilities.subgroup_most == 0
    )
    near = min(tile.invocations, capabilities.subgroup_most) if shuffled else 1
    if shuffled:
        shader.number_by_subgroups()
    for size in _halves(tile.each):
        _order(shader, keys, [(k, k ^ (2 * size - 1)) for k in range(tile.each) if not k & size])
        _merge(shader, keys, size // 2)
    with shader.block(f"for (var run = 1u; run < {tile.invocations}u; run *= 2u)"):
        _meet(shader, tile, keys, "run * 2u - 1u", "run", near, mirrored=True)
        with shader.block("for (var reach = run / 2u; reach > 0u; reach /= 2u)"):
            _meet(shader, tile, keys, "reach", "reach", near, mirrored=False)
        _merge(shader, keys, tile.each // 2)


def _halves(count: int) -> Iterator[int]:
    size = 1
    while size < count:
        yield size
        size *= 2


def _merge(shader: Shader, keys: Sequence[str], reach: int) -> None:
    """Merge runs of `2 * reach` keys by comparisons at distances of `reach` and less."""
    while reach:
        _order(shader, keys, [(k, k + reach) for k in range(len(keys)) if not k & reach])
        reach //= 2


def _order(shader: Shader, keys: Sequence[str], pairs: list[tuple[int, int]]) -> None:
    for first, then in pairs:
        least = shader.let("u32", f"min({keys[first]}, {keys[then]})")
        shader.emit(f"{keys[then]} = max({keys[first]}, {keys[then]});")
        shader.emit(f"{keys[first]} = {least};")


def _meet(shader: Shader, tile: Tile, keys: Sequence[str], mask: str, half: str, near: int, mirrored: bool) -> None:
    """Order keys and those of the invocation whose number differs by a mask."""
    lower = shader.let("bool", f"({shader.local} & ({half})) == 0u")
    others = [shader.var("u32", "0u") for _ in keys]
    partners = list(keys[::-1] if mirrored else keys)
    if near > 1:
        with shader.block(f"if (({half}) < {near}u)" if near < tile.invocations else ""):
            for other, key in zip(others, partners, strict=True):
                shader.emit(f"{other} = subgroupShuffleXor({key}, {mask});")
    if near < tile.invocations:
        with shader.block("else" if near > 1 else ""):
            at = shader.let("u32", f"{shader.local} ^ ({mask})")
            for k, key in enumerate(partners):
                slot = shader.let("u32", f"{k * tile.invocations}u + {shader.local}")
                shader.emit(f"scratch[{cell(slot)}] = {key};")
            shader.emit("workgroupBarrier();")
            for k, other in enumerate(others):
                slot = shader.let("u32", f"{k * tile.invocations}u + {at}")
                shader.emit(f"{other} = scratch[{cell(slot)}];")
            shader.emit("workgroupBarrier();")
    for key, other in zip(keys, others, strict=True):
        shader.emit(f"{key} = select(max({key}, {other}), min({key}, {other}), {lower});")


# A tile of elements sorted in the memory of a workgroup.
#
# Every invocation holds some neighbouring elements, a key and perhaps a value each. By one digit of four bits at a time, everyone
# counts its digits; sums of the counts in the order of digits, and of invocations for each digit, tell where every element goes,
# stably. Counts of eight digits share a word, and sums of two.

#: The bits of a digit.
BITS = 4

#: ``rank(key)`` is the expression that elements are sorted by: keys that count as equal may differ.
Rank = Callable[[str], str]


class Tile(NamedTuple):
    """The invocations of a workgroup, and the elements of each, fifteen at most."""

    invocations: int
    each: int

    @property
    def size(self) -> int:
        """The number of elements."""
        return self.invocations * self.each

    @property
    def room(self) -> int:
        """The words of workgroup memory that sorting takes."""
        words = max(self.size, 8 * self.invocations)
        return words + words // 32


def cell(i: str) -> str:
    """Return the cell of a word in `scratch`."""
    # One in 33 is left out, so that words at equal distances are in different banks.
    return f"{i} + ({i} >> 5u)"


def exclusive(shader: Shader, value: str) -> str:
    """Emit the sum of earlier invocations' values and that of all.

    The result is the name of a ``vec2<u32>``. All invocations must execute this.
    """
    capabilities = shader.module.capabilities
    if capabilities.subgroups and shader.invocations % capabilities.subgroup_most == 0:
        return _over_subgroups(shader, value)
    count = shader.invocations
    shader.workgroup("sums", "u32", 2 * count)
    name = shader.helper(
        "exclusive",
        f"""fn exclusive(x: u32, local: u32) -> vec2<u32> {{
  var here = 0u;
  var total = x;
  sums[local] = x;
  workgroupBarrier();
  for (var reach = 1u; reach < {count}u; reach <<= 1u) {{
    total += select(0u, sums[here + max(local, reach) - reach], local >= reach);
    here = {count}u - here;
    sums[here + local] = total;
    workgroupBarrier();
  }}
  let all = sums[here + {count - 1}u];
  workgroupBarrier();
  return vec2<u32>(total - x, all);
}}""",
    )
    return shader.let("vec2<u32>", f"{name}({value}, {shader.local})")


def _over_subgroups(shader: Shader, value: str) -> str:
    """Emit the same by scans of subgroups."""
    # Sums over subgroups are unreliable: see `loops.reductions`.
    shader.number_by_subgroups()
    shader.workgroup("sums", "u32", shader.invocations // shader.module.capabilities.subgroup_least)
    name = shader.helper(
        "exclusive",
        """fn exclusive(x: u32, lane: u32, last: u32, mine: u32, count: u32) -> vec2<u32> {
  let before = subgroupExclusiveAdd(x);
  if (lane == last) { sums[mine] = before + x; }
  workgroupBarrier();
  var result = vec2<u32>(before, 0u);
  for (var i = 0u; i < count; i++) {
    let sum = sums[i];
    result += vec2<u32>(select(0u, sum, i < mine), sum);
  }
  workgroupBarrier();
  return result;
}""",
    )
    lane, size, mine, count = [shader.builtin(name) for name in ("subgroup_invocation_id", "subgroup_size", "subgroup_id", "num_subgroups")]
    return shader.let("vec2<u32>", f"{name}({value}, {lane}, {size} - 1u, {mine}, {count})")


def sort_tile(shader: Shader, tile: Tile, keys: list[str], values: list[str], rank: Rank, first: str, end: str) -> None:
    """Sort stably by the bits of the ranks from `first` up to `end`.

    `keys` and `values` are variables, neighbours in each invocation.
    """
    shader.workgroup("scratch", "u32", tile.room)
    with shader.loop(end, first, BITS) as shift:
        positions = _positions(shader, tile, [f"({rank(key)} >> {shift}) & 15u" for key in keys])
        for variables in filter(None, (keys, values)):
            _exchange(shader, variables, positions, partial(_local_cells, shader, tile.each))


def _exchange(shader: Shader, variables: list[str], to: Iterable[str], cells: Callable[[], list[str]]) -> None:
    """Store the variables in cells of scratch memory, and load other cells."""
    for cell_, variable in zip(to, variables, strict=True):
        shader.emit(f"scratch[{cell_}] = {variable};")
    shader.emit("workgroupBarrier();")
    for cell_, variable in zip(cells(), variables, strict=True):
        shader.emit(f"{variable} = scratch[{cell_}];")
    shader.emit("workgroupBarrier();")


def _local_cells(shader: Shader, each: int) -> list[str]:
    """Emit the cells of an invocation's words, of which each has `each`."""
    numbers = [shader.let("u32", f"{shader.local} * {each}u + {k}u") for k in range(each)]
    return [shader.let("u32", cell(i)) for i in numbers]


def collect(shader: Shader, tile: Tile, variables: list[str]) -> None:
    """Redistribute elements so that each invocation holds neighbours."""
    if not variables:
        return
    shader.workgroup("scratch", "u32", tile.room)
    cells = (cell(shader.let("u32", f"{shader.local} + {k * tile.invocations}u")) for k in range(len(variables)))
    _exchange(shader, variables, cells, partial(_local_cells, shader, tile.each))


def spread(shader: Shader, tile: Tile, variables: list[str]) -> list[str]:
    """Redistribute elements so that neighbouring invocations hold neighbours.

    Return the element before each.
    """
    if not variables:
        return []
    shader.workgroup("scratch", "u32", tile.room)
    for cell_, variable in zip(_local_cells(shader, tile.each), variables, strict=True):
        shader.emit(f"scratch[{cell_}] = {variable};")
    shader.emit("workgroupBarrier();")
    before = []
    for k, variable in enumerate(variables):
        at = shader.let("u32", f"{shader.local} + {k * tile.invocations}u")
        earlier = shader.let("u32", f"max({at}, 1u) - 1u")
        shader.emit(f"{variable} = scratch[{cell(at)}];")
        before.append(shader.let("u32", f"scratch[{cell(earlier)}]"))
    shader.emit("workgroupBarrier();")
    return before


def _positions(shader: Shader, tile: Tile, digits: list[str]) -> list[str]:
    packed = [shader.var("u32", "0u") for _ in range(2)]
    counters, halves, ranks = [], [], []
    for text in digits:
        digit = shader.let("u32", text)
        shift, upper = shader.let("u32", f"({digit} & 7u) * 4u"), shader.let("bool", f"{digit} > 7u")
        ranks.append(shader.let("u32", f"(select({packed[0]}, {packed[1]}, {upper}) >> {shift}) & 15u"))
        shader.emit(f"{packed[0]} += select(1u << {shift}, 0u, {upper});")
        shader.emit(f"{packed[1]} += select(0u, 1u << {shift}, {upper});")
        counter = shader.let("u32", f"({digit} & 7u) * {tile.invocations}u + {shader.local}")
        counters.append(shader.let("u32", cell(counter)))
        halves.append(shader.let("u32", f"select(0u, 16u, {upper})"))
    for k in range(8):
        at = shader.let("u32", f"{k * tile.invocations}u + {shader.local}")
        lower, upper = (f"(({counts} >> {4 * k}u) & 15u)" for counts in packed)
        shader.emit(f"scratch[{cell(at)}] = {lower} | ({upper} << 16u);")
    shader.emit("workgroupBarrier();")
    # Each count becomes the sum of those before it; all of digits in the lower halves come before those in the upper.
    cells = _local_cells(shader, 8)
    counts = [shader.let("u32", f"scratch[{cell_}]") for cell_ in cells]
    sums = exclusive(shader, " + ".join(counts))
    total = shader.var("u32", f"{sums}.x + ({sums}.y << 16u)")
    for cell_, count in zip(cells, counts, strict=True):
        shader.emit(f"scratch[{cell_}] = {total};")
        shader.emit(f"{total} += {count};")
    shader.emit("workgroupBarrier();")
    positions = [
        shader.let("u32", f"((scratch[{counter}] >> {half}) & 0xffffu) + {rank}")
        for counter, half, rank in zip(counters, halves, ranks, strict=True)
    ]
    shader.emit("workgroupBarrier();")
    return [shader.let("u32", cell(position)) for position in positions]


# A workgroup's tile of elements sorted by ballots of subgroups.
#
# Invocations of a subgroup hold neighbours. One ballot for each bit of their digits tells which invocations have the same digit: how
# many of these come before one, and the first of them counts all. Sums of the counts, in the order of digits, and of subgroups for each
# digit, tell where every element goes, stably. Counts of two subgroups share a word.
#
# Subgroups must have one known size, of 32 at most. (Unlike sums over subgroups, ballots have always included all invocations, even after
# branches: see `loops.reductions`.)

#: The most bits of a digit, and the most values of a digit for each invocation of a subgroup: with these, the counts of 256 invocations
#: take 4 KiB, however small subgroups are.
_BITS, _DIGITS_OF_LANE = 8, 8


def lanes_of(capabilities: TargetCapabilities) -> int:
    """Return the invocations of a subgroup, or 0 where ballots are not to be used."""
    has_ballots = capabilities.subgroups and capabilities.subgroup_least == capabilities.subgroup_most <= 32
    return capabilities.subgroup_most if has_ballots else 0


def digit_bits(capabilities: TargetCapabilities) -> int:
    """Return the most bits of a digit, where elements are sorted by ballots."""
    return min(_BITS, (_DIGITS_OF_LANE * lanes_of(capabilities)).bit_length() - 1)


def numbers_in_tile(shader: Shader, tile: Tile) -> list[str]:
    """Emit the numbers of an invocation's elements.

    Every subgroup has a chunk of the tile, in which neighbours hold neighbours.
    """
    lanes = lanes_of(shader.module.capabilities)
    shader.number_by_subgroups()
    lane = shader.builtin("subgroup_invocation_id")
    first = shader.let("u32", f"({shader.local} - {lane}) * {tile.each}u + {lane}")
    return [shader.let("u32", f"{first} + {k * lanes}u") for k in range(tile.each)]


def sort_by_ballots(shader: Shader, tile: Tile, keys: list[str], values: list[str], rank: Rank, bits: str) -> None:
    """Sort stably by the lowest bits of the ranks.

    `keys` and `values` are variables, those of `numbers_in_tile` before and after.
    """
    numbers = numbers_in_tile(shader, tile)
    step = digit_bits(shader.module.capabilities)
    with shader.loop(bits, 0, step) as shift:
        digits = [shader.let("u32", f"({rank(key)} >> {shift}) & {(1 << step) - 1}u") for key in keys]
        positions = positions_by_digit(shader, tile, digits, step)
        for variables in (keys, values):
            exchange(shader, tile, positions, numbers, variables)


def exchange(shader: Shader, tile: Tile, positions: list[str], numbers: list[str], variables: list[str]) -> None:
    """Move every element to its position, and load the elements of these numbers."""
    shader.workgroup("scratch", "u32", tile.size)
    _exchange(shader, variables, positions, lambda: numbers)


def positions_by_digit(shader: Shader, tile: Tile, digits: list[str], bits: int, bases: str = "") -> list[str]:
    """Emit the positions of the elements in the tile.

    The first position of each digit in the tile is subtracted from the array `bases`, if there is one.
    """
    lanes, buckets = lanes_of(shader.module.capabilities), 1 << bits
    pairs = -(-tile.invocations // (2 * lanes))
    size = max(pairs * buckets, tile.invocations)
    shader.workgroup("counts", "atomic<u32>", size + lanes)
    for first in range(0, size, tile.invocations):
        shader.emit(f"atomicStore(&counts[min({first}u + {shader.local}, {size - 1}u)], 0u);")
    shader.emit("workgroupBarrier();")
    subgroup = shader.builtin("subgroup_id")
    shift = shader.let("u32", f"({subgroup} & 1u) * 16u")
    cells = [shader.let("u32", f"({subgroup} >> 1u) * {buckets}u + {digit}") for digit in digits]
    ranks = [_rank(shader, digit, bits, cell, shift, size) for digit, cell in zip(digits, cells, strict=True)]
    shader.emit("workgroupBarrier();")
    _sum_ballot_counts(shader, tile, pairs, buckets, bases)
    counts = [f"((atomicLoad(&counts[{cell}]) >> {shift}) & 0xffffu)" for cell in cells]
    return [shader.let("u32", f"{count} + {rank}") for count, rank in zip(counts, ranks, strict=True)]


def _rank(shader: Shader, digit: str, bits: int, cell: str, shift: str, unused: int) -> str:
    """Emit the number of a subgroup's elements of the same digit that precede one."""
    lane = shader.builtin("subgroup_invocation_id")
    same = shader.let("u32", f"{_same_digit(shader, bits)}({digit})")
    before = shader.let("u32", f"countOneBits({same} & ((1u << {lane}) - 1u))")
    # Invocations that are not the first add to a word that is never read, so that there is no branch.
    at = shader.let("u32", f"select({unused}u + {lane}, {cell}, {before} == 0u)")
    earlier = shader.let("u32", f"(atomicAdd(&counts[{at}], countOneBits({same}) << {shift}) >> {shift}) & 0xffffu")
    return shader.let("u32", f"subgroupShuffle({earlier}, firstTrailingBit({same})) + {before}")


def _same_digit(shader: Shader, bits: int) -> str:
    """Return the function that gives a subgroup's invocations with the same digit.

    They are bits of the result.
    """
    everyone = (1 << lanes_of(shader.module.capabilities)) - 1
    statements = [f"fn same_digit(digit: u32) -> u32 {{\n  var same = {everyone}u;"]
    for k in range(bits):
        statements.append(f"  let mine{k} = (digit & {1 << k}u) != 0u;\n  let those{k} = subgroupBallot(mine{k}).x;")
        statements.append(f"  same &= select(~those{k}, those{k}, mine{k});")
    return shader.helper("same_digit", "\n".join([*statements, "  return same;\n}"]))


def _sum_ballot_counts(shader: Shader, tile: Tile, pairs: int, buckets: int, bases: str) -> None:
    """Turn each count into the sum of those before it.

    Every invocation has neighbouring digits, or one, or none.
    """
    each = max(1, buckets // tile.invocations)
    has_digits = f"{shader.local} < {buckets}u"
    digits = [shader.let("u32", f"min({shader.local} * {each}u + {j}u, {buckets - 1}u)") for j in range(each)]
    cells = [[f"counts[{pair * buckets}u + {digit}]" for pair in range(pairs)] for digit in digits]
    counts = [[shader.let("u32", f"atomicLoad(&{cell})") for cell in row] for row in cells]
    both = shader.let("u32", " + ".join(count for row in counts for count in row))
    sums = exclusive(shader, f"select(0u, ({both} & 0xffffu) + ({both} >> 16u), {has_digits})")
    total = shader.var("u32", f"{sums}.x")
    with shader.block(f"if ({has_digits})"):
        for digit, row, digit_counts in zip(digits, cells, counts, strict=True):
            if bases:
                shader.emit(f"{bases}[{digit}] -= {total};")
            for cell, count in zip(row, digit_counts, strict=True):
                shader.emit(f"atomicStore(&{cell}, {total} | (({total} + ({count} & 0xffffu)) << 16u));")
                shader.emit(f"{total} += ({count} & 0xffffu) + ({count} >> 16u);")
    shader.emit("workgroupBarrier();")


# Sort keys (`codegen.scalars`) in shaders.
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

    return shader.for_each(sorting.rows * sorting.size, sort_element)


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
    """Return the dispatch that sorts each row by a workgroup, without values."""
    # Keys that are equal though they differ are moved separately.
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
        remaining = shader.var("u32", equal)
        position = shader.var("u32", f"({sums}.y & 0xffffu) + ({sums}.x >> 16u)")
        with shader.block(f"while ({remaining} != 0u)"):
            bit = shader.let("u32", f"{remaining} & (~{remaining} + 1u)")
            write(shader.group, position, f"({least}u + select(0u, 1u, ({greater} & {bit}) != 0u))", "0u")
            shader.emit(f"{remaining} ^= {bit};")
            shader.emit(f"{position} += 1u;")

    return write_equals
