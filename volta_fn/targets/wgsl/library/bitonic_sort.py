"""A workgroup's keys sorted by a network of comparisons, mostly without memory.

Every invocation holds some neighbouring keys. Sorted runs are merged to ones twice as long: each key meets its mirror image in both runs,
then those at ever smaller distances, the lesser one of two going first (bitonic merges). Where both are in one invocation nothing is
moved; neighbours in a subgroup exchange keys by shuffles, others in the workgroup's memory. The sort is not stable.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from volta_fn.targets.wgsl.library.tile_sort import Tile, cell
from volta_fn.targets.wgsl.scalars import Shader


def sort_keys(shader: Shader, tile: Tile, keys: list[str]) -> None:
    """Sort variables, neighbours in each invocation.

    Their number and that of invocations are powers of two.
    """
    shader.workgroup("scratch", "u32", tile.room)
    device = shader.module.device
    shuffled = device.subgroups and device.subgroup_least == device.subgroup_most and tile.invocations % device.subgroup_most == 0
    near = min(tile.invocations, device.subgroup_most) if shuffled else 1
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
    """Merge what lies in order within two halves at this distance."""
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
