"""Small kernels put off until somebody needs one of them, so that they stand side by side and a lane can do them together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain

from volta_fn.compiler.kernels.emit import Fused, Item
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
        read = item.operands if isinstance(item, Fused) else [v for v in item.invars if isinstance(v, Var)]
        behind = max([turns.get(roots.get(v, v), -1) for v in read], default=-1) + 1
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
