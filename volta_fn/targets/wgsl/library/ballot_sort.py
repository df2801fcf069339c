"""A workgroup's tile of elements sorted by ballots of subgroups.

Invocations of a subgroup hold neighbours. One ballot for each bit of their digits tells which invocations have the same digit: how many of
these come before one, and the first of them counts all. Sums of the counts, in the order of digits, and of subgroups for each digit, tell
where every element goes, stably. Counts of two subgroups share a word.

Subgroups must have one known size, of 32 at most. (Unlike sums over subgroups, ballots have always included all invocations, even after
branches: see `loops.subgroups`.)
"""

from __future__ import annotations

from volta_fn.compiler.target import TargetCapabilities
from volta_fn.targets.wgsl.library.tile_sort import Rank, Tile, exclusive
from volta_fn.targets.wgsl.scalars import Shader

#: Digits are of so many bits at most, and there are no more of them than this for each invocation of a subgroup: the counts of 256
#: invocations take 4 KiB, however small subgroups are.
_BITS, _DIGITS_OF_LANE = 8, 8


def lanes_of(device: TargetCapabilities) -> int:
    """Return the invocations of a subgroup, or 0 where ballots are not to be used."""
    known = device.subgroups and device.subgroup_least == device.subgroup_most <= 32
    return device.subgroup_most if known else 0


def digit_bits(device: TargetCapabilities) -> int:
    """Return the most bits of a digit, where elements are sorted by ballots."""
    return min(_BITS, (_DIGITS_OF_LANE * lanes_of(device)).bit_length() - 1)


def numbers_in_tile(shader: Shader, tile: Tile) -> list[str]:
    """Emit the numbers of an invocation's elements.

    Every subgroup has a chunk of the tile, in which neighbours hold neighbours.
    """
    lanes = lanes_of(shader.module.device)
    shader.number_by_subgroups()
    lane = shader.builtin("subgroup_invocation_id")
    first = shader.let("u32", f"({shader.local} - {lane}) * {tile.each}u + {lane}")
    return [shader.let("u32", f"{first} + {k * lanes}u") for k in range(tile.each)]


def sort_by_ballots(shader: Shader, tile: Tile, keys: list[str], values: list[str], rank: Rank, bits: str) -> None:
    """Sort stably by the lowest bits of the ranks.

    `keys` and `values` are variables, those of `numbers_in_tile` before and after.
    """
    numbers = numbers_in_tile(shader, tile)
    step = digit_bits(shader.module.device)
    with shader.loop(bits, 0, step) as shift:
        digits = [shader.let("u32", f"({rank(key)} >> {shift}) & {(1 << step) - 1}u") for key in keys]
        positions = positions_by_digit(shader, tile, digits, step)
        for variables in (keys, values):
            exchange(shader, tile, positions, numbers, variables)


def exchange(shader: Shader, tile: Tile, positions: list[str], numbers: list[str], variables: list[str]) -> None:
    """Move every element to its position, and load the elements of these numbers."""
    shader.workgroup("scratch", "u32", tile.size)
    for position, variable in zip(positions, variables, strict=True):
        shader.emit(f"scratch[{position}] = {variable};")
    shader.emit("workgroupBarrier();")
    for number, variable in zip(numbers, variables, strict=True):
        shader.emit(f"{variable} = scratch[{number}];")
    shader.emit("workgroupBarrier();")


def positions_by_digit(shader: Shader, tile: Tile, digits: list[str], bits: int, bases: str = "") -> list[str]:
    """Emit where the elements go in the tile.

    Where each digit begins there is subtracted from the array `bases`, if there is one.
    """
    lanes, buckets = lanes_of(shader.module.device), 1 << bits
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
    _sum_counts(shader, tile, pairs, buckets, bases)
    counts = [f"((atomicLoad(&counts[{cell}]) >> {shift}) & 0xffffu)" for cell in cells]
    return [shader.let("u32", f"{count} + {rank}") for count, rank in zip(counts, ranks, strict=True)]


def _rank(shader: Shader, digit: str, bits: int, cell: str, shift: str, unused: int) -> str:
    """Emit how many of a subgroup's elements of the same digit come before one."""
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
    everyone = (1 << lanes_of(shader.module.device)) - 1
    statements = [f"fn same_digit(digit: u32) -> u32 {{\n  var same = {everyone}u;"]
    for k in range(bits):
        statements.append(f"  let mine{k} = (digit & {1 << k}u) != 0u;\n  let those{k} = subgroupBallot(mine{k}).x;")
        statements.append(f"  same &= select(~those{k}, those{k}, mine{k});")
    return shader.helper("same_digit", "\n".join([*statements, "  return same;\n}"]))


def _sum_counts(shader: Shader, tile: Tile, pairs: int, buckets: int, bases: str) -> None:
    """Turn each count into the sum of those before it.

    Every invocation has neighbouring digits, or one, or none.
    """
    each = max(1, buckets // tile.invocations)
    there = f"{shader.local} < {buckets}u"
    digits = [shader.let("u32", f"min({shader.local} * {each}u + {j}u, {buckets - 1}u)") for j in range(each)]
    cells = [[f"counts[{pair * buckets}u + {digit}]" for pair in range(pairs)] for digit in digits]
    counts = [[shader.let("u32", f"atomicLoad(&{cell})") for cell in row] for row in cells]
    both = shader.let("u32", " + ".join(count for row in counts for count in row))
    sums = exclusive(shader, f"select(0u, ({both} & 0xffffu) + ({both} >> 16u), {there})")
    total = shader.var("u32", f"{sums}.x")
    with shader.block(f"if ({there})"):
        for digit, row, found in zip(digits, cells, counts, strict=True):
            if bases:
                shader.emit(f"{bases}[{digit}] -= {total};")
            for cell, count in zip(row, found, strict=True):
                shader.emit(f"atomicStore(&{cell}, {total} | (({total} + ({count} & 0xffffu)) << 16u));")
                shader.emit(f"{total} += ({count} & 0xffffu) + ({count} >> 16u);")
    shader.emit("workgroupBarrier();")
