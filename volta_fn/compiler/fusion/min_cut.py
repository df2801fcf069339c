"""Minimum cuts of acyclic graphs, by maximum flow.

A minimum cut is the cheapest set of nodes to keep so that everything above them can be computed from them. By the theorem of Ford and
Fulkerson (1956) the cost of a minimum cut is that of the maximum flow, which shortest augmenting paths find (Edmonds & Karp 1972). Each
node is two here, its upper and its lower side, and its cost is what can flow from the one to the other.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Generic, TypeVar

T = TypeVar("T")

#: More than any sum of costs.
NEVER = 1 << 62


def smallest_cut(cost: Mapping[T, int], below: Mapping[T, Sequence[T]], tops: Iterable[T]) -> set[T]:
    """Return the cheapest nodes that cut all paths from `tops` down.

    Paths end at nodes with nothing below. Of equally cheap sets it is the topmost.
    """
    flow = _Flow(cost, below, list(dict.fromkeys(tops)))
    while flow.augmented():
        pass
    return {node for node, lower in flow.came if not lower and (node, True) not in flow.came}


class _Flow(Generic[T]):
    def __init__(self, cost: Mapping[T, int], below: Mapping[T, Sequence[T]], tops: list[T]) -> None:
        self.cost = cost
        self.below = below
        self.tops = tops
        self.through: dict[T, int] = defaultdict(int)
        #: Flow along edges, by their lower ends.
        self.down: dict[T, dict[T, int]] = defaultdict(lambda: defaultdict(int))
        #: The sides of nodes that the last search reached, and from where.
        self.came: dict[tuple[T, bool], tuple[T, bool] | None] = {}

    def augmented(self) -> bool:
        """Increase the flow; return False if it is maximal."""
        self.came = dict.fromkeys([(t, False) for t in self.tops])
        queue = deque(self.came)
        while queue:
            side = queue.popleft()
            if side[1] and not self.below.get(side[0]):
                self._send(side)
                return True
            for further in self._next(*side):
                if further not in self.came:
                    self.came[further] = side
                    queue.append(further)
        return False

    def _next(self, node: T, lower: bool) -> Iterator[tuple[T, bool]]:
        """Yield the sides of nodes that more flow can go to, or less can come from."""
        if lower:
            yield from [(other, False) for other in self.below.get(node, ())]
            if self.through[node] > 0:
                yield node, False
            return
        if self.through[node] < self.cost[node]:
            yield node, True
        yield from [(other, True) for other, amount in self.down[node].items() if amount > 0]

    def _send(self, end: tuple[T, bool]) -> None:
        path = [end]
        while (before := self.came[path[-1]]) is not None:
            path.append(before)
        path.reverse()
        steps = list(pairwise(path))
        amount = min(self._room(a, b) for a, b in steps)
        for (a, a_lower), (b, b_lower) in steps:
            if a is b:
                self.through[a] += amount if b_lower else -amount
            elif a_lower:
                self.down[b][a] += amount
            else:
                self.down[a][b] -= amount

    def _room(self, first: tuple[T, bool], second: tuple[T, bool]) -> int:
        (a, a_lower), (b, b_lower) = first, second
        if a is b:
            return self.cost[a] - self.through[a] if b_lower else self.through[a]
        return NEVER if a_lower else self.down[a][b]
