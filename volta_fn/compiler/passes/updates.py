"""Selections between an array and an update of it, as updates under a mask.

``select(p, update(x, …), x)`` copies x, as both cases must be in memory, and so takes time for all of x in every iteration of a loop.
Under a mask the update changes nothing where p is false, and may be made where x lies.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from volta_fn import dtypes
from volta_fn.compiler.passes.dce import is_movable
from volta_fn.compiler.passes.rewriting import Rewriter, Rules, literal, rewrite, rules_of_table
from volta_fn.compiler.passes.simplify import SIMPLIFICATIONS
from volta_fn.core.arrays.array import from_host
from volta_fn.core.aval import Shape, ShapedArray
from volta_fn.core.devices.device import find_device
from volta_fn.core.jaxpr import Atom, ClosedJaxpr, Equation, Literal, Var, has_effects, primitives_of
from volta_fn.primitives.data_movement.dynamic_slicing import dynamic_update_slice_p
from volta_fn.primitives.data_movement.gather import (
    GatherScatterMode,
    ScatterDimensionNumbers,
    scatter_add_p,
    scatter_max_p,
    scatter_min_p,
    scatter_mul_p,
    scatter_p,
    window_sizes,
)
from volta_fn.primitives.elementwise.selection import select_n_p

_SCATTERS = frozenset([scatter_p, scatter_add_p, scatter_mul_p, scatter_min_p, scatter_max_p])
UPDATES = _SCATTERS | {dynamic_update_slice_p}

#: The fewest elements of an array, for each that a masked update selects, that make it faster than a selection of the array.
_WORTHWHILE = 4


def mask_updates(closed: ClosedJaxpr) -> ClosedJaxpr:
    """Rewrite selections between an array and updates of it to updates under a mask.

    The updates must be used by nothing else, and the predicate must be the same for all elements of a window.
    """
    primitives = primitives_of(closed)
    if select_n_p not in primitives or UPDATES.isdisjoint(primitives):
        return closed
    updated = {e.outvars[0] for e in closed.eqns if e.primitive in UPDATES}
    if not any(e.primitive is select_n_p and not updated.isdisjoint(e.invars[1:]) for e in closed.eqns):
        return closed  # without a second walk with all rules
    uses = _uses(closed)

    def masked(eqn: Equation, program: Rewriter) -> Atom | None:
        result = _masked(eqn, program, uses)
        if isinstance(result, Var):
            uses[result] = uses[eqn.outvars[0]]
        return result

    return rewrite(closed, Rules(rules_of_table({"select_n": [masked]}), *SIMPLIFICATIONS))


def _uses(closed: ClosedJaxpr) -> Counter[Atom]:
    """Return how often live equations and outputs read each variable."""
    uses: Counter[Atom] = Counter(v for v in closed.jaxpr.outvars if isinstance(v, Var))
    for eqn in reversed(closed.eqns):
        if has_effects(eqn) or any(uses[v] for v in eqn.outvars):
            uses.update(v for v in eqn.invars if isinstance(v, Var))
    return uses


def _masked(eqn: Equation, program: Rewriter, uses: Counter[Atom]) -> Atom | None:
    """Return the array with the updates of each case, under the mask of that case."""
    predicate, *cases = eqn.invars
    chains = [[*_ancestors(case, program, uses)] for case in cases]
    base = next((atom for atom, _ in chains[0] if all(any(atom is a for a, _ in chain) for chain in chains)), None)
    result = eqn.outvars[0].aval
    if base is None or base.aval.shape != result.shape or not result.size:
        return None
    axes = _varying_axes(predicate.aval.shape, result.shape)
    steps: list[tuple[int, _MaskedSlice | _MaskedScatter]] = []
    for number, chain in enumerate(chains):
        updates = [update for atom, update in chain[: [a is base for a, _ in chain].index(True)] if update is not None]
        for update in reversed(updates):
            step = _MaskedSlice.of(update, axes) if update.primitive is dynamic_update_slice_p else _MaskedScatter.of(update, axes)
            if step is None:
                return None
            steps.append((number, step))
    if not steps:
        return None
    atom = base
    for number, step in steps:
        atom = step.emit(program, atom, _Mask.of(program, eqn, number, axes))
        uses[atom] = 1
    return atom


def _ancestors(atom: Atom, program: Rewriter, uses: Counter[Atom]) -> Iterator[tuple[Atom, Equation | None]]:
    """Yield a value with its update, the array that this updates, and so on.

    The last one is a value that is no update, or that something else uses.
    """
    while True:
        update = program.producer(atom)
        if isinstance(atom, Literal) or update is None or update.primitive not in UPDATES or uses[atom] != 1:
            yield atom, None
            return
        yield atom, update
        atom = update.invars[0]


def _varying_axes(predicate: Shape, shape: Shape) -> tuple[int, ...]:
    """Return the axes of the result along which a predicate differs."""
    first = len(shape) - len(predicate)
    return tuple([first + d for d, size in enumerate(predicate) if size != 1])


class _Mask(NamedTuple):
    """A bool value, and whether it is true where an update is made, or false there."""

    atom: Atom
    holds: bool
    #: The axes of the array along which it differs.
    axes: tuple[int, ...]
    origin: Equation

    @classmethod
    def of(cls, program: Rewriter, eqn: Equation, number: int, axes: tuple[int, ...]) -> _Mask:
        """Return the mask of a selection's case.

        Numbers beyond the cases choose the nearest one.
        """
        predicate, *cases = eqn.invars
        if predicate.aval.dtype in dtypes.BOOL:
            return cls(predicate, number == 1, axes, eqn)
        if number in (0, len(cases) - 1):
            return cls(program.emit(eqn, "lt", predicate, literal(max(number, 1), np.dtype(np.int32))), number == 0, axes, eqn)
        return cls(program.emit(eqn, "eq", predicate, literal(number, np.dtype(np.int32))), True, axes, eqn)

    def select(self, program: Rewriter, mask: Atom, new: Atom, old: Atom) -> Atom:
        """Emit the selection of a value where the update is made, else of another."""
        return program.emit(self.origin, "select_n", mask, *((old, new) if self.holds else (new, old)))

    def spread(self, program: Rewriter, shape: Shape, dims: dict[int, int]) -> Atom:
        """Broadcast the mask to a shape that has its axes at the dimensions `dims`."""
        atom = program.emit(self.origin, "reshape", self.atom, new_sizes=tuple([shape[dims[axis]] for axis in self.axes]))
        order = tuple(sorted(range(len(self.axes)), key=lambda i: dims[self.axes[i]]))
        if order != tuple(range(len(order))):
            atom = program.emit(self.origin, "transpose", atom, permutation=order)
        placed = tuple(sorted([dims[axis] for axis in self.axes]))
        return program.emit(self.origin, "broadcast_in_dim", atom, shape=shape, broadcast_dimensions=placed)


class _MaskedSlice(NamedTuple):
    """A `dynamic_update_slice` that writes old elements back where the mask is false."""

    update: Equation

    @classmethod
    def of(cls, update: Equation, axes: tuple[int, ...]) -> _MaskedSlice | None:
        """Return the update under a mask that differs along axes; None if unsuitable."""
        array, block = [v.aval for v in update.invars[:2]]
        if not block.size or block.size * _WORTHWHILE > array.size or any(block.shape[axis] != array.shape[axis] for axis in axes):
            return None
        return cls(update)

    def emit(self, program: Rewriter, array: Atom, mask: _Mask) -> Atom:
        """Emit the update of an array."""
        _, block, *starts = self.update.invars
        old = program.emit(self.update, "dynamic_slice", array, *starts, slice_sizes=block.aval.shape)
        return program.emit(self.update, "dynamic_update_slice", array, mask.select(program, mask.atom, block, old), *starts)


class _MaskedScatter(NamedTuple):
    """A scatter whose windows are moved outside of the array where the mask is false.

    There they are dropped, which is exact whatever the scatter does with the elements, and in whatever order.
    """

    update: Equation
    #: The dimension numbers with the mask's axes as batching dimensions.
    numbers: ScatterDimensionNumbers
    #: The shape of the indices with these, and the dimensions of it that the indices have.
    shape: Shape
    dims: tuple[int, ...]

    @classmethod
    def of(cls, update: Equation, axes: tuple[int, ...]) -> _MaskedScatter | None:
        """Return the update under a mask that differs along axes; None if unsuitable."""
        array, indices, updates = [v.aval for v in update.invars]
        old = ScatterDimensionNumbers(*update.params["dimension_numbers"])
        absent = (*old.inserted_window_dims, *old.operand_batching_dims)
        windows = dict(zip([d for d in range(array.ndim) if d not in absent], old.update_window_dims, strict=True))
        moved = {axis: windows.get(axis, -1) for axis in axes if axis not in old.operand_batching_dims}
        if not updates.size or any(
            dim < 0 or updates.shape[dim] != array.shape[axis] or axis in old.scatter_dims_to_operand_dims for axis, dim in moved.items()
        ):
            return None
        inside = tuple([dim for dim in old.update_window_dims if dim not in moved.values()])
        # A dimension of the indices is one of the updates outside of windows.
        before = [dim for dim in range(updates.ndim) if dim not in old.update_window_dims]
        after = [dim for dim in range(updates.ndim) if dim not in inside]
        partners = {axis: before[dim] for axis, dim in zip(old.operand_batching_dims, old.scatter_indices_batching_dims, strict=True)}
        partners |= moved
        batching = tuple(sorted(partners))
        index_dims = tuple([after.index(partners[axis]) for axis in batching])
        numbers = old._replace(update_window_dims=inside, operand_batching_dims=batching, scatter_indices_batching_dims=index_dims)
        shape = (*[updates.shape[dim] for dim in after], indices.shape[-1])
        selected = math.prod(shape)
        if not selected or selected * _WORTHWHILE > array.size or _outside(indices.dtype, array.shape) is None:
            return None
        return cls(update, numbers, shape, (*[after.index(dim) for dim in before], len(after)))

    def emit(self, program: Rewriter, array: Atom, mask: _Mask) -> Atom:
        """Emit the update of an array."""
        origin, mode = self.update, GatherScatterMode.FILL_OR_DROP
        indices, updates = origin.invars[1:]
        outside = _outside(indices.aval.dtype, array.aval.shape)
        assert outside is not None, "`of` has looked"
        if indices.aval.dtype != outside.aval.dtype:
            indices = program.emit(origin, "convert_element_type", indices, new_dtype=outside.aval.dtype, weak_type=False)
        if origin.params["mode"] is GatherScatterMode.CLIP:
            indices = self._clipped(program, indices, array.aval.shape, updates.aval.shape)
        if indices.aval.shape != self.shape:
            indices = program.emit(origin, "broadcast_in_dim", indices, shape=self.shape, broadcast_dimensions=self.dims)
        dims = dict(zip(self.numbers.operand_batching_dims, self.numbers.scatter_indices_batching_dims, strict=True))
        masked = mask.select(program, mask.spread(program, self.shape, dims), indices, outside)
        params = {**origin.params, "dimension_numbers": self.numbers, "mode": mode}
        return program.emit(origin, origin.primitive.name, array, masked, updates, **params)

    def _clipped(self, program: Rewriter, indices: Atom, shape: Shape, updates: Shape) -> Atom:
        """Emit the indices of the nearest windows inside."""
        numbers = ScatterDimensionNumbers(*self.update.params["dimension_numbers"])
        sizes = window_sizes(numbers, shape, updates)
        limits = [shape[d] - sizes[d] for d in numbers.scatter_dims_to_operand_dims]
        dtype = indices.aval.dtype
        indices = program.emit(self.update, "max", indices, literal(0, dtype))
        return program.emit(self.update, "min", indices, _constant(program, limits, dtype))


def _outside(dtype: np.dtype, shape: Shape) -> Literal | None:
    """Return an index outside of an array, or None if the dtype has none."""
    if dtype in dtypes.SIGNED or dtype.itemsize < 4:
        return literal(-1, dtype if dtype.itemsize >= 4 else np.dtype(np.int32))
    last = np.iinfo(dtype).max
    return literal(last, dtype) if max(shape) <= last else None


def _constant(program: Rewriter, numbers: Sequence[int], dtype: np.dtype) -> Atom:
    """Return a vector as a literal if all its numbers are equal, else as a constant."""
    if len({*numbers}) == 1:
        return literal(numbers[0], dtype)
    var = Var(ShapedArray((len(numbers),), dtype))
    program.constants[var] = from_host(np.asarray(numbers, dtype), device=find_device("cpu"))
    return var


# Reads of an array before its update, which may then be made in place.


def read_before_updates(closed: ClosedJaxpr) -> ClosedJaxpr:
    """Move equations that read an array after its update before the update."""
    eqns = closed.eqns
    last_reads: dict[Atom, int] = {v: n for n, eqn in enumerate(eqns) for v in eqn.invars if isinstance(v, Var)}
    for update in [e for n, e in enumerate(eqns) if e.primitive in UPDATES and last_reads.get(e.invars[0], n) > n]:
        eqns = _with_early_reads(eqns, update)
    return closed if eqns is closed.eqns else closed.replace(eqns=eqns)


def _with_early_reads(eqns: list[Equation], update: Equation) -> list[Equation]:
    """Return the equations with the readers of what an equation updates before it.

    They stay if they are pinned, if one of them depends on the update, which then can't be made in place, or updates the array, too.
    """
    array, at = update.invars[0], eqns.index(update)
    after = eqns[at + 1 :]
    readers = {e for e in after if array in e.invars}
    if any(e.primitive in UPDATES and e.invars[0] is array for e in readers):
        return eqns
    dependent: set[Atom] = {*update.outvars}
    for eqn in after:
        if any(v in dependent for v in eqn.invars):
            if eqn in readers:
                return eqns
            dependent.update(eqn.outvars)
    needed: set[Atom] = set()
    moved: set[Equation] = set()
    for eqn in reversed(after):
        if eqn in readers or any(v in needed for v in eqn.outvars):
            if not is_movable(eqn):
                return eqns
            moved.add(eqn)
            needed.update(eqn.invars)
    return [*eqns[:at], *[e for e in after if e in moved], update, *[e for e in after if e not in moved]]
