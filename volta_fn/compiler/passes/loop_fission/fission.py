"""Programs with the products out of their scans."""

from __future__ import annotations

from volta_fn.compiler.passes.loop_fission.batch_reductions import sums_behind
from volta_fn.compiler.passes.loop_fission.hoist import products_before
from volta_fn.compiler.passes.loop_fission.scan_view import parts_of
from volta_fn.compiler.passes.loop_fission.sink import products_after
from volta_fn.core.jaxpr import ClosedJaxpr, Equation, Jaxpr
from volta_fn.primitives.control_flow.scan import scan_p


def products_out(closed: ClosedJaxpr) -> ClosedJaxpr:
    """The program with the products out of its own scans."""
    eqns = [e for eqn in closed.eqns for e in (_divided(eqn) if eqn.primitive is scan_p and eqn.params["length"] > 1 else [eqn])]
    if len(eqns) == len(closed.eqns):
        return closed
    jaxpr = closed.jaxpr
    return ClosedJaxpr(Jaxpr(jaxpr.constvars, jaxpr.invars, jaxpr.outvars, eqns), closed.consts)


def _divided(eqn: Equation) -> list[Equation]:
    """What is done before a scan, the scan, and what is done behind it."""
    parts = parts_of(eqn)
    before = products_before(parts)
    sums = sums_behind(parts)
    after = [*products_after(parts), *sums]  # sums may be of what products behind the loop give
    return [*before, parts.joined(), *after] if before or after else [eqn]
