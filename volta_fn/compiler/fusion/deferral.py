"""Kernels deferred until one of them is needed, so that they follow each other and a lane can fuse them horizontally."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

from volta_fn.compiler.fusion.emit_kernels import Fused, Item, variables_made, variables_read
from volta_fn.compiler.ir.contraction import contraction_of
from volta_fn.compiler.ir.kernel import Kernel
from volta_fn.core.jaxpr import Var


def defer_small_kernels(items: Sequence[Item], roots: Mapping[Var, Var], is_small: Callable[[Kernel], bool]) -> list[Item]:
    """The items, with small kernels as late as possible.

    Where one is needed, those that wait for as few others as it, or for fewer, come with it: first those that wait for nobody, then those
    that wait for these, and so on. `roots` maps variables to those whose memory they are.
    """
    result: list[Item] = []
    #: Those that wait, by how many others of them they wait for, one after the other, and so for the variables that they make.
    waiting: list[list[Item]] = []
    turns: dict[Var, int] = {}
    for item in items:
        behind = max([turns.get(v, -1) for v in _read(item, roots)], default=-1) + 1
        if isinstance(item, Fused) and is_small(item.kernel):
            waiting += [[]] * (behind == len(waiting))
            waiting[behind] = [*waiting[behind], item]
            turns.update(dict.fromkeys(item.results, behind))
            continue
        if behind:
            result += chain(*waiting[:behind])
            waiting = waiting[behind:]
            turns = {v: turn - behind for v, turn in turns.items() if turn >= behind}
        result.append(item)
    return [*result, *chain(*waiting)]


class Deferral(NamedTuple):
    """How a lane defers products: which of them, how many bytes may be kept for them, and how many of them are worth it."""

    is_little: Callable[[Kernel], bool]
    most_bytes: int
    least: int


def defer_products(items: Sequence[Item], roots: Mapping[Var, Var], deferral: Deferral) -> tuple[list[Item], frozenset[int]]:
    """The items with little products that no other product waits for, directly or not, put off until the last of them.

    And their numbers there. They would be between those that wait for each other, and make these wait, too. As what they read must be
    kept so long, only the last of them are put off, as far as memory goes.
    """
    chosen = _unawaited(items, roots, deferral)
    end = max(chosen, default=0)
    early = {v for item in items[:end] for v in _read(item, roots)}
    chosen = {n for n in chosen if early.isdisjoint(variables_made(items[n]))}
    if len(chosen) < deferral.least:
        return [*items], frozenset()
    rest = [item for n, item in enumerate(items[:end]) if n not in chosen]
    return [*rest, *[items[n] for n in sorted(chosen)], *items[end + 1 :]], frozenset(range(len(rest), end + 1))


def _unawaited(items: Sequence[Item], roots: Mapping[Var, Var], deferral: Deferral) -> set[int]:
    """The numbers of the last little products that no product, and nothing else that is no kernel, waits for."""
    needed: set[Var] = set()
    chosen: set[int] = set()
    room = deferral.most_bytes
    for number in reversed(range(len(items))):
        item = items[number]
        is_awaited = not needed.isdisjoint(variables_made(item))
        is_product = not isinstance(item, Fused) or contraction_of(item.kernel) is not None
        if is_product and not is_awaited and isinstance(item, Fused) and deferral.is_little(item.kernel):
            room -= sum(b.size * b.dtype.itemsize for b in item.kernel.inputs)
            if room >= 0:
                chosen.add(number)
        if is_product or is_awaited:
            needed.update(_read(item, roots))
    return chosen


def _read(item: Item, roots: Mapping[Var, Var]) -> list[Var]:
    return [roots.get(v, v) for v in variables_read(item)]
