"""The rules about single equations, all in one walk: constants folded, operations simplified, equal ones merged.

In one walk each finds at once what the others made possible for it.
"""

from __future__ import annotations

from volta_fn.compiler.passes import arithmetic, contraction_rules, movement_rules, select_rules
from volta_fn.compiler.passes.broadcasts import broadcasting_rules
from volta_fn.compiler.passes.constant_folding import folding_rules
from volta_fn.compiler.passes.cse import merging_rules
from volta_fn.compiler.passes.rewriting import Rules, listed, rewrite
from volta_fn.core.jaxpr import ClosedJaxpr

_ALGEBRA = [
    listed(arithmetic.RULES),
    listed(select_rules.RULES),
    listed(movement_rules.RULES),
    movement_rules.reduction_rules,
    listed(contraction_rules.RULES),
    broadcasting_rules,
]
_SIMPLER, _ALL = Rules(*_ALGEBRA), Rules(folding_rules, *_ALGEBRA, merging_rules)


def simplify_algebra(closed: ClosedJaxpr) -> ClosedJaxpr:
    """The program with operations that do nothing, or undo or repeat others, left out, and some others in cheaper forms."""
    return rewrite(closed, _SIMPLER)


def simplify_equations(closed: ClosedJaxpr) -> ClosedJaxpr:
    """The same with constants folded and equal equations merged besides."""
    return rewrite(closed, _ALL)
