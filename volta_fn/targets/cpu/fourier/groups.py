"""Groups of as many neighbours as a vector has lanes.

Neighbours are signals, columns, rows or numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from volta_fn.runtime.llvm.index_arith import least
from volta_fn.runtime.llvm.text import Function, Value, i64


class Groups(NamedTuple):
    """The groups of so many neighbours, at least as many as there are lanes.

    The last group is as large as the others: it computes some of the group before again. Both are in one run, so that what is stored last
    does not depend on threads.
    """

    size: int
    lanes: int

    @property
    def runs(self) -> int:
        """How many runs of groups tasks share."""
        return self.size // self.lanes

    def emit(self, f: Function, run: Value, group: Callable[[Value], None]) -> None:
        """Emit the groups of a run; `group` is given the number of the first neighbour."""
        first = f.times(run, self.lanes)
        end = f.plus(first, i64(self.lanes))
        if self.size % self.lanes:
            end = f.select(f.compare("icmp eq", run, i64(self.runs - 1)), i64(self.size), end)
        f.loop(first, end, self.lanes, [], lambda start, _: group(least(f, start, i64(self.size - self.lanes))), once=True)
