"""Gather and scatter: many windows of an array, read and updated by index.

The indices are known only at run time. Both have the same dimension numbers and modes.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from volta_fn import dtypes
from volta_fn.core.arrays.array import Array, as_value
from volta_fn.core.aval import Shape, ShapedArray, as_integer, canonical_shape
from volta_fn.core.dimension import fits, is_symbolic_dim, surely_less
from volta_fn.core.primitive import AxisData, Linear, Primitive, Reduction, RuleOf, Zero
from volta_fn.core.trace import bind
from volta_fn.errors import ArgumentError, ArgumentTypeError, DTypeError, GradientError, MissingRuleError, ShapeError
from volta_fn.primitives.data_movement.movement import (
    broadcast,
    canonical_axes,
    expand_dims,
    instantiate,
    iota,
    linear_jvp,
    moveaxis,
    no_tangents,
    reshape,
    shift_dims,
    to_front,
)
from volta_fn.primitives.data_movement.slicing import (
    concatenate,
)
from volta_fn.primitives.declare import weakly_promoted
from volta_fn.primitives.elementwise import arithmetic, selection
from volta_fn.primitives.elementwise.cast import convert_element_type, decoded
from volta_fn.primitives.elementwise.selection import select
from volta_fn.primitives.reduction import reduce_max, reduce_min, reduce_prod, reduce_sum_p

# Dimension numbers, modes and default fill values of gather and scatter.
#
# A gather reads a *window* (a block of ``slice_sizes``) of the operand at each of many *start indices*, and lays the windows
# out in the result; a scatter writes windows of *updates* into the operand. The start indices are one integer array, whose last
# dimension holds the vector of coordinates of one window; its other dimensions are the *batch*. Dimensions named in
# ``operand_batching_dims`` and their partners in the indices run in step: example i of the indices reads example i of the operand.


class GatherDimensionNumbers(NamedTuple):
    """The correspondence of a gather's dimensions: operand, start indices, result.

    The names are XLA's.

    Attributes:
        offset_dims: the result's dimensions that run within a window, in the order of the operand's dimensions.
        collapsed_slice_dims: operand dimensions of window size 1 that the result lacks.
        start_index_map: for each entry of an index vector, the operand dimension that it addresses.
        operand_batching_dims: operand dimensions (window size 1, absent from the windows) that run in step with the indices.
        start_indices_batching_dims: the matching dimensions of the indices.
    """

    offset_dims: tuple[int, ...]
    collapsed_slice_dims: tuple[int, ...]
    start_index_map: tuple[int, ...]
    operand_batching_dims: tuple[int, ...] = ()
    start_indices_batching_dims: tuple[int, ...] = ()


class ScatterDimensionNumbers(NamedTuple):
    """The correspondence of a scatter's dimensions: operand, indices, updates.

    The names are XLA's.

    Attributes:
        update_window_dims: the updates' dimensions that run within a window, in the order of the operand's dimensions.
        inserted_window_dims: operand dimensions of window size 1 that the updates lack.
        scatter_dims_to_operand_dims: for each entry of an index vector, the operand dimension that it addresses.
        operand_batching_dims: operand dimensions (window size 1, absent from the windows) that run in step with the indices.
        scatter_indices_batching_dims: the matching dimensions of the indices.
    """

    update_window_dims: tuple[int, ...]
    inserted_window_dims: tuple[int, ...]
    scatter_dims_to_operand_dims: tuple[int, ...]
    operand_batching_dims: tuple[int, ...] = ()
    scatter_indices_batching_dims: tuple[int, ...] = ()


class GatherScatterMode(enum.Enum):
    """The treatment of windows that do not lie wholly inside the operand."""

    #: The window moves to the nearest index inside.
    CLIP = "clip"
    #: A gather fills all of the window with a fill value; a scatter leaves the window out.
    FILL_OR_DROP = "fill_or_drop"
    #: The caller promises that there is none. A broken promise reads as CLIP and writes as FILL_OR_DROP.
    PROMISE_IN_BOUNDS = "promise_in_bounds"

    @staticmethod
    def from_any(mode: str | GatherScatterMode | None) -> GatherScatterMode:
        """Return a mode by its name.

        The names are "clip", "fill" or "drop", and "promise_in_bounds"; None means FILL_OR_DROP. Raises `ArgumentError` if there is no mode
        of that name.

        >>> GatherScatterMode.from_any("drop").name
        'FILL_OR_DROP'
        """
        if isinstance(mode, GatherScatterMode):
            return mode
        if mode not in _MODES:
            raise ArgumentError(f"mode must be 'clip', 'fill', 'drop', 'promise_in_bounds', a GatherScatterMode or None, got {mode!r}")
        return _MODES[mode]


_MODES: dict[str | None, GatherScatterMode] = {
    None: GatherScatterMode.FILL_OR_DROP,
    "clip": GatherScatterMode.CLIP,
    "fill": GatherScatterMode.FILL_OR_DROP,
    "drop": GatherScatterMode.FILL_OR_DROP,
    "promise_in_bounds": GatherScatterMode.PROMISE_IN_BOUNDS,
}


def check_numbers(
    name: str, operand: ShapedArray, indices: ShapedArray, numbers: GatherDimensionNumbers, slice_sizes: Shape, index_name: str
) -> None:
    """Raise unless the numbers describe windows found by `indices`.

    The error is a `ShapeError` or `DTypeError`; windows are of `slice_sizes` of the operand.
    """
    arguments = f"operand {operand}, {index_name} {indices}, slice_sizes {slice_sizes}, {numbers}"

    def require(condition: bool, demand: str) -> None:
        if not condition:
            raise ShapeError(f"{name}: {demand}; got {arguments}")

    if indices.dtype not in dtypes.INTEGERS:
        raise DTypeError(f"{name}: {index_name} must be integers, got {indices}; convert them with lax.convert_element_type")
    require(indices.ndim > 0, f"{index_name} needs a last dimension that holds the index vectors (reshape to (…, 1) for scalar indices)")
    collapsed, addressed, batching = numbers.collapsed_slice_dims, numbers.start_index_map, numbers.operand_batching_dims
    partners = numbers.start_indices_batching_dims
    require(_increase(collapsed, operand.ndim), "collapsed (inserted) dims must increase and be dimensions of the operand")
    require(_increase(batching, operand.ndim), "operand_batching_dims must increase and be dimensions of the operand")
    require(_increase(sorted(addressed), operand.ndim), "the dimensions that index vectors address must differ and be the operand's")
    require(indices.shape[-1] == len(addressed), f"the last dimension of {index_name} must have one entry per addressed dimension")
    require(not {*collapsed, *addressed} & {*batching}, "a batching dimension can be neither addressed nor collapsed (inserted)")
    require(_increase(sorted(partners), indices.ndim - 1), f"the batching dims of {index_name} must differ and exclude its last dimension")
    require(
        [operand.shape[d] for d in batching] == [indices.shape[d] for d in partners],
        f"operand_batching_dims and the batching dims of {index_name} must pair up and have equal sizes",
    )
    require(len(slice_sizes) == operand.ndim, "a window needs one size per dimension of the operand")
    require(not any(surely_less(size, 0) for size in slice_sizes), "a window's sizes must not be negative")
    fits = not any(surely_less(n, s) for s, n in zip(slice_sizes, operand.shape, strict=True))
    require(fits or 0 in indices.shape[:-1], "a window must fit into the operand, unless there is none")
    require(all(slice_sizes[d] == 1 for d in collapsed), "windows must have size 1 along collapsed (inserted) dimensions")
    require(all(slice_sizes[d] == min(1, operand.shape[d]) for d in batching), "windows must have size 1 along batching dimensions")


def _increase(dims: Sequence[int], limit: int) -> bool:
    """Return True if the dims are different, in order, and lie in [0, limit)."""
    return all(a < b for a, b in pairwise((-1, *dims, limit)))


def default_fill(dtype: np.dtype) -> Any:
    """Return the default fill value of a gather's invalid windows.

    It is the least signed integer, the greatest unsigned one, True, or NaN.
    """
    if dtype in dtypes.INTEGERS | dtypes.STORAGE_INTEGERS:
        info = dtypes.iinfo(dtype)
        return info.min if info.min < 0 else info.max
    return True if dtype.kind == "b" else np.nan


def canonical_index(index: Any, size: int, allow_negative: bool = True) -> Array:
    """Return an index along a dimension of `size` as a strong array.

    A negative one counts from the end if allowed.
    """
    if isinstance(index, (int, np.integer)):
        constant = int(index) + size if allow_negative and index < 0 else min(int(index), 2**63 - 1)
        return as_value(np.asarray(constant, np.int32 if -(2**31) <= constant < 2**31 else np.int64))
    value = as_value(index)
    if value.weak_type or value.dtype.itemsize < 4:  # `size` must fit too.
        value = convert_element_type(value, value.dtype if value.dtype.itemsize >= 4 else np.int32)
    if allow_negative and value.dtype in dtypes.SIGNED:
        value = convert_element_type(value, dtypes.index_dtype(size, value.dtype))
    # An index that the signed dtype does not hold is outside, too; and not every device has int64.
    if value.dtype in (np.uint32, np.uint64) and fits(size, 2**31 - 1):
        return _signed(value, np.int32)
    if value.dtype == np.uint64:
        return _signed(value, np.int64)
    if not allow_negative or value.dtype not in dtypes.SIGNED:
        return value
    from_end = arithmetic.add(value, convert_element_type(size if is_symbolic_dim(size) else np.asarray(size), value.dtype))
    return select(selection.lt(value, as_value(np.zeros((), value.dtype))), from_end, value)


def _signed(index: Array, dtype: Any) -> Array:
    """Return an unsigned index as a signed one, at most the greatest that there is."""
    return convert_element_type(arithmetic.min(index, as_value(index.dtype.type(np.iinfo(dtype).max))), dtype)


# Gather: reading many windows of an array at indices known at run time.
#
# Its transpose is a scatter.


def _gather_abstract(
    operand: ShapedArray,
    indices: ShapedArray,
    *,
    dimension_numbers: GatherDimensionNumbers,
    slice_sizes: Shape,
    mode: GatherScatterMode,
    fill_value: Any,
) -> ShapedArray:
    numbers = dimension_numbers
    check_numbers("gather", operand, indices, numbers, slice_sizes, "start_indices")
    absent = numbers.collapsed_slice_dims + numbers.operand_batching_dims
    window = [size for dim, size in enumerate(slice_sizes) if dim not in absent]
    rank = len(window) + indices.ndim - 1
    offsets = numbers.offset_dims
    if len(offsets) != len(window) or list(offsets) != sorted({*offsets} & {*range(rank)}):
        raise ShapeError(
            f"gather: offset_dims must increase and name {len(window)} of the result's {rank} dimensions, one per dimension of a window; "
            f"got operand {operand}, start_indices {indices}, slice_sizes {slice_sizes}, {numbers}"
        )
    window_sizes, batch_sizes = iter(window), iter(indices.shape)
    return operand.update(shape=tuple([next(window_sizes if dim in offsets else batch_sizes) for dim in range(rank)]))


def _gather_jvp(primals: Sequence[Array], tangents: Sequence[Any], **params: Any) -> tuple[Array, Any]:
    (operand, indices), (tangent, _) = primals, tangents
    out = bind(gather_p, operand, indices, **params)
    if type(tangent) is Zero:
        return no_tangents(out)
    return out, bind(gather_p, tangent, indices, **(params | {"fill_value": 0}))


def _gather_batch(
    axis: AxisData,
    args: Sequence[Array],
    dims: Sequence[int | None],
    *,
    dimension_numbers: GatherDimensionNumbers,
    slice_sizes: Shape,
    **params: Any,
) -> tuple[Array, int]:
    (operand, indices), (operand_dim, indices_dim) = args, dims
    numbers = dimension_numbers
    if operand_dim is None:
        indices = moveaxis(indices, indices_dim or 0, 0)
        numbers = numbers._replace(
            offset_dims=shift_dims(numbers.offset_dims), start_indices_batching_dims=shift_dims(numbers.start_indices_batching_dims)
        )
        return bind(gather_p, operand, indices, dimension_numbers=numbers, slice_sizes=slice_sizes, **params), 0
    operand = moveaxis(operand, operand_dim, 0)
    stepping = indices_dim is not None  # Example i of the indices reads example i of the operand; else all read all.
    if indices_dim is not None:
        indices = moveaxis(indices, indices_dim, 0)
    numbers = GatherDimensionNumbers(
        offset_dims=shift_dims(numbers.offset_dims, None if stepping else 0),
        collapsed_slice_dims=shift_dims(numbers.collapsed_slice_dims),
        start_index_map=shift_dims(numbers.start_index_map),
        operand_batching_dims=shift_dims(numbers.operand_batching_dims, 0 if stepping else None),
        start_indices_batching_dims=shift_dims(numbers.start_indices_batching_dims, 0) if stepping else numbers.start_indices_batching_dims,
    )
    sizes = (min(axis.size, 1) if stepping else axis.size, *slice_sizes)
    return bind(gather_p, operand, indices, dimension_numbers=numbers, slice_sizes=sizes, **params), 0


def _gather_accumulate(
    total: Array, ct: Array, operand: Linear, indices: Array, *, dimension_numbers: GatherDimensionNumbers, mode: Any, **params: Any
) -> Array:
    numbers = ScatterDimensionNumbers(*dimension_numbers)
    return bind(scatter_add_p, total, indices, ct, dimension_numbers=numbers, mode=mode, unique_indices=False)


def _gather_transpose(ct: Any, operand: Linear, indices: Array, **params: Any) -> list[Any]:
    zeros = broadcast(as_value(np.zeros((), ct.dtype)), operand.shape)
    return [_gather_accumulate(zeros, ct, operand, indices, **params), None]


gather_p = Primitive(
    "gather",
    _gather_abstract,
    views=True,
    jvp=_gather_jvp,
    transpose=_gather_transpose,
    accumulate=_gather_accumulate,
    batch=_gather_batch,
)


def gather(
    operand: Any,
    start_indices: Any,
    dimension_numbers: GatherDimensionNumbers,
    slice_sizes: Sequence[int],
    *,
    unique_indices: bool = False,
    indices_are_sorted: bool = False,
    mode: str | GatherScatterMode | None = None,
    fill_value: Any = None,
) -> Array:
    """Gather windows of `operand` at many indices, as XLA's gather.

    Indexing ``x[i]`` is the friendly form of it.

    Args:
        operand: the array to read.
        start_indices: integers (*batch, index vector); each vector is the index of one window.
        dimension_numbers: which dimension is which.
        slice_sizes: the size of a window along each dimension of `operand`.
        unique_indices, indices_are_sorted: promises that cost and gain nothing here; JAX has them.
        mode: the treatment of windows not completely inside `operand`; None means "fill".
        fill_value: a number that fills them; None: NaN, the least signed or the greatest unsigned integer, or True.

    Raises:
        ShapeError: the numbers, sizes and shapes do not fit together.
        DTypeError: the indices are not integers.

    >>> rows = vf.lax.GatherDimensionNumbers(offset_dims=(1,), collapsed_slice_dims=(0,), start_index_map=(0,))
    >>> vf.lax.gather(vf.numpy.arange(6).reshape(3, 2), vf.numpy.array([[2], [0]]), rows, (1, 2))
    Array([[4, 5],
           [0, 1]], dtype=int32)
    """
    value = as_value(operand)
    numbers = GatherDimensionNumbers(*[tuple(dims) for dims in dimension_numbers])
    sizes = tuple([as_integer(s, "gather: slice_sizes") for s in slice_sizes])
    gather_mode = GatherScatterMode.from_any(mode)
    fill = _canonical_fill(fill_value, value.dtype) if gather_mode is GatherScatterMode.FILL_OR_DROP else None
    fill, reflections = _without_negative_zeros(fill, value.dtype)
    for reflection in reflections:
        value = reflection(value)
    out = bind(gather_p, value, as_value(start_indices), dimension_numbers=numbers, slice_sizes=sizes, mode=gather_mode, fill_value=fill)
    for reflection in reflections:
        out = reflection(out)
    return out


def _canonical_fill(fill_value: Any, dtype: np.dtype) -> Any:
    """Return the fill value as a Python scalar, or None if it is the default."""
    # NaN, which does not equal itself, would defeat caches.
    if fill_value is None:
        return None
    if not isinstance(fill_value, (bool, int, float, complex, np.generic)):
        raise ArgumentTypeError(f"fill_value must be a Python or NumPy scalar, got {fill_value!r} of type {type(fill_value).__name__}")
    if dtypes.promote((dtype, False), dtypes.scalar_dtype(fill_value))[0].kind != dtype.kind:
        raise DTypeError(f"fill_value {fill_value!r} is no {dtype.name}, which the elements are")
    fill = fill_value.item() if isinstance(fill_value, np.generic) else fill_value
    return None if fill != fill and dtype in dtypes.INEXACT else fill


def _without_negative_zeros(fill: Any, dtype: np.dtype) -> tuple[Any, list[Callable[[Any], Any]]]:
    """Return a fill value without -0.0, and what makes it the given one again.

    That is done to the elements, too, before they are read. Parameters are compared by value, so that -0.0 would find the kernel of 0.0.
    """
    if not isinstance(fill, (float, complex)) or all(part or math.copysign(1, part) > 0 for part in (fill.real, fill.imag)):
        return fill, []
    if dtype not in dtypes.COMPLEX:
        return 0.0, [lambda x: convert_element_type(arithmetic.neg(decoded(x)), dtype)]
    number, reflections = complex(fill), list[Callable[[Any], Any]]()
    if math.copysign(1, number.real) < 0:
        number, reflections = -number, [arithmetic.neg]
    if math.copysign(1, number.imag) < 0:
        number, reflections = number.conjugate(), [*reflections, selection.conj]
    return number, reflections


def index_take(src: Any, idxs: Sequence[Any], axes: Sequence[int]) -> Array:
    """Return the slices of `src` at indices along `axes`.

    There is a vector of integers per axis; indices wrap around.

    >>> vf.lax.index_take(vf.numpy.arange(6).reshape(3, 2), [vf.numpy.array([0, -1])], (0,))
    Array([[0, 1],
           [4, 5]], dtype=int32)
    """
    value = as_value(src)
    dims = canonical_axes(tuple(axes), value.ndim)
    indices = concatenate([expand_dims(i, (1,)) for i in idxs], 1)
    shape = [value.shape[d] for d in dims]
    wide = dtypes.index_dtype(max(shape), indices.dtype if indices.dtype.itemsize >= 4 else np.dtype(np.int32))
    indices = convert_element_type(indices, wide) % np.array([shape], wide)
    sizes = [1 if d in dims else n for d, n in enumerate(value.shape)]
    numbers = GatherDimensionNumbers(tuple(range(1, 1 + value.ndim - len(dims))), tuple(sorted(dims)), dims)
    return gather(value, indices, numbers, sizes, mode=GatherScatterMode.PROMISE_IN_BOUNDS)


def take_along_dim(operand: Array, indices: Array, dim: int) -> Array:
    """Return ``operand[..., indices[..., j, ...], ...]``, indexed along `dim`.

    The shapes agree but along `dim`; indices must lie in bounds.
    """
    if not indices.size:
        return broadcast(as_value(np.zeros((), operand.dtype)), indices.shape)
    others = tuple([d for d in range(operand.ndim) if d != dim])
    numbers = GatherDimensionNumbers((), (dim,), (dim,), others, others)
    sizes = (1,) * operand.ndim
    column = expand_dims(indices, (indices.ndim,))
    mode = GatherScatterMode.PROMISE_IN_BOUNDS
    return bind(gather_p, operand, column, dimension_numbers=numbers, slice_sizes=sizes, mode=mode, fill_value=None)


# Scatter: updating windows of an array at indices known at run time.
#
# One primitive per combination of an update with the old element: `scatter` (replace), `scatter_add`, `scatter_mul`, `scatter_min`,
# `scatter_max`. Updates of one element are combined in the order of the indices; of several replacements the last one stays, on every
# device. So `scatter`, like `scatter_add`, is linear in operand and updates together.


def window_sizes(numbers: ScatterDimensionNumbers, operand: Shape, updates: Shape) -> Shape:
    """Return a window's size along each dimension of the operand."""
    window = iter([updates[d] for d in numbers.update_window_dims])
    sizes = []
    for dim, size in enumerate(operand):
        if dim in numbers.operand_batching_dims:
            sizes.append(min(1, size))
        else:
            sizes.append(1 if dim in numbers.inserted_window_dims else next(window))
    return tuple(sizes)


def _matching_gather(numbers: ScatterDimensionNumbers) -> GatherDimensionNumbers:
    """Return the gather that reads the windows which a scatter writes."""
    return GatherDimensionNumbers(*numbers)


def _abstract(name: str) -> Callable[..., ShapedArray]:
    def abstract(
        operand: ShapedArray,
        indices: ShapedArray,
        updates: ShapedArray,
        *,
        dimension_numbers: ScatterDimensionNumbers,
        mode: GatherScatterMode,
        unique_indices: bool,
    ) -> ShapedArray:
        if operand.dtype != updates.dtype:
            raise DTypeError(
                f"{name} needs operand and updates of one dtype, got {operand} and {updates}; convert with lax.convert_element_type"
            )
        numbers = dimension_numbers
        inside = numbers.update_window_dims
        batch = tuple([n for d, n in enumerate(updates.shape) if d not in inside])
        absent = len({*numbers.inserted_window_dims, *numbers.operand_batching_dims} & {*range(operand.ndim)})
        if (
            len(inside) != operand.ndim - absent
            or list(inside) != sorted({*inside} & {*range(updates.ndim)})
            or batch != indices.shape[:-1]
        ):
            raise ShapeError(
                f"{name}: update_window_dims must increase and name the dimensions of updates that run within a window "
                f"({operand.ndim - absent} of them here); the others must have the shape of scatter_indices without its last dimension; "
                f"got operand {operand}, scatter_indices {indices}, updates {updates}, {numbers}"
            )
        sizes = window_sizes(numbers, operand.shape, updates.shape)
        check_numbers(name, operand, indices, _matching_gather(numbers), sizes, "scatter_indices")
        return ShapedArray(operand.shape, operand.dtype, operand.weak_type and updates.weak_type)

    return abstract


def _read_windows(source: Array, indices: Array, like: Array | Linear, params: dict[str, Any]) -> Array:
    """Read `source` where updates `like` would be written; zero where dropped."""
    numbers: ScatterDimensionNumbers = params["dimension_numbers"]
    sizes = window_sizes(numbers, source.shape, like.shape)
    return bind(
        gather_p, source, indices, dimension_numbers=_matching_gather(numbers), slice_sizes=sizes, mode=params["mode"], fill_value=0
    )


def never_meet(indices: Shape, params: dict[str, Any]) -> bool:
    """Return True if no two windows of a scatter overlap.

    That is promised, or there is at most one window for each example of the batching dimensions.
    """
    numbers: ScatterDimensionNumbers = params["dimension_numbers"]
    others = [n for d, n in enumerate(indices[:-1]) if d not in numbers.scatter_indices_batching_dims]
    return params["unique_indices"] or math.prod(others) <= 1


def _batch_for(primitive: Primitive) -> Callable[..., Any]:
    def batch(
        axis: AxisData, args: Sequence[Array], dims: Sequence[int | None], *, dimension_numbers: ScatterDimensionNumbers, **params: Any
    ) -> tuple[Array, int]:
        operand, indices, updates = to_front(args, dims)
        operand = broadcast(operand, (axis.size,)) if dims[0] is None else operand
        updates = broadcast(updates, (axis.size,)) if dims[2] is None else updates
        stepping = dims[1] is not None  # Example i of the indices writes into example i of the operand; else all write into all.
        old = dimension_numbers
        numbers = ScatterDimensionNumbers(
            update_window_dims=shift_dims(old.update_window_dims, None if stepping else 0),
            inserted_window_dims=shift_dims(old.inserted_window_dims),
            scatter_dims_to_operand_dims=shift_dims(old.scatter_dims_to_operand_dims),
            operand_batching_dims=shift_dims(old.operand_batching_dims, 0 if stepping else None),
            scatter_indices_batching_dims=shift_dims(old.scatter_indices_batching_dims, 0)
            if stepping
            else old.scatter_indices_batching_dims,
        )
        return bind(primitive, operand, indices, updates, dimension_numbers=numbers, **params), 0

    return batch


def _declare(
    name: str, combines: Reduction | None, jvp: Callable[..., Any] | RuleOf, transpose: Callable[..., Any] | None = None
) -> Primitive:
    return Primitive(name, _abstract(name), overwrites=0, jvp=jvp, transpose=transpose, batch=RuleOf(_batch_for), combines=combines)


# scatter


def _scatter_transpose(ct: Any, operand: Any, indices: Array, updates: Any, **params: Any) -> list[Any]:
    ct_operand = ct_updates = None
    if type(operand) is Linear:
        nothing = broadcast(as_value(np.zeros((), ct.dtype)), updates.shape)
        ct_operand = bind(scatter_p, ct, indices, nothing, **params)
    if type(updates) is Linear:
        ct_updates = _read_windows(ct, indices, updates, params)
        if not never_meet(indices.shape, params):
            # Each update writes its number and reads it back, which marks the last one of each element.
            count = math.prod(updates.shape)
            dtype = np.dtype(np.int32 if count < 2**31 else np.int64)
            numbers = reshape(iota(dtype, count), updates.shape)
            written = bind(scatter_p, broadcast(as_value(np.zeros((), dtype)), operand.shape), indices, numbers, **params)
            stayed = selection.eq(_read_windows(written, indices, numbers, params), numbers)
            ct_updates = select(stayed, ct_updates, as_value(np.zeros((), ct.dtype)))
    return [ct_operand, None, ct_updates]


scatter_p = _declare("scatter", None, linear_jvp(0, 2), _scatter_transpose)


# scatter_add, the transpose of gather


def _scatter_add_transpose(ct: Any, operand: Any, indices: Array, updates: Any, **params: Any) -> list[Any]:
    ct_updates = _read_windows(ct, indices, updates, params) if type(updates) is Linear else None
    return [ct if type(operand) is Linear else None, None, ct_updates]


scatter_add_p = _declare("scatter_add", reduce_sum_p.reduction, linear_jvp(0, 2), _scatter_add_transpose)


# scatter_mul


def _scatter_mul_jvp(primals: Sequence[Array], tangents: Sequence[Any], **params: Any) -> tuple[Array, Any]:
    operand, indices, updates = primals
    operand_tangent, _, update_tangent = tangents
    out = bind(scatter_mul_p, operand, indices, updates, **params)
    total: Any = Zero(out.aval.tangent_aval())
    if type(operand_tangent) is not Zero:
        total = bind(scatter_mul_p, operand_tangent, indices, updates, **params)
    if type(update_tangent) is not Zero:
        if not never_meet(indices.shape, params):
            raise MissingRuleError(
                "scatter_mul (x.at[i].multiply) has a derivative by its updates only where no two of them meet in one element: "
                "say so with unique_indices=True, or multiply by a gathered product."
            )
        term = arithmetic.mul(update_tangent, _read_windows(operand, indices, updates, params))
        total = bind(scatter_add_p, instantiate(total), indices, term, **params)
    return out, total


def _scatter_mul_transpose(ct: Any, operand: Any, indices: Array, updates: Any, **params: Any) -> list[Any]:
    if type(updates) is Linear:
        raise GradientError("scatter_mul is not linear in its updates, so it cannot be transposed for them")
    return [bind(scatter_mul_p, ct, indices, updates, **params), None, None]


scatter_mul_p = _declare("scatter_mul", reduce_prod.primitive.reduction, _scatter_mul_jvp, _scatter_mul_transpose)


# scatter_min, scatter_max


def _extreme(name: str, combines: Reduction | None) -> Primitive:
    """Declare a scatter of extremes; equal ones, of either side, share the tangent."""

    def jvp(primals: Sequence[Array], tangents: Sequence[Any], **params: Any) -> tuple[Array, Any]:
        operand, indices, updates = primals
        operand_tangent, _, update_tangent = tangents
        out = bind(primitive, operand, indices, updates, **params)
        if type(operand_tangent) is Zero and type(update_tangent) is Zero:
            return no_tangents(out)
        dtype = dtypes.accumulator(out.dtype)  # the count and the sum may exceed float16
        is_nan = selection.ne(operand, operand)  # which no update replaces, and most elements of large arrays meet none
        from_operand = convert_element_type(selection.bitwise_or(selection.eq(operand, out), is_nan), dtype)
        from_update = convert_element_type(selection.eq(updates, _read_windows(out, indices, updates, params)), dtype)
        count = bind(scatter_add_p, from_operand, indices, from_update, **params)
        before, moved = [
            arithmetic.mul(convert_element_type(instantiate(tangent), dtype), chosen)
            for tangent, chosen in ((operand_tangent, from_operand), (update_tangent, from_update))
        ]
        total = bind(scatter_add_p, before, indices, moved, **params)
        # Where an update is NaN, no number is equal to the result: there is no tangent, as of `max`.
        at_least_one = arithmetic.max(count, as_value(np.ones((), dtype)))
        return out, convert_element_type(arithmetic.div(total, at_least_one), out.dtype)

    primitive = _declare(name, combines, jvp)
    return primitive


scatter_min_p = _extreme("scatter_min", reduce_min.primitive.reduction)
scatter_max_p = _extreme("scatter_max", reduce_max.primitive.reduction)


# The functions.


def _function(primitive: Primitive, does: str) -> Callable[..., Array]:
    """Return the function that users call, for a primitive."""

    def apply(
        operand: Any,
        scatter_indices: Any,
        updates: Any,
        dimension_numbers: ScatterDimensionNumbers,
        *,
        indices_are_sorted: bool = False,
        unique_indices: bool = False,
        mode: str | GatherScatterMode | None = None,
    ) -> Array:
        value, new = weakly_promoted(primitive.name, (operand, updates))
        numbers = ScatterDimensionNumbers(*[tuple(dims) for dims in dimension_numbers])
        scatter_mode = GatherScatterMode.from_any(mode)
        params = {"dimension_numbers": numbers, "mode": scatter_mode, "unique_indices": bool(unique_indices)}
        if primitive is scatter_p:
            return bind(primitive, value, as_value(scatter_indices), new, **params)
        out = bind(primitive, decoded(value), as_value(scatter_indices), decoded(new), **params)
        return convert_element_type(out, value.dtype, out.weak_type)

    apply.__name__ = apply.__qualname__ = primitive.name
    apply.__doc__ = does
    return apply


scatter = _function(
    scatter_p,
    """`operand` with windows replaced by `updates`: XLA's scatter. ``x.at[i].set(v)`` is the friendly form of it.

    Of several updates of one element the last one stays.

    Args:
        operand: the array to start from.
        scatter_indices: integers (*batch, index vector); each vector is the place of one window.
        updates: the windows, of the dtype of `operand`.
        dimension_numbers: which dimension is which.
        indices_are_sorted: a promise that costs and gains nothing here; JAX has it.
        unique_indices: a promise that no two windows overlap; then the derivative with respect to `updates` costs less.
        mode: the treatment of windows not completely inside `operand`; None means "drop".

    Raises:
        ShapeError: the numbers and shapes do not fit together.
        DTypeError: the indices are not integers, or operand and updates differ in dtype.

    >>> one = vf.lax.ScatterDimensionNumbers(update_window_dims=(), inserted_window_dims=(0,), scatter_dims_to_operand_dims=(0,))
    >>> vf.lax.scatter(vf.numpy.zeros(4), vf.numpy.array([[1], [3]]), vf.numpy.array([5.0, 7.0]), one)
    Array([0., 5., 0., 7.], dtype=float32)
    """,
)
scatter_add = _function(
    scatter_add_p, "`operand` with `updates` added to windows of it; arguments as of `scatter`. float16 and bfloat16 add in float32."
)
scatter_mul = _function(
    scatter_mul_p,
    """`operand` with windows of it multiplied by `updates`; arguments as of `scatter`. float16 and bfloat16 multiply in float32.

    The derivative with respect to `updates` needs `unique_indices`, else `GradientError` is raised.
    """,
)
scatter_min = _function(
    scatter_min_p, "`operand` with the lesser of `updates` and itself in windows of it; arguments as of `scatter`. NaN prevails."
)
scatter_max = _function(
    scatter_max_p, "`operand` with the greater of `updates` and itself in windows of it; arguments as of `scatter`. NaN prevails."
)


def scatter_sub(operand: Any, scatter_indices: Any, updates: Any, dimension_numbers: ScatterDimensionNumbers, **options: Any) -> Array:
    """Subtract `updates` from windows of `operand`; arguments as of `scatter`."""
    return scatter_add(operand, scatter_indices, arithmetic.neg(updates), dimension_numbers, **options)


def scatter_apply(
    operand: Any,
    scatter_indices: Any,
    func: Callable[[Array], Any],
    dimension_numbers: ScatterDimensionNumbers,
    *,
    update_shape: Sequence[int] = (),
    unique_indices: bool = False,
    indices_are_sorted: bool = False,
    mode: str | GatherScatterMode | None = None,
) -> Array:
    """Apply an elementwise function to windows of `operand`.

    An element in several windows passes through it once. `update_shape` is the shape that updates would have; the other arguments are those
    of `scatter`.

    >>> one = vf.lax.ScatterDimensionNumbers(update_window_dims=(), inserted_window_dims=(0,), scatter_dims_to_operand_dims=(0,))
    >>> vf.lax.scatter_apply(vf.numpy.array([1.0, 4.0, 9.0]), vf.numpy.array([[2], [1]]), vf.lax.sqrt, one, update_shape=(2,))
    Array([1., 2., 3.], dtype=float32)
    """
    value, indices = as_value(operand), as_value(scatter_indices)
    numbers = ScatterDimensionNumbers(*[tuple(dims) for dims in dimension_numbers])
    sizes = window_sizes(numbers, value.shape, canonical_shape(update_shape, "update_shape"))
    old = gather(value, indices, _matching_gather(numbers), sizes, mode=mode)
    return scatter(value, indices, func(old), numbers, unique_indices=unique_indices, mode=mode)
