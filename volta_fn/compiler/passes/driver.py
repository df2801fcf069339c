"""All passes in a good order, until they find nothing more."""

from __future__ import annotations

from volta_fn.compiler.passes.algebra import simplify_equations
from volta_fn.compiler.passes.cond_simplify import choose_branches
from volta_fn.compiler.passes.dce import drop_dead
from volta_fn.compiler.passes.inline import inline_calls
from volta_fn.compiler.passes.licm import hoist_invariants
from volta_fn.compiler.passes.loop_variance import simplify_loops
from volta_fn.compiler.passes.nested import simplify_bodies
from volta_fn.core.jaxpr import ClosedJaxpr

#: A round is for what the one before made possible; programs are done after two or three.
_ROUNDS = 8
_SIMPLIFIED = "simplified"


def simplify(closed: ClosedJaxpr) -> ClosedJaxpr:
    """A program with the same inputs and effects, and outputs of the same bits, that does less.

    It is kept on the given one; that of a simplified program is the program itself.
    """
    found = closed.cache.get(_SIMPLIFIED)
    if found is not None:
        return closed if found is True else found
    program, done = closed, False
    for _ in range(_ROUNDS):
        program, done = _round(program)
        if done:
            break
    program.cache[_SIMPLIFIED] = True
    if program is not closed:
        closed.cache[_SIMPLIFIED] = program
    return program


def _round(closed: ClosedJaxpr) -> tuple[ClosedJaxpr, bool]:
    """The program after each pass once, and whether another round would find nothing, as no control flow changed."""
    live = drop_dead(simplify_equations(inline_calls(closed)))
    program = live
    for pass_ in (choose_branches, simplify_loops, hoist_invariants):
        program = pass_(program)
    program = simplify_bodies(program, simplify)
    return program, program is live
