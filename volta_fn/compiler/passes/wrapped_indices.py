"""Gathers and scatters that make negative indices positive themselves.

Indexing from Python counts negative positions from the end: a comparison, an addition and a selection of all indices. They would be a
kernel before each gather of rows, which takes little less time than the gather itself.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from volta_fn.compiler.ir.wrapped_indices import wrapped_gather_p, wrapped_scatter_add_p
from volta_fn.compiler.passes.rewriting import numbers_of
from volta_fn.core.jaxpr import Atom, ClosedJaxpr, Equation, Jaxpr, Literal, Var
from volta_fn.core.primitive import PRIMITIVES, Primitive

_INT32 = np.dtype(np.int32)

#: By primitive: its counterpart, and the names of the dimensions that windows have and that index vectors address.
_COUNTERPARTS: dict[str, tuple[Primitive, str, str]] = {
    "gather": (wrapped_gather_p, "offset_dims", "start_index_map"),
    "scatter_add": (wrapped_scatter_add_p, "update_window_dims", "scatter_dims_to_operand_dims"),
}


def keep_negative_indices(closed: ClosedJaxpr, primitives: Collection[str] = tuple(_COUNTERPARTS), elements: bool = False) -> ClosedJaxpr:
    """Let gathers and sums of rows read indices before they are made positive.

    With `elements` those of single elements do so, too.
    """
    producers = {v: eqn for eqn in closed.eqns for v in eqn.outvars}
    eqns: list[Equation] = []
    for eqn in closed.eqns:
        eqns += (_rewritten(eqn, producers, elements) if eqn.primitive.name in primitives else None) or [eqn]
    if len(eqns) == len(closed.eqns):
        return closed
    jaxpr = closed.jaxpr
    return ClosedJaxpr(Jaxpr(jaxpr.constvars, jaxpr.invars, jaxpr.outvars, eqns), closed.consts)


def _rewritten(eqn: Equation, producers: Mapping[Var, Equation], elements: bool) -> list[Equation] | None:
    """Return equations that read the original indices.

    None if these are not made positive, or if windows are single elements and those are not meant.
    """
    counterpart, windows, addressed = _COUNTERPARTS[eqn.primitive.name]
    numbers = eqn.params["dimension_numbers"]
    dims = getattr(numbers, addressed)
    if not (elements or getattr(numbers, windows)) or len(dims) != 1:
        return None
    original = _original(eqn.invars[1], eqn.invars[0].aval.shape[dims[0]], producers)
    if original is None:
        return None
    indices = Var(eqn.invars[1].aval)
    reshaped = Equation(PRIMITIVES["reshape"], [original], [indices], {"new_sizes": indices.aval.shape}, eqn.position)
    return [reshaped, Equation(counterpart, [eqn.invars[0], indices, *eqn.invars[2:]], eqn.outvars, eqn.params, eqn.position)]


def _original(atom: Atom, size: int, producers: Mapping[Var, Equation]) -> Atom | None:
    """Return x if the atom is x, or x + size where x is negative, in another shape."""
    eqn = _producer(atom, "reshape", producers)
    while eqn is not None:
        atom = eqn.invars[0]
        eqn = _producer(atom, "reshape", producers)
    chosen = _producer(atom, "select_n", producers)
    if chosen is None or len(chosen.invars) != 3 or atom.aval.dtype != _INT32:
        return None
    condition, original, moved = chosen.invars
    compared, added = _producer(condition, "lt", producers), _producer(moved, "add", producers)
    if compared is None or added is None or compared.invars[0] is not original or added.invars[0] is not original:
        return None
    return original if _is_number(compared.invars[1], 0) and _is_number(added.invars[1], size) else None


def _producer(atom: Atom, name: str, producers: Mapping[Var, Equation]) -> Equation | None:
    eqn = producers.get(atom) if type(atom) is Var else None
    return eqn if eqn is not None and eqn.primitive.name == name else None


def _is_number(atom: Atom, number: int) -> bool:
    value = numbers_of(atom.val) if type(atom) is Literal else None
    return value is not None and value.ndim == 0 and int(value) == number
