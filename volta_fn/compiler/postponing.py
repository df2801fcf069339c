"""Kernels put off until somebody needs one of them, so that they stand side by side and a lane can do them together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

from volta_fn.compiler.kernels.contraction import contraction_of
from volta_fn.compiler.kernels.emit import Fused, Item, variables_made, variables_read
from volta_fn.compiler.kernels.ir import Kernel
from volta_fn.core.jaxpr import Var


def postponed(items: Sequence[Item], roots: Mapping[Var, Var], is_small: Callable[[Kernel], bool]) -> list[Item]:
    """The items, small kernels as late as they may be.

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


class Late(NamedTuple):
    """Products that no other waits for: how a lane tells which products may be late, and how many of them are worth it."""

    is_little: Callable[[Kernel], bool]
    most_bytes: int
    least: int


def late_products(items: Sequence[Item], roots: Mapping[Var, Var], late: Late) -> tuple[list[Item], frozenset[int]]:
    """The items with little products that no other product waits for, directly or not, put off until the last of them.

    And their numbers there. They would be between those that wait for each other, and make these wait, too. As what they read must be
    kept so long, only the last of them are put off, as far as memory goes.
    """
    chosen = _unawaited(items, roots, late)
    end = max(chosen, default=0)
    early = {v for item in items[:end] for v in _read(item, roots)}
    chosen = {n for n in chosen if early.isdisjoint(variables_made(items[n]))}
    if len(chosen) < late.least:
        return [*items], frozenset()
    rest = [item for n, item in enumerate(items[:end]) if n not in chosen]
    return [*rest, *[items[n] for n in sorted(chosen)], *items[end + 1 :]], frozenset(range(len(rest), end + 1))


def _unawaited(items: Sequence[Item], roots: Mapping[Var, Var], late: Late) -> set[int]:
    """The numbers of the last little products that no product, and nothing else that is no kernel, waits for."""
    needed: set[Var] = set()
    chosen: set[int] = set()
    room = late.most_bytes
    for number in reversed(range(len(items))):
        item = items[number]
        is_awaited = not needed.isdisjoint(variables_made(item))
        is_product = not isinstance(item, Fused) or contraction_of(item.kernel) is not None
        if is_product and not is_awaited and isinstance(item, Fused) and late.is_little(item.kernel):
            room -= sum(b.size * b.dtype.itemsize for b in item.kernel.inputs)
            if room >= 0:
                chosen.add(number)
        if is_product or is_awaited:
            needed.update(_read(item, roots))
    return chosen


def _read(item: Item, roots: Mapping[Var, Var]) -> list[Var]:
    return [roots.get(v, v) for v in variables_read(item)]
