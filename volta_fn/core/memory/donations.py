"""Which arguments are donated, and which results belong in their memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from volta_fn import tree
from volta_fn.core.aval import ShapedArray


class Donations(tuple[bool, ...]):
    """A flag for each argument, and pairs of results and donated arguments.

    The two have equal paths in their trees. A pair is (number of the result, number of the argument). It is a preference: a result that is
    computed while its argument is still needed takes other memory.
    """

    pairs: tuple[tuple[int, int], ...] = ()

    @classmethod
    def paired(cls, donated: Iterable[bool], pairs: Sequence[tuple[int, int]]) -> Donations:
        """Make flags with pairs.

        >>> Donations.paired([True, False], [(1, 0)]).pairs
        ((1, 0),)
        """
        found = cls(donated)
        found.pairs = tuple(pairs)
        return found


def pairs_of(donated: Sequence[bool]) -> tuple[tuple[int, int], ...]:
    """Return the pairs of results and arguments that flags come with, if any."""
    return donated.pairs if isinstance(donated, Donations) else ()


def pair_by_path(
    donated: Sequence[bool], in_tree: Any, in_avals: Sequence[ShapedArray], out_tree: Any, out_avals: Sequence[ShapedArray]
) -> list[tuple[int, int]]:
    """Pair results with donated arguments of the same shape, dtype and path.

    Of a training step ``(model, moments, batch) -> (loss, model, moments)`` the paths of a parameter begin differently in arguments and
    results and end alike, so the longest common ends are paired first, then in order.
    """
    arguments = {i: path for i, path in enumerate(_paths(in_tree)) if donated[i]}
    results = dict(enumerate(_paths(out_tree)))
    pairs: list[tuple[int, int]] = []
    for length in range(max(map(len, arguments.values()), default=0), 0, -1):
        by_end: dict[Any, list[int]] = {}
        for number, path in arguments.items():
            if len(path) >= length:
                by_end.setdefault((path[-length:], *_type(in_avals[number])), []).append(number)
        for number, path in list(results.items()):
            fitting = by_end.get((path[-length:], *_type(out_avals[number]))) if len(path) >= length else None
            if fitting:
                pairs.append((number, fitting.pop(0)))
                del results[number], arguments[pairs[-1][1]]
    return pairs


def _paths(structure: Any) -> list[tree.KeyPath]:
    return [path for path, _ in tree.leaves_with_path(tree.unflatten(structure, range(structure.num_leaves)))]


def _type(aval: ShapedArray) -> tuple[Any, ...]:
    return aval.shape, aval.dtype
