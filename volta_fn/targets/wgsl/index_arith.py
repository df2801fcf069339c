"""Index arithmetic in shaders, as texts of type u32.

It needs no function, so that it can be written wherever texts are.
"""

from __future__ import annotations

from collections.abc import Iterable

from volta_fn.codegen.index_arith import IndexArithmetic


class IndexText(IndexArithmetic[str]):
    """Index arithmetic printed as expressions."""

    def index(self, number: int) -> str:
        """Return a literal."""
        return f"{number}u"

    def known(self, x: str) -> int | None:
        """Return 0 for its literal; all others are left to the compilers of shaders."""
        return 0 if x == "0u" else None

    def print_index(self, operator: str, x: str, y: str) -> str:
        """Return the expression of an operation."""
        return f"({x} {operator} {y})"

    def sum(self, terms: Iterable[str]) -> str:
        """Return the sum of all terms that are not 0."""
        kept = [x for x in terms if x != "0u"]
        return kept[0] if len(kept) == 1 else f"({' + '.join(kept)})" if kept else "0u"


#: Index arithmetic without a function.
TEXT = IndexText()
plus, times, quotient, remainder, dotted = TEXT.plus, TEXT.times, TEXT.quotient, TEXT.remainder, TEXT.dotted
