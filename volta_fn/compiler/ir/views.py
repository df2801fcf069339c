"""Views: equations that only change indices, as functions of indices.

A *view* costs nothing: a consumer that reads its element at an index reads the operand's element at another (`operand_index`). In the
other direction, a loop that visits the operand at some index visits the view at `view_index`, if it visits all of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

from volta_fn.compiler.ir.index import ZERO, Affine, Index, NotAffine, SplitAxis, combine, loop_over, reshaped, split
from volta_fn.core.aval import Shape
from volta_fn.core.jaxpr import Equation, Var

#: An index; None stands for any index along a dimension, as the array repeats along it.
PartialIndex = tuple[Affine | None, ...]

#: Views that keep the row-major order of elements, so that a contiguous operand serves as the result.
_IN_ORDER = frozenset({"reshape", "squeeze", "stop_gradient"})


def is_view(eqn: Equation) -> bool:
    """Return True if the equation's result is a view of its one operand."""
    reduction = eqn.primitive.reduction
    if reduction is not None and reduction.index_of is None:  # of one element each
        return all(eqn.invars[0].aval.shape[a] == 1 for a in eqn.params["axes"])
    return eqn.primitive.name in _OPERAND_INDEX


def reduces(eqn: Equation) -> bool:
    """Return True if the equation is a reduction, and no view."""
    return eqn.primitive.reduction is not None and not is_view(eqn)


def reduces_rows(eqn: Equation) -> bool:
    """Return True if the equation reduces the last dimension that is longer than one."""
    if not reduces(eqn):
        return False
    shape = eqn.invars[0].aval.shape
    return max([d for d, n in enumerate(shape) if n != 1], default=-1) in eqn.params["axes"]


def is_lowered(eqn: Equation) -> bool:
    """Return True if kernels can compute the equation, if its indices are affine."""
    known = is_view(eqn) or reduces(eqn) or is_elementwise(eqn) or eqn.primitive.name in ("iota", "pad", "concatenate")
    return known and all(v.aval.dtype.itemsize for v in eqn.invars)  # float0 has no elements to compute


def is_product(eqn: Equation) -> bool:
    """Return True if the equation sums products, which targets may have as kernels."""
    return eqn.primitive.name == "dot_general"


def is_elementwise(eqn: Equation) -> bool:
    """Return True if a result's element depends on the operands' at the same index.

    Operands broadcast.
    """
    name = eqn.primitive.name
    if name == "bitcast_convert_type":
        return eqn.invars[0].aval.dtype.itemsize == eqn.params["new_dtype"].itemsize
    return bool(eqn.primitive.arity) or name in ("select_n", "convert_element_type")


def is_alias(eqn: Equation) -> bool:
    """Return True if the result is the operand's memory, if that is contiguous."""
    if eqn.primitive.name == "broadcast_in_dim":
        return eqn.invars[0].aval.size == eqn.outvars[0].aval.size
    return eqn.primitive.name in _IN_ORDER or (is_view(eqn) and eqn.primitive.reduction is not None)


def loads(eqn: Equation, views: Mapping[Var, Equation]) -> dict[Var, None]:
    """Return the variables that an equation reads in the end, through `views`."""
    found: dict[Var, None] = {}
    stack = eqn.invars[::-1]
    while stack:
        atom = stack.pop()
        if isinstance(atom, Var) and atom not in found:
            if atom in views:
                stack += views[atom].invars[::-1]
            else:
                found[atom] = None
    return found


def operand_index(eqn: Equation, index: Index, sizes: Sequence[int]) -> Index:
    """Return the index that a view's element comes from.

    Raises `SplitAxis` or `NotAffine`.
    """
    shape = eqn.invars[0].aval.shape
    if eqn.primitive.reduction is not None:
        return _with_ones(index, eqn.params["axes"])
    return _OPERAND_INDEX[eqn.primitive.name](index, shape, eqn.outvars[0].aval.shape, sizes, **eqn.params)


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
        further = views.get(atom)
        if further is None and eqn.primitive.name == "reshape":
            return  # an array in memory has the other shape as well
        index = operand_index(eqn, index, sizes)
        eqn = further


def view_index(eqn: Equation, index: PartialIndex, sizes: Sequence[int]) -> PartialIndex | None:
    """Return the index at which a loop visits a view while it visits the operand.

    None if it does not visit all of the view. Raises `SplitAxis` or `NotAffine`.
    """
    name, shape, params = eqn.primitive.name, eqn.outvars[0].aval.shape, eqn.params
    if name == "transpose":
        return tuple([index[p] for p in params["permutation"]])
    if name == "rev":
        return tuple([_reversed(i, n) if d in params["dimensions"] else i for d, (i, n) in enumerate(zip(index, shape, strict=True))])
    if name == "broadcast_in_dim":
        result: list[Affine | None] = [None] * len(shape)
        for i, n, d in zip(index, eqn.invars[0].aval.shape, params["broadcast_dimensions"], strict=True):
            result[d] = None if n == 1 else i
        return tuple(result)
    if name == "stop_gradient":
        return index
    if name == "slice":
        return None
    return _reshaped_partially(index, eqn.invars[0].aval.shape, shape, sizes)


def _reversed(affine: Affine | None, size: int) -> Affine | None:
    return None if affine is None else affine.times(-1).plus(size - 1)


def _reshaped_partially(index: PartialIndex, old: Shape, new: Shape, sizes: Sequence[int]) -> PartialIndex | None:
    if any(i is None and n != 1 for i, n in zip(index, old, strict=True)):
        return None
    known = reshaped(tuple([ZERO if i is None else i for i in index]), old, new, sizes)
    return tuple([None if n == 1 else i for i, n in zip(known, new, strict=True)])


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


_OPERAND_INDEX: dict[str, Callable[..., Index]] = {
    "reshape": _reshape,
    "transpose": _transpose,
    "broadcast_in_dim": _broadcast,
    "squeeze": _squeeze,
    "slice": _slice,
    "rev": _rev,
    "stop_gradient": lambda index, old, new, sizes: index,
}


def row_major(index: Index, shape: Shape) -> Affine:
    """Return the number of an array's element in row-major order."""
    return index[0] if len(index) == 1 else combine((math.prod(shape[d + 1 :]), i) for d, i in enumerate(index))


@lru_cache(maxsize=4096)
def known(index: PartialIndex) -> frozenset[int]:
    """Return the axes that an index depends on."""
    return frozenset([axis for i in index if i is not None for axis, _ in i.terms])
