"""Products that only what a scan stacks depends on, done behind the loop."""

from __future__ import annotations

from volta_fn.compiler.ir.views import is_lowered, is_product
from volta_fn.compiler.passes.loop_fission.scan_view import Parts, is_thin_product, size_of
from volta_fn.core.jaxpr import Equation, Var


def products_after(parts: Parts) -> list[Equation]:
    """Take the products out that no carry depends on: a call that computes them for all steps, and what depends on them."""
    moved = _movable(parts)
    made = {v for e in moved for v in e.outvars}
    given = [(out, stacked) for out, stacked in parts.ys if out in made]
    read = [v for v in dict.fromkeys(v for e in moved for v in e.invars) if isinstance(v, Var)]
    inputs = [v for v in read if v not in made and v not in parts.body.jaxpr.constvars]
    changing = [v for v in inputs if v not in parts.consts]
    products = sum(size_of(e.outvars[0]) for e in moved if is_product(e))
    stacked = parts.bytes_to_stack(changing) + parts.length * (products - sum(size_of(out) for out, _ in given))
    if not given or not parts.affords(stacked):
        return []
    parts.ys = [(out, stacked) for out, stacked in parts.ys if out not in made]
    outputs, results = zip(*given, strict=True)
    parts.eqns = [e for e in parts.eqns if e not in moved]
    return [parts.call(moved, inputs, outputs, list(results), "products behind a loop")]


def _movable(parts: Parts) -> list[Equation]:
    """Products that nothing but stacked outputs depends on, and all equations that depend on them; none if one of those has to stay."""
    kept = parts.live([c.next for c in parts.carry])
    moved: list[Equation] = []
    made: set[Var] = set()
    for eqn in parts.eqns:
        if any(v in kept for v in eqn.outvars):
            continue
        depends = any(v in made for v in eqn.invars)
        if depends or is_thin_product(eqn, [parts.is_constant(v) for v in eqn.invars]):
            if not (is_product(eqn) or is_lowered(eqn)):
                return []
            moved.append(eqn)
            made.update(eqn.outvars)
    return moved
