"""Scans that stack a carry both before and after each iteration stack it once.

Iteration t gets the carry that iteration t - 1 left: the one stack is the other one shifted by an iteration, after the initial carry.
Where a kernel can store its results several times, nothing is left in such an iteration to be copied.
"""

from __future__ import annotations

from volta_fn.core.jaxpr import Atom, ClosedJaxpr, Equation, Var, program_cache
from volta_fn.primitives.control_flow.scan import scan_p
from volta_fn.primitives.data_movement.joining import concatenate_p
from volta_fn.primitives.data_movement.movement import reshape_p
from volta_fn.primitives.data_movement.slicing import slice_p


def drop_delay_stacks(closed: ClosedJaxpr) -> ClosedJaxpr:
    """Compute stacks of the carry before each iteration from those after it.

    That happens after the loop, and only for values of the carry that iterations compute anew.
    """
    eqns = [e for eqn in closed.eqns for e in (_without_delay_stacks(eqn) if eqn.primitive is scan_p and eqn.params["length"] else [eqn])]
    if len(eqns) == len(closed.eqns):
        return closed
    return closed.replace(eqns=eqns)


def _without_delay_stacks(eqn: Equation) -> list[Equation]:
    """Return a scan, and equations for the results that it no longer gives."""
    body, consts, count = eqn.params["jaxpr"], eqn.params["num_consts"], eqn.params["num_carry"]
    jaxpr = body.jaxpr
    carried, made = jaxpr.invars[consts : consts + count], {v for e in jaxpr.eqns for v in e.outvars}
    delayed: dict[int, int] = {}  # output number -> number of the carry's value that it is
    for number, out in enumerate(jaxpr.outvars[count:], count):
        if out in carried and jaxpr.outvars[carried.index(out)] in made:
            delayed[number] = carried.index(out)
    if not delayed:
        return [eqn]
    outvars, results = list(jaxpr.outvars[:count]), list(eqn.outvars[:count])
    stacks: dict[Atom, Var] = {}  # stacks of values that an iteration leaves
    for number, out in enumerate(jaxpr.outvars[count:], count):
        if number not in delayed:
            outvars.append(out)
            results.append(eqn.outvars[number])
            stacks.setdefault(out, eqn.outvars[number])
    after: list[Equation] = []
    for number, carry in delayed.items():
        left, wanted = jaxpr.outvars[carry], eqn.outvars[number]
        if left not in stacks:
            outvars.append(left)
            stacks[left] = Var(wanted.aval)
            results.append(stacks[left])
        after += _shifted(eqn, eqn.invars[consts + carry], stacks[left], wanted)
    program = _with_outputs(body, tuple(outvars))
    return [eqn.replace(outvars=results, params={**eqn.params, "jaxpr": program}), *after]


@program_cache
def _with_outputs(body: ClosedJaxpr, outvars: tuple[Atom, ...]) -> ClosedJaxpr:
    return body.replace(outvars=outvars)


def _shifted(eqn: Equation, first: Atom, stack: Var, wanted: Var) -> list[Equation]:
    """Return equations that shift a stack by one iteration.

    `first` is the initial carry, `stack` the carry after each iteration, and `wanted` the carry before each.
    """
    length, *rest = stack.aval.shape
    start, stop = (1, length) if eqn.params["reverse"] else (0, length - 1)
    row = Var(stack.aval.update(shape=(1, *rest)))
    rows = Var(stack.aval.update(shape=(length - 1, *rest)))
    cut = {"start_indices": (start, *[0] * len(rest)), "limit_indices": (stop, *rest), "strides": None}
    joined: list[Atom] = [rows, row] if eqn.params["reverse"] else [row, rows]
    return [
        Equation(reshape_p, [first], [row], {"new_sizes": row.aval.shape}, eqn.position),
        Equation(slice_p, [stack], [rows], cut, eqn.position),
        Equation(concatenate_p, joined, [wanted], {"dimension": 0}, eqn.position),
    ]
