"""All passes in a good order, until they find nothing more."""

from __future__ import annotations

from collections.abc import Callable

from volta_fn.compiler.passes.algebra import simplify_algebra
from volta_fn.compiler.passes.bodies import simplify_bodies
from volta_fn.compiler.passes.branches import choose_branches
from volta_fn.compiler.passes.broadcasts import drop_broadcasts
from volta_fn.compiler.passes.cse import merge_equal
from volta_fn.compiler.passes.dce import drop_dead
from volta_fn.compiler.passes.folding import fold_constants
from volta_fn.compiler.passes.inline import inline_calls
from volta_fn.compiler.passes.loops import simplify_loops
from volta_fn.compiler.passes.motion import hoist_invariants
from volta_fn.core.jaxpr import ClosedJaxpr

#: Each pass of a round sees what the one before it made; a second round is for what only the later ones made possible.
_ROUNDS = 8
_SIMPLIFIED = "simplified"


def simplify(closed: ClosedJaxpr) -> ClosedJaxpr:
    """A program with the same inputs and effects, and outputs of the same bits, that does less.

    It is kept on the given one; that of a simplified program is the program itself.
    """
    found = closed.cache.get(_SIMPLIFIED)
    if found is not None:
        return closed if found is True else found
    program = closed
    for _ in range(_ROUNDS):
        before = program
        for pass_ in _PASSES:
            program = pass_(program)
        if program is before:
            break
    program.cache[_SIMPLIFIED] = True
    if program is not closed:
        closed.cache[_SIMPLIFIED] = program
    return program


def _bodies(closed: ClosedJaxpr) -> ClosedJaxpr:
    return simplify_bodies(closed, simplify)


_PASSES: list[Callable[[ClosedJaxpr], ClosedJaxpr]] = [
    inline_calls,
    drop_dead,
    fold_constants,
    simplify_algebra,
    drop_broadcasts,
    merge_equal,
    drop_dead,
    choose_branches,
    simplify_loops,
    hoist_invariants,
    _bodies,
]
