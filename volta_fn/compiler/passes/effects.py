"""What a pass may do with an equation: remove, move or merge it."""

from __future__ import annotations

from volta_fn.core.jaxpr import Equation, has_effects, sub_jaxprs
from volta_fn.core.primitive import Primitive
from volta_fn.primitives.barriers import optimization_barrier_p
from volta_fn.primitives.callbacks import pure_callback_p
from volta_fn.primitives.collectives.exchanges import all_to_all_p, ppermute_p
from volta_fn.primitives.collectives.gathers import all_gather_p, reduce_scatter_p
from volta_fn.primitives.collectives.reductions import pmax_p, pmin_p, psum_done_p, psum_p, psum_start_p
from volta_fn.primitives.control_flow.loops import while_p

#: Collectives between processes, all of which have to come to each in the same order.
COLLECTIVES = frozenset([psum_p, pmax_p, pmin_p, psum_start_p, psum_done_p, all_gather_p, reduce_scatter_p, ppermute_p, all_to_all_p])
#: Pure, but a barrier keeps values separate, and the host's functions may be slow, or fail, where the program would not call them.
_PINNED = frozenset([optimization_barrier_p, pure_callback_p, *COLLECTIVES])


def is_removable(eqn: Equation) -> bool:
    """Return True if the equation may be removed when its results are unused."""
    primitive = eqn.primitive
    return not (primitive.effectful or ((primitive.holds_programs or primitive.call_param) and has_effects(eqn)))


def is_pinned(primitive: Primitive) -> bool:
    """Return True if its equations may be neither moved nor merged."""
    return primitive.effectful or primitive in _PINNED


def is_movable(eqn: Equation) -> bool:
    """Return True if the equation may be evaluated earlier, once only, or needlessly."""
    primitive = eqn.primitive
    if is_pinned(primitive):
        return False
    if not primitive.holds_programs and primitive.call_param is None:
        return True
    return all(is_movable(e) for s in sub_jaxprs(eqn.params) for e in s.eqns)


def terminates(eqn: Equation) -> bool:
    """Return True if evaluating the equation surely ends: it contains no while loop."""
    return eqn.primitive is not while_p and all(terminates(e) for s in sub_jaxprs(eqn.params) for e in s.eqns)
