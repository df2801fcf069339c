"""Affine index arithmetic, and views: equations that only change indices."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from volta_fn import dtypes
from volta_fn.core.aval import Shape
from volta_fn.core.jaxpr import Equation, Var
from volta_fn.core.primitive import Primitive
from volta_fn.primitives.call import stop_gradient_p
from volta_fn.primitives.contraction import dot_general_p
from volta_fn.primitives.data_movement.movement import broadcast_in_dim_p, iota_p, reshape_p, rev_p, squeeze_p, transpose_p
from volta_fn.primitives.data_movement.slicing import concatenate_p, pad_p, slice_p
from volta_fn.primitives.elementwise.cast import bitcast_convert_type_p, convert_element_type_p
from volta_fn.primitives.elementwise.selection import select_n_p

# A loop has *axes*, numbered, of known sizes. An `Affine` is an integer that depends on the iteration: ``offset + Σ coefficient · axis``.
# An *index* is one `Affine` per dimension of an array. Views of arrays (transpose, slice, reverse, reshape, …) map indices to indices; a
# reshape may need a loop axis to be split in two first, which it asks for by raising `SplitAxis`.


class Affine(NamedTuple):
    """``offset + Σ coefficient · axis``.

    Terms are pairs (axis, coefficient), sorted by axis, without zeros.
    """

    terms: tuple[tuple[int, int], ...]
    offset: int

    @property
    def axes(self) -> frozenset[int]:
        """The axes that it depends on."""
        return frozenset(axis for axis, _ in self.terms)

    def plus(self, offset: int) -> Affine:
        """Add a number."""
        return Affine(self.terms, self.offset + offset) if offset else self

    def times(self, factor: int) -> Affine:
        """Multiply by a number."""
        return combine([(factor, self)]) if factor != 1 else self

    def bounds(self, sizes: Sequence[int]) -> tuple[int, int]:
        """Return the least and greatest value over a loop of these sizes."""
        ends = [c * (sizes[axis] - 1) for axis, c in self.terms]
        return self.offset + sum(min(e, 0) for e in ends), self.offset + sum(max(e, 0) for e in ends)

    def replaced(self, axes: Mapping[int, Affine]) -> Affine:
        """Write some axes in terms of others."""
        return combine([(1, ZERO.plus(self.offset)), *[(c, axes.get(axis, along(axis))) for axis, c in self.terms]])


Index = tuple[Affine, ...]

ZERO = Affine((), 0)


def along(axis: int) -> Affine:
    """Return the iteration number along an axis."""
    return Affine(((axis, 1),), 0)


def combine(terms: Iterable[tuple[int, Affine]]) -> Affine:
    """Return ``Σ factor · affine``."""
    total: dict[int, int] = {}
    offset = 0
    for factor, affine in terms:
        offset += factor * affine.offset
        for axis, c in affine.terms:
            total[axis] = total.get(axis, 0) + factor * c
    return Affine(tuple(sorted((axis, c) for axis, c in total.items() if c)), offset)


class Range(NamedTuple):
    """The condition ``low <= value < high``."""

    value: Affine
    low: int
    high: int

    def holds(self, sizes: Sequence[int]) -> bool | None:
        """Return the condition's value if every iteration has the same, else None."""
        least, greatest = self.value.bounds(sizes)
        if self.low <= least and greatest < self.high:
            return True
        return False if greatest < self.low or least >= self.high else None

    def canonical(self) -> Range:
        """Return the condition on a value without offset, common factor or leading minus."""
        if not self.value.terms:
            return self
        factor = math.gcd(*[c for _, c in self.value.terms])
        low, high = -((self.value.offset - self.low) // factor), -((self.value.offset - self.high) // factor)
        terms = [(axis, c // factor) for axis, c in self.value.terms]
        if terms[0][1] < 0:
            low, high = 1 - high, 1 - low
            terms = [(axis, -c) for axis, c in terms]
        return Range(Affine(tuple(terms), 0), low, high)

    def interval(self, size: int) -> tuple[int, int]:
        """Return where the condition holds along its only axis, of this size."""
        _, low, high = self.canonical()
        return max(min(low, size), 0), max(min(high, size), 0)


def undecided(ranges: Sequence[Range], sizes: Sequence[int]) -> tuple[Range, ...] | None:
    """Return the conditions that do not always hold; None if one never holds."""
    outcomes = [(r, r.holds(sizes)) for r in ranges]
    return None if any(holds is False for _, holds in outcomes) else tuple([r for r, holds in outcomes if holds is None])


class SplitAxis(Exception):
    """A request to split a loop axis, so that its fast axis has size `inner`."""

    def __init__(self, axis: int, inner: int) -> None:
        super().__init__(f"axis {axis} needs an inner axis of size {inner}")
        self.axis = axis
        self.inner = inner


class NotAffine(Exception):
    """An index that is not affine, however axes are split: the array must be stored."""


def split(sizes: Sequence[int], request: SplitAxis) -> tuple[tuple[int, ...], dict[int, Affine]]:
    """Return the sizes after splitting an axis, and the old axes in terms of the new."""
    axis, inner = request.axis, request.inner
    new = (*sizes[:axis], sizes[axis] // inner, inner, *sizes[axis + 1 :])
    later_axes = {k: along(k + 1) for k in range(axis + 1, len(sizes))}
    return new, {axis: combine([(inner, along(axis)), (1, along(axis + 1))]), **later_axes}


def loop_over(shape: tuple[int, ...]) -> tuple[tuple[int, ...], Index]:
    """Return the axes of a loop over an array, and the index in it.

    There is one axis per dimension of more than one element.
    """
    wide = [d for d, n in enumerate(shape) if n != 1]
    return tuple([shape[d] for d in wide]), tuple([along(wide.index(d)) if d in wide else ZERO for d in range(len(shape))])


def broadcast_index(index: Index, shape: Shape) -> Index:
    """Return the index of an operand of `shape` that broadcasts to the indexed array."""
    aligned = index[len(index) - len(shape) :]
    return tuple([ZERO if n == 1 else i for i, n in zip(aligned, shape, strict=True)])


def reshaped(index: Index, old: Shape, new: Shape, sizes: Sequence[int]) -> Index:
    """Return the index of the same element after a reshape from `old` to `new`.

    The array is not empty. Raises `SplitAxis` or `NotAffine`.
    """
    result: list[Affine] = []
    for old_block, new_block in _blocks(old, new):
        flat = combine((math.prod(old[d + 1 : old_block.stop]), index[d]) for d in old_block)
        result += _unflattened(flat, [new[d] for d in new_block], sizes)
    return tuple(result)


def _blocks(old: Shape, new: Shape) -> list[tuple[range, range]]:
    """Split both shapes into the finest ranges of equally many elements."""
    blocks: list[tuple[range, range]] = []
    i = j = 0
    while i < len(old) or j < len(new):
        first_i, first_j = i, j
        left, right = 1, 1
        i, left = (i + 1, old[i]) if i < len(old) else (i, 1)
        j, right = (j + 1, new[j]) if j < len(new) else (j, 1)
        while left != right:
            if left < right:
                left, i = left * old[i], i + 1
            else:
                right, j = right * new[j], j + 1
        blocks.append((range(first_i, i), range(first_j, j)))
    return blocks


def _unflattened(flat: Affine, shape: Sequence[int], sizes: Sequence[int]) -> list[Affine]:
    """Return the index in an array of `shape` of the element with a row-major number."""
    result = [ZERO] * len(shape)
    wide = [d for d, n in enumerate(shape) if n != 1]
    for d in reversed(wide[1:]):
        flat, result[d] = _divided(flat, shape[d], sizes)
    if wide:
        result[wide[0]] = flat
    return result


def _divided(value: Affine, divisor: int, sizes: Sequence[int]) -> tuple[Affine, Affine]:
    quotient = Affine(tuple([(axis, c // divisor) for axis, c in value.terms if c % divisor == 0]), value.offset // divisor)
    rest = Affine(tuple([(axis, c) for axis, c in value.terms if c % divisor]), value.offset % divisor)
    if Range(rest, 0, divisor).holds(sizes):
        return quotient, rest
    for axis, c in rest.terms:
        inner = divisor // abs(c)
        if inner * abs(c) == divisor and sizes[axis] > inner and sizes[axis] % inner == 0:
            raise SplitAxis(axis, inner)
    raise NotAffine


# Views: equations that only change indices, as functions of indices.
#
# A *view* costs nothing: a consumer that reads its element at an index reads the operand's element at another (`operand_index`). In the
# other direction, a loop that visits the operand at some index visits the view at `view_index`, if it visits all of it.

#: An index; None stands for any index along a dimension, as the array repeats along it.
PartialIndex = tuple[Affine | None, ...]

#: Views that keep the row-major order of elements, so that a contiguous operand serves as the result.
_IN_ORDER = frozenset({reshape_p, squeeze_p, stop_gradient_p})


def is_view(eqn: Equation) -> bool:
    """Return True if the equation's result is a view of its one operand."""
    reduction = eqn.primitive.reduction
    if reduction is not None and reduction.index_of is None:  # of one element each
        return all(eqn.invars[0].aval.shape[a] == 1 for a in eqn.params["axes"])
    return eqn.primitive in _OPERAND_INDEX


def reduces(eqn: Equation) -> bool:
    """Return True if the equation is a reduction, and no view."""
    return eqn.primitive.reduction is not None and not is_view(eqn)


def reduces_rows(eqn: Equation) -> bool:
    """Return True if the equation reduces the last dimension that is longer than one."""
    if not reduces(eqn):
        return False
    shape = eqn.invars[0].aval.shape
    return max([d for d, n in enumerate(shape) if n != 1], default=-1) in eqn.params["axes"]


def can_be_kernel(eqn: Equation) -> bool:
    """Return True if a kernel can compute the equation, given affine indices."""
    supported = is_view(eqn) or reduces(eqn) or is_elementwise(eqn) or eqn.primitive in (iota_p, pad_p, concatenate_p)
    return supported and all(v.aval.dtype.itemsize for v in eqn.invars)  # float0 has no elements to compute


def is_product(eqn: Equation) -> bool:
    """Return True if the equation sums products, which targets may have as kernels."""
    return eqn.primitive is dot_general_p


def is_elementwise(eqn: Equation) -> bool:
    """Return True if a result's element depends on the operands' at the same index.

    Operands broadcast.
    """
    primitive = eqn.primitive
    if primitive is bitcast_convert_type_p:
        return dtypes.bits(eqn.invars[0].aval.dtype) == dtypes.bits(eqn.params["new_dtype"])
    return bool(primitive.arity) or primitive in (select_n_p, convert_element_type_p)


def is_alias(eqn: Equation) -> bool:
    """Return True if the result of a contiguous operand is the same memory."""
    if eqn.primitive is broadcast_in_dim_p:
        return eqn.invars[0].aval.size == eqn.outvars[0].aval.size
    return eqn.primitive in _IN_ORDER or (is_view(eqn) and eqn.primitive.reduction is not None)


def loads(eqn: Equation, views: Mapping[Var, Equation]) -> dict[Var, None]:
    """Return the variables that an equation reads through `views`."""
    variables: dict[Var, None] = {}
    stack = eqn.invars[::-1]
    while stack:
        atom = stack.pop()
        if isinstance(atom, Var) and atom not in variables:
            if atom in views:
                stack += views[atom].invars[::-1]
            else:
                variables[atom] = None
    return variables


def operand_index(eqn: Equation, index: Index, sizes: Sequence[int]) -> Index:
    """Return the index that a view's element comes from.

    Raises `SplitAxis` or `NotAffine`.
    """
    shape = eqn.invars[0].aval.shape
    if eqn.primitive.reduction is not None:
        return _with_ones(index, eqn.params["axes"])
    return _OPERAND_INDEX[eqn.primitive](index, shape, eqn.outvars[0].aval.shape, sizes, **eqn.params)


def is_readable(eqn: Equation, views: Mapping[Var, Equation]) -> bool:
    """Return True if indices can express a view of views of … of an array."""
    sizes, index = loop_over(eqn.outvars[0].aval.shape)
    while True:
        try:
            _through(eqn, index, sizes, views)
        except SplitAxis as request:
            sizes, axes = split(sizes, request)
            index = tuple([i.replaced(axes) for i in index])
        except NotAffine:
            return False
        else:
            return True


def _through(eqn: Equation | None, index: Index, sizes: Sequence[int], views: Mapping[Var, Equation]) -> None:
    while eqn is not None and eqn.invars:
        (atom,) = eqn.invars
        if not isinstance(atom, Var) or not atom.aval.size:
            return
        viewed_by = views.get(atom)
        if viewed_by is None and eqn.primitive is reshape_p:
            return  # an array in memory has the other shape as well
        index = operand_index(eqn, index, sizes)
        eqn = viewed_by


def view_index(eqn: Equation, index: PartialIndex, sizes: Sequence[int]) -> PartialIndex | None:
    """Return the index at which a loop visits a view while it visits the operand.

    None if it does not visit all of the view. Raises `SplitAxis` or `NotAffine`.
    """
    primitive, shape, params = eqn.primitive, eqn.outvars[0].aval.shape, eqn.params
    if primitive is transpose_p:
        return tuple([index[p] for p in params["permutation"]])
    if primitive is rev_p:
        return tuple([_reversed(i, n) if d in params["dimensions"] else i for d, (i, n) in enumerate(zip(index, shape, strict=True))])
    if primitive is broadcast_in_dim_p:
        result: list[Affine | None] = [None] * len(shape)
        for i, n, d in zip(index, eqn.invars[0].aval.shape, params["broadcast_dimensions"], strict=True):
            result[d] = None if n == 1 else i
        return tuple(result)
    if primitive is stop_gradient_p:
        return index
    if primitive is slice_p:
        return None
    old = eqn.invars[0].aval.shape
    if any(i is None and n != 1 for i, n in zip(index, old, strict=True)):
        return None
    viewed = reshaped(tuple([ZERO if i is None else i for i in index]), old, shape, sizes)
    return tuple([None if n == 1 else i for i, n in zip(viewed, shape, strict=True)])


def _reversed(affine: Affine | None, size: int) -> Affine | None:
    return None if affine is None else affine.times(-1).plus(size - 1)


def _with_ones(index: Index, dimensions: Sequence[int]) -> Index:
    result = list(index)
    for dimension in sorted(dimensions):
        result.insert(dimension, ZERO)
    return tuple(result)


def _transpose(index: Index, shape: Shape, new: Shape, sizes: Sequence[int], *, permutation: tuple[int, ...]) -> Index:
    result = [ZERO] * len(index)
    for affine, dimension in zip(index, permutation, strict=True):
        result[dimension] = affine
    return tuple(result)


def _broadcast(index: Index, old: Shape, new: Shape, sizes: Sequence[int], *, shape: Shape, broadcast_dimensions: Sequence[int]) -> Index:
    return tuple([ZERO if n == 1 else index[d] for n, d in zip(old, broadcast_dimensions, strict=True)])


def _slice(
    index: Index, old: Shape, new: Shape, sizes: Sequence[int], *, start_indices: Shape, limit_indices: Shape, strides: Shape | None
) -> Index:
    return tuple([i.times(step).plus(start) for i, start, step in zip(index, start_indices, strides or (1,) * len(index), strict=True)])


def _rev(index: Index, old: Shape, new: Shape, sizes: Sequence[int], *, dimensions: Sequence[int]) -> Index:
    return tuple([i.times(-1).plus(old[d] - 1) if d in dimensions else i for d, i in enumerate(index)])


def _reshape(index: Index, old: Shape, new: Shape, sizes: Sequence[int], *, new_sizes: Shape) -> Index:
    return reshaped(index, new, old, sizes)


def _squeeze(index: Index, old: Shape, new: Shape, sizes: Sequence[int], *, dimensions: Sequence[int]) -> Index:
    return _with_ones(index, dimensions)


_OPERAND_INDEX: dict[Primitive, Callable[..., Index]] = {
    reshape_p: _reshape,
    transpose_p: _transpose,
    broadcast_in_dim_p: _broadcast,
    squeeze_p: _squeeze,
    slice_p: _slice,
    rev_p: _rev,
    stop_gradient_p: lambda index, old, new, sizes: index,
}


def row_major(index: Index, shape: Shape) -> Affine:
    """Return the number of an array's element in row-major order."""
    return index[0] if len(index) == 1 else combine((math.prod(shape[d + 1 :]), i) for d, i in enumerate(index))


@lru_cache(maxsize=4096)
def axes_of(index: PartialIndex) -> frozenset[int]:
    """Return the axes that an index depends on."""
    return frozenset([axis for i in index if i is not None for axis, _ in i.terms])
