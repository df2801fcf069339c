"""Accumulators: the states of reductions that loops carry, and how two merge.

The state of ``argmax`` and ``argmin`` is the best value so far and its index in the row.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from volta_fn.compiler.ir.analysis import KernelAnalysis
from volta_fn.compiler.ir.kernel import Reduce

#: The state of a reduction: a target's values for the numbers that loops carry.
S = TypeVar("S")


@dataclass(frozen=True)
class BaseAccumulator(Generic[S]):
    """One reduction of numbers of a dtype."""

    node: Reduce
    dtype: np.dtype

    @property
    def rounds(self) -> bool:
        """True if long reductions are better made of short ones."""
        return self.node.reduction.is_pairwise(self.dtype)

    @abstractmethod
    def merge(self, x: S, y: S) -> S:
        """Emit the combination of two states."""

    def merged(self, states: Sequence[S]) -> S:
        """Emit the combination of several states, by a tree."""
        if len(states) == 1:
            return states[0]
        half = (len(states) + 1) // 2
        return self.merge(self.merged(states[:half]), self.merged(states[half:]))


def reductions(analysis: KernelAnalysis, numbers: Sequence[int]) -> list[tuple[Reduce, np.dtype]]:
    """Return the reductions of some numbers, each with the dtype of what it reduces."""
    return [(analysis.reduces[n], analysis.kernel.nodes[analysis.reduces[n].operand].dtype) for n in numbers]
