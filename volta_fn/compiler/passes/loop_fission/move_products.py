"""Matrix products that no iteration of a scan waits for move out of it.

They are computed for all iterations at once.
"""

from __future__ import annotations

from volta_fn.compiler.ir.views import is_elementwise, is_lowered, is_product, is_view
from volta_fn.compiler.passes.loop_fission.batch_reductions import sums_after
from volta_fn.compiler.passes.loop_fission.scan_view import ScanView, is_thin_product, size_of, view_of
from volta_fn.core.jaxpr import Atom, ClosedJaxpr, Equation, Literal, Var
from volta_fn.primitives.control_flow.scan import scan_p


def move_products_out(closed: ClosedJaxpr) -> ClosedJaxpr:
    """Move products out of a program's own scans."""
    eqns = [e for eqn in closed.eqns for e in (_divided(eqn) if eqn.primitive is scan_p and eqn.params["length"] > 1 else [eqn])]
    if len(eqns) == len(closed.eqns):
        return closed
    return closed.replace(eqns=eqns)


def _divided(eqn: Equation) -> list[Equation]:
    """Return the calls before a scan, the scan, and the calls after it."""
    scan = view_of(eqn)
    before = products_before(scan)
    sums = sums_after(scan)
    after = [*products_after(scan), *sums]  # sums may be of results of products after the loop
    return [*before, scan.joined(), *after] if before or after else [eqn]


def products_before(scan: ScanView) -> list[Equation]:
    """Move products out that do not depend on the carry.

    A call before the loop computes them for all iterations, with what they need.
    """
    determined, products = _determined(scan)
    live = scan.live(scan.outputs, without=products)
    results = [e.outvars[0] for e in products if e.outvars[0] in live]
    moved = _needed(determined, results)
    if not results or not scan.affords(scan.length * sum(size_of(e.outvars[0]) for e in moved if not is_view(e))):
        return []
    inputs = [v for v in dict.fromkeys(v for e in moved for v in e.invars) if v in scan.consts or v in scan.rows]
    stacks = [scan.stacked(v) for v in results]
    call = scan.call(moved, inputs, results, stacks, "products before a loop")
    scan.eqns = [e for e in scan.eqns if e not in products]
    scan.rows.update(zip(results, stacks, strict=True))
    scan.drop_dead()
    return [call]


def _determined(scan: ScanView) -> tuple[list[Equation], list[Equation]]:
    """Return the cheap equations and products that need only constants and rows.

    Then return the products alone.
    """
    constant: dict[Atom, bool] = dict.fromkeys([*scan.consts, *scan.body.jaxpr.constvars], True)
    constant.update(dict.fromkeys(scan.rows, False))
    determined: list[Equation] = []
    products: list[Equation] = []
    for eqn in scan.eqns:
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
    """Return the equations that the results need."""
    needed: set[Atom] = {*results}
    found = []
    for eqn in reversed(eqns):
        if eqn.outvars[0] in needed:
            found.append(eqn)
            needed.update(eqn.invars)
    return found[::-1]


def products_after(scan: ScanView) -> list[Equation]:
    """Move products out that no carry depends on.

    A call after the loop computes them for all iterations, with what depends on them.
    """
    moved = _movable(scan)
    made = {v for e in moved for v in e.outvars}
    given = [(out, stacked) for out, stacked in scan.ys if out in made]
    read = [v for v in dict.fromkeys(v for e in moved for v in e.invars) if isinstance(v, Var)]
    inputs = [v for v in read if v not in made and v not in scan.body.jaxpr.constvars]
    changing = [v for v in inputs if v not in scan.consts]
    products = sum(size_of(e.outvars[0]) for e in moved if is_product(e))
    stacked = scan.bytes_to_stack(changing) + scan.length * (products - sum(size_of(out) for out, _ in given))
    if not given or not scan.affords(stacked):
        return []
    scan.ys = [(out, stacked) for out, stacked in scan.ys if out not in made]
    outputs, results = zip(*given, strict=True)
    scan.eqns = [e for e in scan.eqns if e not in moved]
    return [scan.call(moved, inputs, outputs, list(results), "products after a loop")]


def _movable(scan: ScanView) -> list[Equation]:
    """Return products that only stacked outputs depend on, and all their dependents.

    None if one of those has to stay.
    """
    kept = scan.live([c.next for c in scan.carry])
    moved: list[Equation] = []
    made: set[Var] = set()
    for eqn in scan.eqns:
        if any(v in kept for v in eqn.outvars):
            continue
        depends = any(v in made for v in eqn.invars)
        if depends or is_thin_product(eqn, [scan.is_constant(v) for v in eqn.invars]):
            if not (is_product(eqn) or is_lowered(eqn)):
                return []
            moved.append(eqn)
            made.update(eqn.outvars)
    return moved
