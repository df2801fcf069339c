"""Algebraic simplification: all the rules about single operations, in one walk."""

from __future__ import annotations

from volta_fn.compiler.passes import arithmetic, choosing, layout
from volta_fn.compiler.passes.broadcasts import broadcasting_rules
from volta_fn.compiler.passes.rewriting import Rules, rewrite
from volta_fn.core.jaxpr import ClosedJaxpr

_RULES = Rules([arithmetic.RULES, choosing.RULES, layout.RULES], broadcasting_rules)


def simplify_algebra(closed: ClosedJaxpr) -> ClosedJaxpr:
    """The program with operations that do nothing, or undo or repeat others, left out, and some others in cheaper forms."""
    return rewrite(closed, _RULES)
