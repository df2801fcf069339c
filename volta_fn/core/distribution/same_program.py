"""The check that all processes compile the same program."""

from __future__ import annotations

from volta_fn.core.axes import ProcessAxis
from volta_fn.core.distribution import world
from volta_fn.core.jaxpr import ClosedJaxpr, program_cache, sub_jaxprs


def checked(closed: ClosedJaxpr) -> ClosedJaxpr:
    """Return a program, after a check that all processes compile it."""
    if world.current().size > 1 and names_processes(closed):
        world.current().check_program(closed)
    return closed


@program_cache
def names_processes(closed: ClosedJaxpr) -> bool:
    """Return True if a program has collectives between processes."""
    for eqn in closed.eqns:
        if any(isinstance(name, ProcessAxis) for name in eqn.params.get("axis_names", ())):
            return True
        if any(names_processes(inner) for inner in sub_jaxprs(eqn.params)):
            return True
    return False
