"""Products of what a scan's steps are given, done before the loop."""

from __future__ import annotations

from volta_fn.compiler.ir.views import is_elementwise, is_view
from volta_fn.compiler.passes.loop_fission.scan_view import Parts, is_thin_product, size_of
from volta_fn.core.jaxpr import Atom, Equation, Literal, Var


def products_before(parts: Parts) -> list[Equation]:
    """Take the products out that do not depend on the carry: a call that computes them for all steps, with what they need."""
    determined, products = _determined(parts)
    live = parts.live(parts.outputs, without=products)
    results = [e.outvars[0] for e in products if e.outvars[0] in live]
    moved = _needed(determined, results)
    if not results or not parts.affords(parts.length * sum(size_of(e.outvars[0]) for e in moved if not is_view(e))):
        return []
    inputs = [v for v in dict.fromkeys(v for e in moved for v in e.invars) if v in parts.consts or v in parts.rows]
    stacks = [parts.stacked(v) for v in results]
    call = parts.call(moved, inputs, results, stacks, "products before a loop")
    parts.eqns = [e for e in parts.eqns if e not in products]
    parts.rows.update(zip(results, stacks, strict=True))
    return [call]


def _determined(parts: Parts) -> tuple[list[Equation], list[Equation]]:
    """Products that need nothing but constants and rows, through cheap equations, and these equations with them."""
    constant: dict[Atom, bool] = dict.fromkeys([*parts.consts, *parts.body.jaxpr.constvars], True)
    constant.update(dict.fromkeys(parts.rows, False))
    determined: list[Equation] = []
    products: list[Equation] = []
    for eqn in parts.eqns:
        kinds = [isinstance(v, Literal) or constant.get(v) for v in eqn.invars]
        if None in kinds:
            continue
        product = is_thin_product(eqn, [kind is True for kind in kinds])
        if product or is_elementwise(eqn) or is_view(eqn):
            constant[eqn.outvars[0]] = all(kinds)
            determined.append(eqn)
            products += [eqn] if product else []
    return determined, products


def _needed(eqns: list[Equation], results: list[Var]) -> list[Equation]:
    """Those of the equations that the results need."""
    needed: set[Atom] = {*results}
    found = []
    for eqn in reversed(eqns):
        if eqn.outvars[0] in needed:
            found.append(eqn)
            needed.update(eqn.invars)
    return found[::-1]
