"""A tile of elements sorted in the memory of a workgroup.

Every invocation holds some neighbouring elements, a key and perhaps a value each. By one digit of four bits at a time, everyone counts its
digits; sums of the counts in the order of digits, and of invocations for each digit, tell where every element goes, stably. Counts of eight
digits share a word, and sums of two.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from volta_fn.targets.wgsl.scalars import Shader

#: Digits are of so many bits.
BITS = 4

#: ``rank(key)`` is the text of what elements are sorted by, for keys that may differ though they are equal.
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
    """Return the cell of a word in `scratch`.

    One in 33 is left out, so that words at equal distances are in different banks.
    """
    return f"{i} + ({i} >> 5u)"


def exclusive(shader: Shader, value: str) -> str:
    """Emit the sum of earlier invocations' values and that of all.

    The result is the name of a ``vec2<u32>``. All invocations must execute this.
    """
    device = shader.module.device
    if device.subgroups and shader.invocations % device.subgroup_most == 0:
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
    """Emit the same by scans of subgroups.

    Sums over subgroups are unreliable: see `loops.subgroups`.
    """
    shader.number_by_subgroups()
    shader.workgroup("sums", "u32", shader.invocations // shader.module.device.subgroup_least)
    name = shader.helper(
        "exclusive",
        """fn exclusive(x: u32, lane: u32, last: u32, mine: u32, count: u32) -> vec2<u32> {
  let before = subgroupExclusiveAdd(x);
  if (lane == last) { sums[mine] = before + x; }
  workgroupBarrier();
  var found = vec2<u32>(before, 0u);
  for (var i = 0u; i < count; i++) {
    let one = sums[i];
    found += vec2<u32>(select(0u, one, i < mine), one);
  }
  workgroupBarrier();
  return found;
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
        for variables in (keys, values):
            _exchange(shader, tile, positions, variables)


def _exchange(shader: Shader, tile: Tile, positions: list[str], variables: list[str]) -> None:
    """Move every element to its position, and load the elements of this invocation."""
    if not variables:
        return
    for position, variable in zip(positions, variables, strict=True):
        shader.emit(f"scratch[{position}] = {variable};")
    shader.emit("workgroupBarrier();")
    for cell_, variable in zip(_own(shader, tile.each), variables, strict=True):
        shader.emit(f"{variable} = scratch[{cell_}];")
    shader.emit("workgroupBarrier();")


def _own(shader: Shader, each: int) -> list[str]:
    """Emit the cells of an invocation's words, if everyone has so many."""
    numbers = [shader.let("u32", f"{shader.local} * {each}u + {k}u") for k in range(each)]
    return [shader.let("u32", cell(i)) for i in numbers]


def collect(shader: Shader, tile: Tile, variables: list[str]) -> None:
    """Redistribute elements so that each invocation holds neighbours."""
    if not variables:
        return
    shader.workgroup("scratch", "u32", tile.room)
    for k, variable in enumerate(variables):
        at = shader.let("u32", f"{shader.local} + {k * tile.invocations}u")
        shader.emit(f"scratch[{cell(at)}] = {variable};")
    shader.emit("workgroupBarrier();")
    for cell_, variable in zip(_own(shader, tile.each), variables, strict=True):
        shader.emit(f"{variable} = scratch[{cell_}];")
    shader.emit("workgroupBarrier();")


def spread(shader: Shader, tile: Tile, variables: list[str]) -> list[str]:
    """Redistribute elements so that neighbours hold neighbours.

    Return what comes before each.
    """
    if not variables:
        return []
    shader.workgroup("scratch", "u32", tile.room)
    for cell_, variable in zip(_own(shader, tile.each), variables, strict=True):
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
    _sum_counts(shader)
    positions = [
        shader.let("u32", f"((scratch[{counter}] >> {half}) & 0xffffu) + {rank}")
        for counter, half, rank in zip(counters, halves, ranks, strict=True)
    ]
    shader.emit("workgroupBarrier();")
    return [shader.let("u32", cell(position)) for position in positions]


def _sum_counts(shader: Shader) -> None:
    """Turn each count into the sum of those before it.

    All counts of digits in the lower halves come before those in the upper.
    """
    cells = _own(shader, 8)
    counts = [shader.let("u32", f"scratch[{cell_}]") for cell_ in cells]
    sums = exclusive(shader, " + ".join(counts))
    total = shader.var("u32", f"{sums}.x + ({sums}.y << 16u)")
    for cell_, count in zip(cells, counts, strict=True):
        shader.emit(f"scratch[{cell_}] = {total};")
        shader.emit(f"{total} += {count};")
    shader.emit("workgroupBarrier();")
