"""Which equations may be dropped or moved, and overlap of sums between processes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from volta_fn import dtypes
from volta_fn.core.arrays.array import from_host
from volta_fn.core.aval import ShapedArray
from volta_fn.core.devices import distribution
from volta_fn.core.jaxpr import Atom, ClosedJaxpr, Equation, Literal, Var, process_axes, program_cache, sub_jaxprs
from volta_fn.core.primitive import Primitive
from volta_fn.primitives.call import attention_p, optimization_barrier_p, pure_callback_p
from volta_fn.primitives.collectives import (
    all_gather_p,
    all_to_all_p,
    axis_index_p,
    pmax_p,
    pmin_p,
    ppermute_p,
    psum_bucket_p,
    psum_done_p,
    psum_p,
    psum_start_p,
    reduce_scatter_p,
)
from volta_fn.primitives.contraction import dot_general_p
from volta_fn.primitives.convolution import conv_general_dilated_p
from volta_fn.primitives.data_movement.movement import reshape_p, transpose_p
from volta_fn.primitives.data_movement.slicing import pad_p, slice_p
from volta_fn.primitives.elementwise.cast import convert_element_type_p
from volta_fn.primitives.fourier import fft_p
from volta_fn.primitives.loops import while_p
from volta_fn.primitives.quantized import quantized_dot_p
from volta_fn.primitives.scan import scan_p
from volta_fn.primitives.window import reduce_window_max_p, reduce_window_sum_p

# Effects: whether a pass may remove, move or merge an equation.

#: Collectives between processes, all of which have to come to each in the same order.
COLLECTIVES = frozenset(
    [psum_p, pmax_p, pmin_p, psum_start_p, psum_done_p, psum_bucket_p, all_gather_p, reduce_scatter_p, ppermute_p, all_to_all_p]
)
#: Pure, but a barrier keeps values separate, and the host's functions may be slow, or fail, where the program would not call them.
_PINNED = frozenset([optimization_barrier_p, pure_callback_p, *COLLECTIVES])


def is_pinned(primitive: Primitive) -> bool:
    """Return True if its equations may be neither moved nor merged."""
    return primitive.effectful or primitive in _PINNED


def is_movable(eqn: Equation) -> bool:
    """Return True if the equation may be evaluated earlier, once only, or needlessly."""
    primitive = eqn.primitive
    if is_pinned(primitive):
        return False
    if not primitive.holds_programs:
        return True
    return all(is_movable(e) for s in sub_jaxprs(eqn.params) for e in s.eqns)


def terminates(eqn: Equation) -> bool:
    """Return True if the equation certainly terminates: it has no while loop."""
    return eqn.primitive is not while_p and all(terminates(e) for s in sub_jaxprs(eqn.params) for e in s.eqns)


# Products of one small array with several matrices.

#: How many times as large as a product's result and its other operand a matrix is, if reading it takes most of the product's time.
_MATRIX_SHARE = 16


def with_products_together(closed: ClosedJaxpr) -> ClosedJaxpr:
    """Move products of a small array with matrices to the first of them.

    So a target may compute them at one time.
    Such are the products with the two matrices of a gated layer while a token is decoded, between which an activation function stands.
    """
    definitions: dict[Atom, int] = {}
    first: dict[Atom, int] = {}
    places = []
    for number, eqn in enumerate(closed.eqns):
        small = _small_factor(eqn)
        place = number if small is None else first.setdefault(small, number)
        places.append(number if place == number or any(definitions.get(v, -1) > place for v in eqn.invars) else place)
        definitions.update(dict.fromkeys(eqn.outvars, number))
    if places == sorted(places):
        return closed
    return closed.replace(eqns=[closed.eqns[number] for number in sorted(range(len(places)), key=places.__getitem__)])


def _small_factor(eqn: Equation) -> Var | None:
    """Return the operand of a product that is small beside the matrix.

    None if there is none, or the result is large.
    """
    if eqn.primitive not in (dot_general_p, quantized_dot_p):
        return None
    sizes = [v.aval.nbytes for v in eqn.invars]
    number = sizes.index(min(sizes)) if eqn.primitive is dot_general_p else 0
    operand, small = eqn.invars[number], max(sizes[number], sum(v.aval.nbytes for v in eqn.outvars))
    return operand if isinstance(operand, Var) and _MATRIX_SHARE * small <= max(sizes) else None


# Sums between processes that overlap with computation.
#
# A `psum` of several arrays is split: a sum starts right after the last of its operands is computed (`psum_start`), and is awaited
# before its results are first read (`psum_done`), if there is something to compute in between. Operands that are computed one after
# another share a start until they have `_BUCKET` bytes. All processes run the same program, so all start the same sums in the same
# order.

#: Bytes of a sum that is started by itself: fewer take little longer than none.
_BUCKET = 1 << 18
#: Elements of a result from which computing it takes longer than starting a sum, and operations that always do.
_MANY = 1 << 16
_SLOW_PRIMITIVES = frozenset(
    [dot_general_p, conv_general_dilated_p, scan_p, while_p, reduce_window_sum_p, reduce_window_max_p, fft_p, attention_p]
)


#: Primitives, beside elementwise ones, of equations that are computed as early as an operand of a sum can be.
_RESHAPING = frozenset([convert_element_type_p, reshape_p, transpose_p, pad_p, slice_p])


def _with_early_sums(closed: ClosedJaxpr, moved_sums: frozenset[Primitive] = frozenset()) -> ClosedJaxpr:
    """Move equations that prepare operands of sums to what they read.

    Sums of some primitives move behind them. Gradients of casts, of which all are at the beginning of a function, are converted at the end
    of its gradient, after all else; so are gradients of gathered parameters summed.
    """
    eqns = closed.eqns
    definitions: dict[Atom, int] = {v: number for number, eqn in enumerate(eqns) for v in eqn.outvars}
    #: The number of the equation after which a value can be computed.
    early: dict[Atom, int] = {}
    for number, eqn in enumerate(eqns):
        operands = max([early.get(v, -1) for v in eqn.invars], default=-1)
        early.update(dict.fromkeys(eqn.outvars, operands if _prepares(eqn) or eqn.primitive in moved_sums else number))
    moved = {number for number, eqn in enumerate(eqns) if eqn.primitive in moved_sums}
    remaining = [v for eqn in eqns if eqn.primitive is psum_p or eqn.primitive in moved_sums for v in eqn.invars]
    while remaining:
        number = definitions.get(remaining.pop(), -1)
        if number >= 0 and number not in moved and _prepares(eqns[number]):
            moved.add(number)
            remaining += eqns[number].invars
    if not moved:
        return closed
    order = sorted(range(len(eqns)), key=lambda number: early[eqns[number].outvars[0]] if number in moved else number)
    return closed.replace(eqns=[eqns[number] for number in order])


def _prepares(eqn: Equation) -> bool:
    return bool(eqn.primitive.arity or eqn.primitive in _RESHAPING) and not is_pinned(eqn.primitive) and not eqn.primitive.multiple_results


def _with_late_gathers(closed: ClosedJaxpr) -> ClosedJaxpr:
    """Move gathers, with what only prepares their results, to what reads these first.

    Devices run collectives in the program's order, so parameters arrive in the order in which layers need them.
    """
    eqns = closed.eqns
    gathered: set[Atom] = set()
    moved: list[bool] = []
    for eqn in eqns:
        operands = {v for v in eqn.invars if isinstance(v, Var)}
        moved.append(eqn.primitive is all_gather_p or (_prepares(eqn) and bool(operands) and operands <= gathered))
        if moved[-1]:
            gathered.update(eqn.outvars)
    if not gathered:
        return closed
    #: The place of the equation that reads a value first, and of each equation.
    reads: dict[Atom, int] = {}
    places = [*range(len(eqns))]
    for number in reversed(range(len(eqns))):
        if moved[number]:
            places[number] = min([reads.get(v, len(eqns)) for v in eqns[number].outvars])
        reads.update({v: min(reads.get(v, len(eqns)), places[number]) for v in eqns[number].invars if isinstance(v, Var)})
    order = sorted(range(len(eqns)), key=lambda number: (places[number], not moved[number]))
    return closed.replace(eqns=[eqns[number] for number in order])


class _Sum(NamedTuple):
    """Operands of a `psum` that are summed together."""

    operands: list[int]
    #: The number of the equation before which it starts, and of the one before which it is awaited.
    start: int
    done: int


@program_cache
def overlap_sums(closed: ClosedJaxpr) -> ClosedJaxpr:
    """Split sums between processes into starts and waits."""
    if not any(eqn.primitive is psum_p for eqn in closed.eqns):
        return closed
    original, closed = closed, _with_early_sums(closed)
    eqns = closed.eqns
    definitions = {v: number for number, eqn in enumerate(eqns) for v in eqn.outvars}
    first_reads = _first_reads(closed)
    #: The starts and waits before an equation, and what stands in place of a `psum`, by the number of the equation.
    starts: dict[int, list[Equation]] = {}
    waits: dict[int, list[Equation]] = {}
    replacements: dict[int, list[Equation]] = {}
    for number, eqn in enumerate(eqns):
        if eqn.primitive is not psum_p:
            continue
        overlapped = [s for s in _sums(eqn, definitions, first_reads, len(eqns)) if _is_long(eqns[s.start : s.done])]
        for partial_sum in overlapped:
            # A ticket leads from the equation that starts the sum to the one that waits for it.
            outs = [eqn.outvars[i] for i in partial_sum.operands]
            ticket = Var(ShapedArray((), np.dtype(np.int32)))
            start = Equation(psum_start_p, [eqn.invars[i] for i in partial_sum.operands], [ticket], eqn.params, eqn.position)
            wait = Equation(psum_done_p, [ticket], outs, {"result_avals": tuple([v.aval for v in outs])}, eqn.position)
            starts.setdefault(partial_sum.start, []).append(start)
            waits.setdefault(partial_sum.done, []).append(wait)
            definitions.update(dict.fromkeys(outs, partial_sum.done))  # a sum of these starts after the equation that awaits them
        operands = {i for s in overlapped for i in s.operands}
        if operands:
            replacements[number] = _remaining_sum(eqn, [i for i in range(len(eqn.invars)) if i not in operands])
    if not replacements:
        return original
    result: list[Equation] = []
    for number in range(len(eqns) + 1):
        result += starts.get(number, []) + waits.get(number, [])
        result += replacements.get(number, eqns[number : number + 1])
    return closed.replace(eqns=result)


#: Bytes from which on arrays are summed by a kernel of their own where devices sum them among each other.
_DEVICE_BUCKET = 1 << 24


def bucket_sums(closed: ClosedJaxpr, sums: Callable[[Equation], bool]) -> ClosedJaxpr:
    """Split sums that devices compute among each other by when operands are computed.

    Nothing waits for such a sum but what reads its results, so that it overlaps with the rest; so do sums of rows, and gathers. Operands
    that were converted to float32, as gradients of casts are, travel as what they were: their sum is the same. Without collectives, a
    process's position becomes a constant. `sums` says whether devices compute a sum.
    """
    world = distribution.current()
    if world.size == 1 or not process_axes(closed):
        return closed
    if not communicates(closed):
        return with_positions(closed, lambda eqn: distribution.members_of(eqn.params["axis_names"], None).index(world.rank))
    closed = _with_late_gathers(_with_early_sums(closed, frozenset([reduce_scatter_p])))
    definitions = {v: number for number, eqn in enumerate(closed.eqns) for v in eqn.outvars}
    narrow: dict[Atom, Atom] = {eqn.outvars[0]: eqn.invars[0] for eqn in closed.eqns if _widens(eqn)}
    starts: dict[int, list[Equation]] = {}
    replaced: set[int] = set()
    for number, eqn in enumerate(closed.eqns):
        if eqn.primitive is psum_p and sums(eqn):
            for total in _by_dtypes(eqn if eqn.params["compression"] is not None else eqn.replace([narrow.get(v, v) for v in eqn.invars])):
                for operands, start in arranged_operands(total, definitions, _DEVICE_BUCKET):
                    outs = [total.outvars[i] for i in operands]
                    params = {**total.params, "dtypes": tuple([v.aval.dtype for v in outs])}
                    part = Equation(psum_bucket_p, [total.invars[i] for i in operands], outs, params, total.position)
                    starts.setdefault(start, []).append(part)
            replaced.add(number)
    if not replaced:
        return closed
    eqns: list[Equation] = []
    for number in range(len(closed.eqns) + 1):
        eqns += starts.get(number, [])
        eqns += [] if number in replaced else closed.eqns[number : number + 1]
    return closed.replace(eqns=eqns)


def _by_dtypes(eqn: Equation) -> list[Equation]:
    """Divide a sum by the dtypes of its operands and results.

    Kernels do not mix them, and so the sum of a loss does not wait for gradients of another dtype.
    """
    groups: dict[tuple[np.dtype, np.dtype], list[int]] = {}
    for number, (operand, out) in enumerate(zip(eqn.invars, eqn.outvars, strict=True)):
        groups.setdefault((operand.aval.dtype, out.aval.dtype), []).append(number)
    return [eqn.replace([eqn.invars[i] for i in group], [eqn.outvars[i] for i in group]) for group in groups.values()]


@program_cache
def communicates(closed: ClosedJaxpr) -> bool:
    """Return whether a program has collectives.

    All of its devices must then run the same collectives in the same order. So none may know its position before the program is lowered:
    by that constant it might drop, or move, a collective for which others wait.
    """
    return any(eqn.primitive in COLLECTIVES or any(map(communicates, sub_jaxprs(eqn.params))) for eqn in closed.eqns)


def with_positions(closed: ClosedJaxpr, position: Callable[[Equation], int]) -> ClosedJaxpr:
    """Return a program in which a device's positions along axes are constants."""
    positions: dict[Atom, Atom] = {
        eqn.outvars[0]: Literal(from_host(np.array(position(eqn), np.int32))) for eqn in closed.eqns if eqn.primitive is axis_index_p
    }
    if not positions:
        return closed
    eqns = [eqn.replace([positions.get(v, v) for v in eqn.invars]) for eqn in closed.eqns if eqn.primitive is not axis_index_p]
    return closed.replace(eqns=eqns, outvars=[positions.get(v, v) for v in closed.jaxpr.outvars])


def _widens(eqn: Equation) -> bool:
    """Return True if an equation converts floats of 16 bits to float32."""
    if eqn.primitive is not convert_element_type_p:
        return False
    return eqn.invars[0].aval.dtype in _HALVES and eqn.outvars[0].aval.dtype == np.float32


_HALVES = (dtypes.as_dtype("bfloat16"), np.dtype(np.float16))


def _first_reads(closed: ClosedJaxpr) -> dict[Atom, int]:
    """Return the number of the equation that reads each variable first."""
    first_reads: dict[Atom, int] = {}
    for number, eqn in enumerate(closed.eqns):
        for atom in eqn.invars:
            if isinstance(atom, Var):
                first_reads.setdefault(atom, number)
    return first_reads


def _sums(eqn: Equation, definitions: dict[Var, int], first_reads: dict[Atom, int], end: int) -> list[_Sum]:
    """Group operands by when they are computed."""
    arranged = arranged_operands(eqn, definitions, _BUCKET)
    return [_Sum(group, start, min([first_reads.get(eqn.outvars[i], end) for i in group])) for group, start in arranged]


def arranged_operands(eqn: Equation, definitions: dict[Var, int], bucket: int) -> list[tuple[list[int], int]]:
    """Group the operands of a sum by when they are computed.

    Groups have `bucket` bytes or more, but for the last; each comes with the number of the equation before which all of it is computed.
    """
    positions = [definitions.get(v, -1) + 1 if isinstance(v, Var) else 0 for v in eqn.invars]
    groups: list[list[int]] = []
    size = 0
    for i in sorted(range(len(positions)), key=positions.__getitem__):
        if not groups or size >= bucket:
            groups.append([])
            size = 0
        groups[-1].append(i)
        size += eqn.invars[i].aval.size * eqn.invars[i].aval.dtype.itemsize
    return [(group, max([positions[i] for i in group])) for group in groups]


def _is_long(eqns: Sequence[Equation]) -> bool:
    """Return True if computing these equations takes longer than starting a sum."""
    computed = [eqn for eqn in eqns if eqn.primitive not in COLLECTIVES]
    return sum([math.inf if e.primitive in _SLOW_PRIMITIVES else sum([v.aval.size for v in e.outvars]) for e in computed]) >= _MANY


def _remaining_sum(eqn: Equation, operands: Sequence[int]) -> list[Equation]:
    """Return the `psum` of the operands whose sums do not overlap, if there are any."""
    if not operands:
        return []
    return [eqn.replace([eqn.invars[i] for i in operands], [eqn.outvars[i] for i in operands])]
