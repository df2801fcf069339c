"""Algebraic simplification: all the rules about single operations, in one walk."""

from __future__ import annotations

from volta_fn.compiler.passes import arithmetic, choosing, layout
from volta_fn.compiler.passes.rewriting import Table, by_name, rewrite
from volta_fn.core.jaxpr import ClosedJaxpr


def _merged(*tables: Table) -> Table:
    whole: Table = {}
    for table in tables:
        for name, rules in table.items():
            whole.setdefault(name, []).extend(rules)
    return whole


_rules_of = by_name(_merged(arithmetic.RULES, choosing.RULES, layout.RULES))


def simplify_algebra(closed: ClosedJaxpr) -> ClosedJaxpr:
    """The program with operations that do nothing, or undo or repeat others, left out, and some others in cheaper forms."""
    return rewrite(closed, _rules_of)
