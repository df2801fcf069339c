"""Several axes of a kernel walked as one, by elements or groups of *lanes*."""

from __future__ import annotations

import math
from typing import NamedTuple, Protocol

from volta_fn.compiler.ir.index import Affine

#: How many neighbours an invocation takes at a time: as many as a vector has, and as many bytes as a word has. It may be more of narrow
#: numbers, as many as a vector of words has.
LANES = 4

#: Texts of u32 expressions that are cheap to repeat: one for all lanes, or one for each.
Texts = tuple[str, ...]

#: What stands for the number of the group along the last axis of a span whose groups do not cross its ends.
GROUP = -1


class Namer(Protocol):
    """The part of a shader that is used here."""

    def let(self, type_: str, expression: str) -> str:
        """Name a value."""


class AxisSpan(NamedTuple):
    """Axes in the order in which they are walked, the last one fastest."""

    axes: tuple[int, ...]
    sizes: tuple[int, ...]
    lanes: int = 1

    @property
    def total(self) -> int:
        """The number of elements."""
        return math.prod(self.sizes)

    @property
    def groups(self) -> int:
        """The number of groups of lanes."""
        return -(-self.total // self.lanes)

    @property
    def is_aligned(self) -> bool:
        """True if the lanes of a group differ in the last axis only."""
        return self.lanes > 1 and bool(self.sizes) and self.sizes[-1] % self.lanes == 0

    @property
    def terms(self) -> dict[int, int]:
        """The number of an element as a sum over the axes: the factor of each."""
        return {a: math.prod(self.sizes[k + 1 :]) for k, a in enumerate(self.axes)}

    def bind(self, shader: Namer, group: str) -> dict[int, Texts]:
        """Emit the axes' indices in a group of lanes.

        In the last group the last element may be there more than once.
        """
        if self.is_aligned:
            axes = _divided(shader, group, (*self.sizes[:-1], self.sizes[-1] // self.lanes))
            last = shader.let("u32", f"{axes[-1]} * {self.lanes}u")
            lanes = (last, *[f"({last} + {k}u)" for k in range(1, self.lanes)])
            return {**{a: (text,) for a, text in zip(self.axes[:-1], axes, strict=False)}, self.axes[-1]: lanes, GROUP: (axes[-1],)}
        if self.lanes == 1:
            return {a: (text,) for a, text in zip(self.axes, _divided(shader, group, self.sizes), strict=True)}
        elements = []
        for k in range(self.lanes):
            number = f"{group} * {self.lanes}u" + (f" + {k}u" if k else "")
            number = f"min({number}, {self.total - 1}u)" if k >= (self.total % self.lanes or self.lanes) else number
            elements.append(_divided(shader, shader.let("u32", number), self.sizes))
        return {**{a: tuple([element[n] for element in elements]) for n, a in enumerate(self.axes)}, GROUP: (group,)}

    def vector(self, index: Affine) -> Affine | None:
        """Return the number of the lanes' vector by the axes' indices, if they form one."""
        rest = dict(index.terms)
        wanted = {self.axes[-1]: 1} if self.is_aligned else self.terms
        if (
            self.lanes == 1
            or any(rest.pop(a, 0) != c for a, c in wanted.items())
            or any(c % self.lanes for c in (*rest.values(), index.offset))
        ):
            return None
        if not self.is_aligned and rest.keys() & set(self.axes):
            return None
        return Affine(tuple(sorted([(GROUP, 1), *[(a, c // self.lanes) for a, c in rest.items()]])), index.offset // self.lanes)


def _divided(shader: Namer, number: str, sizes: tuple[int, ...]) -> list[str]:
    """Emit the index along each axis, by the number of an element."""
    result: list[str] = []
    for size in reversed(sizes[1:]):
        quotient = shader.let("u32", f"{number} / {size}u")
        result.append(shader.let("u32", f"{number} - {quotient} * {size}u"))
        number = quotient
    return [number, *reversed(result)] if sizes else []
