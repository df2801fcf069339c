"""Contractions, sums of products over pairs of axes, also over groups of rows."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from volta_fn import dtypes
from volta_fn.core.arrays.array import Array, as_value
from volta_fn.core.arrays.memory import constrained
from volta_fn.core.aval import ShapedArray, check_promotion
from volta_fn.core.primitive import AxisData, Linear, Primitive, RuleOf, Zero
from volta_fn.core.trace import bind
from volta_fn.errors import ArgumentError, DTypeError, ShapeError
from volta_fn.lazy_imports import deferred
from volta_fn.primitives.array_operations.operators import full_like
from volta_fn.primitives.cumulative import cumsum
from volta_fn.primitives.data_movement.dynamic_slicing import dynamic_index_in_dim, dynamic_update_index_in_dim
from volta_fn.primitives.data_movement.movement import (
    broadcast_in_dim,
    broadcasted_iota,
    canonical_axes,
    moveaxis,
    no_tangents,
    reshape,
    stacked_in_front,
    transpose,
)
from volta_fn.primitives.data_movement.slicing import concatenate
from volta_fn.primitives.elementwise.arithmetic import add, sub
from volta_fn.primitives.elementwise.cast import convert_element_type
from volta_fn.primitives.elementwise.selection import bitwise_and, ge, lt, select
from volta_fn.settings import current as settings

# Contraction: `dot_general`, the sum of products over pairs of axes.
#
# The axes of an operand are *batch* axes (paired, and kept in the result), *contracting* axes (paired, and summed over) or *free* axes.
# The result has the batch axes first, then the free axes of the left operand, then those of the right one. Both derivatives are
# contractions.

_FLOAT32 = np.dtype(np.float32)

Axes = tuple[int, ...]
DotDimensionNumbers = tuple[tuple[Axes, Axes], tuple[Axes, Axes]]


class Precision(enum.Enum):
    """The precision of multiplication on a device.

    Targets compute in the operands' own dtype (float16 and bfloat16 sum in float32), as `HIGHEST` asks for. `DEFAULT` and `HIGH` let a
    GPU's matrix units round operands of float32 to TensorFloat-32, which has 11 significant bits. The name "bfloat16_3x" lets them be
    rounded to sums of two bfloat16 numbers, with 16 significant bits, whose three larger products are added. Products and
    convolutions without a precision have that of `jax_default_matmul_precision`, or else `HIGHEST`.
    """

    DEFAULT = 0
    HIGH = 1
    HIGHEST = 2


#: JAX's names of algorithms: the dtypes that operands are rounded to, and that of the sums. Products are at least as precise as each
#: promises: no target rounds below the dtypes of the operands and of the result, but float32 as `Precision` says.
DotAlgorithmPreset = enum.Enum(
    "DotAlgorithmPreset",
    "DEFAULT ANY_F8_ANY_F8_F32 ANY_F8_ANY_F8_F32_FAST_ACCUM ANY_F8_ANY_F8_ANY ANY_F8_ANY_F8_ANY_FAST_ACCUM F16_F16_F16 F16_F16_F32 "
    "BF16_BF16_BF16 BF16_BF16_F32 BF16_BF16_F32_X3 BF16_BF16_F32_X6 BF16_BF16_F32_X9 TF32_TF32_F32 TF32_TF32_F32_X3 F32_F32_F32 "
    "F64_F64_F64",
    module=__name__,
)


class AccuracyMode(enum.Enum):
    """The accuracy of an elementwise function; all code here is of the highest.

    >>> vf.lax.exp(0.0, accuracy=vf.lax.AccuracyMode.HIGHEST)
    Array(1., dtype=float32, weak_type=True)
    """

    HIGHEST = 1
    DEFAULT = 2


class Tolerance(NamedTuple):
    """The errors that a caller accepts, the last one in units in the last place.

    >>> vf.lax.exp(0.0, accuracy=vf.lax.Tolerance(rtol=1e-3))
    Array(1., dtype=float32, weak_type=True)
    """

    atol: float = 0.0
    rtol: float = 0.0
    ulps: int = 0


class DotAlgorithm(NamedTuple):
    """Name the dtypes that a product's operands are rounded to, and of its sums.

    It is a lower bound: no target rounds below the dtypes of the operands and of the result for it.

    >>> import numpy as np
    >>> algorithm = vf.lax.DotAlgorithm(np.float16, np.float16, np.float32)
    >>> vf.lax.dot(vf.numpy.ones(3, "float16"), vf.numpy.ones(3, "float16"), precision=algorithm)
    Array(3., dtype=float16)
    """

    lhs_precision_type: Any
    rhs_precision_type: Any
    accumulation_type: Any
    lhs_component_count: int = 1
    rhs_component_count: int = 1
    num_primitive_operations: int = 1
    allow_imprecise_accumulation: bool = False


#: The type of the argument `precision`: a precision or its name, or a pair of them, for either operand.
PrecisionLike = str | Precision | DotAlgorithm | DotAlgorithmPreset | tuple[str, str] | tuple[Precision, Precision] | None

_PRECISIONS = (
    *(None, "float32", "fastest", "bfloat16", "bfloat16_3x", "tensorfloat32"),
    *(*Precision, *(p.name.lower() for p in Precision)),
    *(*DotAlgorithmPreset, *DotAlgorithmPreset.__members__),
)


#: The parameters of products whose operands may be rounded to 11 significant bits, or to sums of two bfloat16 numbers each, whose three
#: larger products are added.
TENSORFLOAT32, BFLOAT16_3X = "tensorfloat32", "bfloat16_3x"

#: The precisions that allow it.
_ROUNDED = frozenset(
    [
        *("default", "high", "fastest", "bfloat16", "tensorfloat32", Precision.DEFAULT, Precision.HIGH),
        *(DotAlgorithmPreset[name] for name in ("DEFAULT", "BF16_BF16_BF16", "BF16_BF16_F32", "TF32_TF32_F32")),
        *("BF16_BF16_BF16", "BF16_BF16_F32", "TF32_TF32_F32"),
    ]
)
_ROUNDED_TO_PAIRS = frozenset(["bfloat16_3x", "BF16_BF16_F32_X3", DotAlgorithmPreset["BF16_BF16_F32_X3"]])


def rounding(precision: Any) -> str:
    """Return how a precision lets operands of float32 be rounded; "" if not."""
    pair = precision if isinstance(precision, (tuple, list)) else (precision,)
    if any(isinstance(each, DotAlgorithm) or each not in _ROUNDED | _ROUNDED_TO_PAIRS for each in pair):
        return ""
    return BFLOAT16_3X if any(each in _ROUNDED_TO_PAIRS for each in pair) else TENSORFLOAT32


def check_precision(name: str, precision: Any) -> None:
    """Raise `ArgumentError` unless given a `Precision`, its name, or a pair of them."""
    if isinstance(precision, DotAlgorithm):
        return
    for item in precision if isinstance(precision, (tuple, list)) else (precision,):
        if item not in _PRECISIONS:
            names = ", ".join(repr(p) for p in _PRECISIONS if not isinstance(p, DotAlgorithmPreset))
            raise ArgumentError(f"{name}: precision={precision!r} is none of {names}; leave it out, products are exact to the dtype")


#: Kinds of numbers, each of which the next one has, too.
_KINDS = (dtypes.BOOL, dtypes.INTEGERS, dtypes.FLOATS, dtypes.COMPLEX)


def _kind(dtype: np.dtype) -> int:
    return next((number for number, kind in enumerate(_KINDS) if dtype in kind), len(_KINDS))


def in_kind_of(preferred_element_type: np.dtype | None, lhs: Array, rhs: Array) -> tuple[Array, Array]:
    """Return the operands of a product, converted if its sums are of another kind.

    That must be one with the operands' numbers, and no narrower: floats for integers, say. Otherwise they are returned as they are.
    """
    if preferred_element_type is None or {lhs.dtype, rhs.dtype} - dtypes.ALL:
        return lhs, rhs
    dtype = dtypes.promote_types(lhs.dtype, rhs.dtype)
    if not _kind(dtype) < _kind(preferred_element_type) < len(_KINDS) or preferred_element_type.itemsize < dtype.itemsize:
        return lhs, rhs
    return convert_element_type(lhs, preferred_element_type), convert_element_type(rhs, preferred_element_type)


def product_dtype(name: str, lhs: ShapedArray, rhs: ShapedArray, preferred_element_type: np.dtype | None) -> np.dtype:
    """Return the dtype of sums of products.

    It is that of the operands, or `preferred_element_type`, which must be of its kind and no narrower; `in_kind_of` converts operands.
    """
    for operand in (lhs, rhs):
        if operand.dtype not in dtypes.ALL:
            raise DTypeError(f"{name} is not defined for {operand.dtype.name}")
    dtype = lhs.dtype if lhs.dtype == rhs.dtype else dtypes.promote_types(lhs.dtype, rhs.dtype)
    if preferred_element_type is None or preferred_element_type == dtype:
        return dtype
    preferred = preferred_element_type
    if _kind(preferred) != _kind(dtype) or preferred.itemsize < dtype.itemsize:
        raise DTypeError(
            f"{name}: preferred_element_type={preferred.name} must be of the kind of {dtype.name}, the operands' dtype, or of one with "
            "more numbers, and no narrower. Convert the operands first, or the result afterwards."
        )
    return preferred


def _dot_abstract(
    lhs: ShapedArray,
    rhs: ShapedArray,
    *,
    dimension_numbers: DotDimensionNumbers,
    preferred_element_type: np.dtype | None,
    precision: str | None = None,
) -> ShapedArray:
    (lhs_contract, rhs_contract), (lhs_batch, rhs_batch) = dimension_numbers
    for kind, left, right in (("contracting", lhs_contract, rhs_contract), ("batch", lhs_batch, rhs_batch)):
        if len(left) != len(right):
            raise ShapeError(f"dot_general pairs {kind} dimensions, got {left} of lhs and {right} of rhs")
        for i, j in zip(left, right, strict=True):
            if lhs.shape[i] != rhs.shape[j]:
                raise ShapeError(
                    f"dot_general: {kind} dimension {i} of lhs has size {lhs.shape[i]}, but its partner, dimension {j} of rhs, has size "
                    f"{rhs.shape[j]}; lhs has shape {lhs.shape} and rhs {rhs.shape}, paired as {kind} {left} with {right}. "
                    "Transpose an operand or name other dimensions."
                )
    for name, contract, batch in (("lhs", lhs_contract, lhs_batch), ("rhs", rhs_contract, rhs_batch)):
        if set(contract) & set(batch):
            raise ShapeError(f"dot_general: dimensions of {name} are both contracting {contract} and batch {batch}; name each once")
    shape = [lhs.shape[i] for i in lhs_batch]
    shape += [lhs.shape[i] for i in _free(lhs.ndim, lhs_contract, lhs_batch)]
    shape += [rhs.shape[i] for i in _free(rhs.ndim, rhs_contract, rhs_batch)]
    dtype = product_dtype("dot_general", lhs, rhs, preferred_element_type)
    return ShapedArray(tuple(shape), dtype, lhs.weak_type and rhs.weak_type and preferred_element_type is None)


def _free(ndim: int, contract: Axes, batch: Axes) -> Axes:
    return tuple([i for i in range(ndim) if i not in contract and i not in batch])


@RuleOf
def bilinear_jvp(primitive: Primitive) -> Callable[..., Any]:
    """Return the product rule of a primitive that is linear in its first two operands.

    Others, such as sizes of groups, have no tangents.
    """

    def jvp(primals: Sequence[Array], tangents: Sequence[Any], **params: Any) -> tuple[Array, Any]:
        (lhs, rhs, *others), (lhs_tangent, rhs_tangent, *_) = primals, tangents
        out = bind(primitive, lhs, rhs, *others, **params)
        terms = []
        if type(lhs_tangent) is not Zero:
            terms.append(bind(primitive, lhs_tangent, rhs, *others, **params))
        if type(rhs_tangent) is not Zero:
            terms.append(bind(primitive, lhs, rhs_tangent, *others, **params))
        return with_tangent(out, terms)

    return jvp


def with_tangent(out: Array, terms: Sequence[Array]) -> tuple[Array, Any]:
    """Return a result and its tangent, the sum of one or two terms, or zero."""
    if not terms:
        return no_tangents(out)
    return out, terms[0] if len(terms) == 1 else add(*terms)


def _dot_transpose(
    ct: Array,
    lhs: Any,
    rhs: Any,
    *,
    dimension_numbers: DotDimensionNumbers,
    preferred_element_type: np.dtype | None,
    precision: str | None = None,
) -> list[Array | None]:
    """Contract the result's cotangent with the other operand's free axes.

    Each product is formed in the order that leaves its axes nearest to the operand's own.
    """
    (lhs_contract, rhs_contract), (lhs_batch, rhs_batch) = dimension_numbers
    lhs_free, rhs_free = _free(lhs.ndim, lhs_contract, lhs_batch), _free(rhs.ndim, rhs_contract, rhs_batch)
    batch, first = tuple(range(len(lhs_batch))), len(lhs_batch) + len(lhs_free)
    if type(lhs) is Linear:
        ct_axes = tuple(range(first, first + len(rhs_free)))
        out = _product(ct, rhs, ((ct_axes, rhs_free), (batch, rhs_batch)), preferred_element_type, precision)
        partners = sorted(range(len(rhs_contract)), key=rhs_contract.__getitem__)
        axes_of_out = (*lhs_batch, *lhs_free, *[lhs_contract[i] for i in partners])
        return [_like(out, axes_of_out, lhs), None]
    ct_axes = tuple(range(len(lhs_batch), first))
    out = _product(lhs, ct, ((lhs_free, ct_axes), (lhs_batch, batch)), preferred_element_type, precision)
    partners = sorted(range(len(lhs_contract)), key=lhs_contract.__getitem__)
    axes_of_out = (*rhs_batch, *[rhs_contract[i] for i in partners], *rhs_free)
    return [None, _like(out, axes_of_out, rhs)]


def _product(
    lhs: Array, rhs: Array, dimension_numbers: DotDimensionNumbers, preferred_element_type: np.dtype | None, precision: str | None
) -> Array:
    rounding = {} if precision is None else {"precision": precision}
    return bind(dot_general_p, lhs, rhs, dimension_numbers=dimension_numbers, preferred_element_type=preferred_element_type, **rounding)


def _like(out: Array, axes_of_out: Axes, operand: Linear) -> Array:
    """Return `out`, whose axis i is axis ``axes_of_out[i]``, like `operand`."""
    transposed = transpose(out, [axes_of_out.index(i) for i in range(len(axes_of_out))])
    return transposed if transposed.dtype == operand.dtype else convert_element_type(transposed, operand.dtype)


def _dot_batch(
    axis: AxisData,
    args: Sequence[Array],
    dims: Sequence[int | None],
    *,
    dimension_numbers: DotDimensionNumbers,
    preferred_element_type: np.dtype | None,
    precision: str | None = None,
) -> tuple[Array, int]:
    """Batch a contraction: by a batch axis for both sides, a free axis for one."""
    (lhs, rhs), (lhs_dim, rhs_dim) = args, dims
    (lhs_contract, rhs_contract), (lhs_batch, rhs_batch) = dimension_numbers
    if lhs_dim is not None:
        lhs_contract, lhs_batch = _shifted(lhs_contract, lhs_dim), _shifted(lhs_batch, lhs_dim)
    if rhs_dim is not None:
        rhs_contract, rhs_batch = _shifted(rhs_contract, rhs_dim), _shifted(rhs_batch, rhs_dim)
    if lhs_dim is not None and rhs_dim is not None:
        lhs_batch, rhs_batch, out_dim = (lhs_dim, *lhs_batch), (rhs_dim, *rhs_batch), 0
    elif lhs_dim is not None:
        out_dim = len(lhs_batch) + _free(lhs.ndim, lhs_contract, lhs_batch).index(lhs_dim)
    else:
        lhs_free = lhs.ndim - len(lhs_contract) - len(lhs_batch)
        out_dim = len(lhs_batch) + lhs_free + _free(rhs.ndim, rhs_contract, rhs_batch).index(rhs_dim or 0)
    return _product(lhs, rhs, ((lhs_contract, rhs_contract), (lhs_batch, rhs_batch)), preferred_element_type, precision), out_dim


def _shifted(axes: Axes, dim: int) -> Axes:
    return tuple([i + (i >= dim) for i in axes])


dot_general_p = Primitive("dot_general", _dot_abstract, jvp=bilinear_jvp, transpose=_dot_transpose, bilinear=True, batch=_dot_batch)


def dot_general(
    lhs: Any,
    rhs: Any,
    dimension_numbers: tuple[tuple[Sequence[int], Sequence[int]], tuple[Sequence[int], Sequence[int]]],
    precision: Any = None,
    preferred_element_type: Any = None,
    *,
    out_sharding: Any = None,
) -> Array:
    """Contract two arrays: sums of products over pairs of axes.

    `dimension_numbers` is ``((lhs_contracting, rhs_contracting), (lhs_batch, rhs_batch))``. The result has the batch axes, then the
    remaining axes of `lhs`, then those of `rhs`. Its dtype is the operands' (of two dtypes, the one they promote to), or
    `preferred_element_type`, a wider one of the same kind, or one of floats for integers, in which the products are then summed.
    float16 and bfloat16 sum in float32 and are rounded once; integers wrap around; bools combine as "any of (a and b)". `precision` may
    let a GPU's matrix units round operands of float32 (see `Precision`).

    Raises `ShapeError` for axes that do not pair up, and `DTypeError` for a preferred dtype that is narrower, or of a kind without the
    operands' numbers.

    >>> x, y = vf.numpy.ones((8, 2, 3)), vf.numpy.ones((8, 3, 5))
    >>> vf.lax.dot_general(x, y, (((2,), (1,)), ((0,), (0,)))).shape
    (8, 2, 5)
    """
    left, right = as_value(lhs), as_value(rhs)
    if settings.permissive and {left.dtype, right.dtype} & dtypes.STORAGE:
        return constrained(_product_of_stored(left, right, dimension_numbers, precision, preferred_element_type), out_sharding)
    if preferred_element_type is not None:
        left, right = in_kind_of(dtypes.as_dtype(preferred_element_type), left, right)
    if left.dtype is not right.dtype and not settings.permissive:  # JAX's lax multiplies them in any mode
        check_promotion("dot_general", (left, right), dtypes.promote_types(left.dtype, right.dtype))
    if precision is None:
        precision = settings.matmul_precision
    else:
        check_precision("dot_general", precision)
    try:
        hash(dimension_numbers)
    except TypeError:
        dimension_numbers = _frozen(dimension_numbers)
    params = product_params(dimension_numbers, left.aval, right.aval, preferred_element_type)
    if precision is not None and left.dtype == right.dtype == _FLOAT32 and (rounded := rounding(precision)):
        params = params | {"precision": rounded}
    return constrained(bind(dot_general_p, left, right, **params), out_sharding)


def _product_of_stored(left: Array, right: Array, dimension_numbers: Any, precision: Any, preferred_element_type: Any) -> Array:
    """Multiply operands of dtypes that only store numbers in a wider one, as JAX does."""
    dtype = left.dtype if preferred_element_type is None else dtypes.as_dtype(preferred_element_type)
    floats = {left.dtype, right.dtype, dtype} & (dtypes.STORAGE_FLOATS | dtypes.FLOATS)
    wide = np.dtype(np.float32 if floats else np.int32)
    lhs, rhs = convert_element_type(left, wide), convert_element_type(right, wide)
    return convert_element_type(dot_general(lhs, rhs, dimension_numbers, precision), dtype)


def _frozen(numbers: Any) -> Any:
    """Replace lists and NumPy arrays in `numbers` by tuples, for hashing."""
    return tuple([_frozen(n) for n in numbers]) if isinstance(numbers, (list, tuple, np.ndarray)) else numbers


@lru_cache(maxsize=4096)
def product_params(numbers: Any, lhs: ShapedArray, rhs: ShapedArray, preferred_element_type: Any) -> dict[str, Any]:
    """Return the parameters of `dot_general_p`, shared and not to be modified."""
    dtype = None if preferred_element_type is None else dtypes.as_dtype(preferred_element_type)
    if dtype is None and lhs.dtype != rhs.dtype:
        dtype = dtypes.promote_types(lhs.dtype, rhs.dtype)
    return {"dimension_numbers": _canonical_numbers(numbers, lhs.ndim, rhs.ndim), "preferred_element_type": dtype}


def _canonical_numbers(numbers: Any, lhs_ndim: int, rhs_ndim: int) -> DotDimensionNumbers:
    try:
        (lhs_contract, rhs_contract), (lhs_batch, rhs_batch) = numbers
    except (TypeError, ValueError):
        raise ArgumentError(
            f"dot_general: dimension_numbers must be ((lhs_contracting, rhs_contracting), (lhs_batch, rhs_batch)), got {numbers!r}"
        ) from None
    left = [canonical_axes(tuple(axes), lhs_ndim, "dimension_numbers of lhs") for axes in (lhs_contract, lhs_batch)]
    right = [canonical_axes(tuple(axes), rhs_ndim, "dimension_numbers of rhs") for axes in (rhs_contract, rhs_batch)]
    return (left[0], right[0]), (left[1], right[1])


def dot(
    lhs: Any,
    rhs: Any,
    *,
    dimension_numbers: Any = None,
    precision: Any = None,
    preferred_element_type: Any = None,
    out_sharding: Any = None,
) -> Array:
    """Multiply vectors and matrices in any combination.

    With `dimension_numbers`, the same as `dot_general`. Raises `ShapeError` for operands of other ranks, or sizes that do not fit.

    >>> vf.lax.dot(vf.numpy.ones((2, 3)), vf.numpy.ones(3))
    Array([3., 3.], dtype=float32)
    """
    left, right = as_value(lhs), as_value(rhs)
    if dimension_numbers is None:
        dimension_numbers = _dot_numbers(left.aval, right.aval)
    return constrained(dot_general(left, right, dimension_numbers, precision, preferred_element_type), out_sharding)


@lru_cache(maxsize=1024)
def _dot_numbers(lhs: ShapedArray, rhs: ShapedArray) -> DotDimensionNumbers:
    if not {lhs.ndim, rhs.ndim} <= {1, 2} or lhs.shape[-1] != rhs.shape[0]:
        raise ShapeError(
            f"dot takes vectors and matrices whose inner sizes agree, got shapes {lhs.shape} and {rhs.shape}; "
            "use volta_fn.numpy.matmul for stacks of matrices and dot_general for anything else"
        )
    return ((lhs.ndim - 1,), (0,)), ((), ())


def batch_matmul(lhs: Any, rhs: Any, precision: Any = None) -> Array:
    """Multiply two stacks of matrices; all leading axes are batch axes.

    Raises `ShapeError` unless both operands have the same rank, two or more, and the same leading sizes.

    >>> vf.lax.batch_matmul(vf.numpy.ones((4, 2, 3)), vf.numpy.ones((4, 3, 5))).shape
    (4, 2, 5)
    """
    left, right = as_value(lhs), as_value(rhs)
    if left.ndim != right.ndim or left.ndim < 2:
        raise ShapeError(f"batch_matmul takes operands of one rank, two or more, got shapes {left.shape} and {right.shape}")
    stack = tuple(range(left.ndim - 2))
    return dot_general(left, right, (((left.ndim - 1,), (left.ndim - 2,)), (stack, stack)), precision)


# Ragged contraction: `ragged_dot`, where an axis of the left operand has groups.
#
# The forms that mixtures of experts need are the primitive `ragged_dot`: rows in groups with a matrix for each, and its derivative by the
# matrices, a sum of outer products for each group. Targets expand it to a loop over blocks of rows of one group each (Gale et al. 2022), so
# that every row meets the matrix of its group only. Other forms are contractions of operands masked by group.


class RaggedDotDimensionNumbers(NamedTuple):
    """The axes of a ragged contraction.

    Args:
        dot_dimension_numbers: those of `dot_general`, the group axis of `rhs` aside.
        lhs_ragged_dimensions: the one axis of `lhs` that falls into groups.
        rhs_group_dimensions: the axis of `rhs` with an entry for each group, if the ragged axis is free; else nothing.
    """

    dot_dimension_numbers: Any
    lhs_ragged_dimensions: Sequence[int]
    rhs_group_dimensions: Sequence[int]


#: Rows of `lhs` in groups, and a matrix of `rhs` for each group.
_BASIC = RaggedDotDimensionNumbers((((1,), (1,)), ((), ())), (0,), (0,))


def ragged_dot(
    lhs: Any,
    rhs: Any,
    group_sizes: Any,
    precision: Any = None,
    preferred_element_type: Any = None,
    group_offset: Any = None,
    out_sharding: Any = None,
) -> Array:
    """Multiply groups of consecutive rows, each by a matrix of its own.

    Args:
        lhs: rows, of shape (m, k).
        rhs: a matrix for each group, of shape (g, k, n).
        group_sizes: how many rows each group has: integers of shape (g,). Rows beyond the last group give zeros.
        precision: as in `dot_general`.
        preferred_element_type: the dtype of the sums.
        group_offset: must be None.

    Returns an array of shape (m, n). Raises as `ragged_dot_general`.

    >>> matrices = jnp.array([[[1.0]], [[10.0]]])
    >>> vf.lax.ragged_dot(jnp.array([[1.0], [2.0], [3.0]]), matrices, jnp.array([2, 1])).ravel()
    Array([ 1.,  2., 30.], dtype=float32)
    """
    return constrained(ragged_dot_general(lhs, rhs, group_sizes, _BASIC, precision, preferred_element_type, group_offset), out_sharding)


def ragged_dot_general(
    lhs: Any,
    rhs: Any,
    group_sizes: Any,
    ragged_dot_dimension_numbers: RaggedDotDimensionNumbers,
    precision: Any = None,
    preferred_element_type: Any = None,
    group_offset: Any = None,
    out_sharding: Any = None,
) -> Array:
    """Contract pairs of axes, where an axis of `lhs` falls into groups.

    A free ragged axis (m) takes another entry of `rhs` for each group; a contracting one (k) is summed group by group, and the result has a
    leading axis of groups; a ragged batch axis changes nothing.

    Args:
        lhs: of shape (b…, m…, k…), in any order of axes.
        rhs: of shape (g, b…, k…, n…) if the ragged axis is free, else (b…, k…, n…), in any order of axes.
        group_sizes: integers of shape (g,), or with leading axes for those of `lhs` that stand outside the ragged axis: the batch axes,
            and the axes of its own kind before it.
        ragged_dot_dimension_numbers: the axes.
        precision: as in `dot_general`.
        preferred_element_type: the dtype of the sums.
        group_offset: must be None: every group is computed here.

    Raises:
        ArgumentError: a group offset, not one ragged axis, or an axis of groups of `rhs` where the ragged one is not free.
        DTypeError: group sizes that are not integers.
        ShapeError: shapes that do not fit.

    >>> numbers = vf.lax.RaggedDotDimensionNumbers((((1,), (0,)), ((), ())), [1], [])
    >>> vf.lax.ragged_dot_general(jnp.array([[1.0, 2.0, 3.0]]), jnp.ones((3, 1)), jnp.array([2, 1]), numbers).ravel()
    Array([3., 3.], dtype=float32)
    """
    x, y, sizes = as_value(lhs), as_value(rhs), as_value(group_sizes)
    numbers = ragged_dot_dimension_numbers
    _check(sizes, numbers, group_offset)
    (lhs_contract, rhs_contract), (lhs_batch, rhs_batch) = [tuple(map(tuple, pair)) for pair in numbers.dot_dimension_numbers]
    (ragged,) = numbers.lhs_ragged_dimensions
    groups = tuple(numbers.rhs_group_dimensions)
    if groups and ragged in (*lhs_contract, *lhs_batch):
        raise ArgumentError(f"ragged_dot: rhs has no axis of groups unless the ragged axis is free, got rhs_group_dimensions={groups}")
    if ragged in lhs_batch:
        _check_sizes(x, sizes, [i for i in lhs_batch if i < ragged])
        return constrained(dot_general(x, y, numbers.dot_dimension_numbers, precision, preferred_element_type), out_sharding)
    kind = lhs_contract if ragged in lhs_contract else [i for i in range(x.ndim) if i not in (*lhs_contract, *lhs_batch)]
    outer = (*lhs_batch, *[i for i in kind if i < ragged])
    _check_sizes(x, sizes, outer)
    if x.ndim == 2 and sizes.ndim == 1 and not lhs_batch and len(lhs_contract) == 1:
        if ragged in lhs_contract and y.ndim == 2:
            rows = moveaxis(x, ragged, 0), moveaxis(y, rhs_contract[0], 0)
            return constrained(_bind(*rows, sizes, SUMS, precision, preferred_element_type), out_sharding)
        if ragged not in lhs_contract and y.ndim == 3 and len(groups) == 1:
            matrices = moveaxis(y, groups[0], 0)
            transposed = rhs_contract[0] > next(i for i in range(3) if i not in (groups[0], rhs_contract[0]))
            form = TRANSPOSED_ROWS if transposed else ROWS
            return constrained(_bind(moveaxis(x, ragged, 0), matrices, sizes, form, precision, preferred_element_type), out_sharding)
    members = _members(x, sizes, ragged, outer)
    grouped = _masked(broadcast_in_dim(x, members.shape, range(1, members.ndim)), members)
    contract, batch = [i + 1 for i in lhs_contract], [i + 1 for i in lhs_batch]
    if ragged in lhs_contract:
        out = dot_general(grouped, y, ((contract, rhs_contract), (batch, rhs_batch)), precision, preferred_element_type)
        return constrained(moveaxis(out, len(batch), 0), out_sharding)
    return constrained(
        dot_general(grouped, y, (([0, *contract], [*groups, *rhs_contract]), (batch, rhs_batch)), precision, preferred_element_type),
        out_sharding,
    )


def _check(sizes: Array, numbers: RaggedDotDimensionNumbers, group_offset: Any) -> None:
    if group_offset is not None:
        raise ArgumentError("ragged_dot: group_offset must be None; give the groups to compute, and their sizes, alone")
    if len(numbers.lhs_ragged_dimensions) != 1:
        raise ArgumentError(f"ragged_dot: lhs_ragged_dimensions names one axis, got {numbers.lhs_ragged_dimensions}")
    if sizes.dtype not in dtypes.INTEGERS:
        raise DTypeError(f"ragged_dot: group_sizes must be integers, got {sizes.dtype.name}")
    if not sizes.ndim:
        raise ShapeError("ragged_dot: group_sizes needs an axis of groups, got a scalar")


def _check_sizes(x: Array, sizes: Array, outer: Sequence[int]) -> None:
    expected = tuple([x.shape[i] for i in outer])
    if sizes.ndim > 1 and sizes.shape[:-1] != expected:
        raise ShapeError(
            f"ragged_dot: group_sizes of shape {sizes.shape} fits neither (groups,) nor {(*expected, sizes.shape[-1])}, "
            f"which has the axes {tuple(outer)} of lhs before it"
        )


def _members(x: Array, sizes: Array, ragged: int, outer: Sequence[int]) -> Array:
    """Return, by group and element of `x`, whether the element belongs to the group."""
    last = sizes.ndim - 1
    ends = moveaxis(cumsum(sizes, last), last, 0)
    starts = sub(ends, moveaxis(sizes, last, 0))
    shape = (ends.shape[0], *x.shape)
    index = broadcasted_iota(sizes.dtype, shape, ragged + 1)
    axes = (0,) if sizes.ndim == 1 else (0, *[i + 1 for i in outer])
    start, end = [broadcast_in_dim(bound, shape, axes) for bound in (starts, ends)]
    return bitwise_and(ge(index, start), lt(index, end))


def _masked(x: Array, keep: Array) -> Array:
    return select(keep, x, full_like(x, np.zeros((), x.dtype)))


# The primitive.
#
# ``ragged_dot(x, y, sizes)``, of rows x of shape (m, k), is one of three:
#
# - "rows": y of shape (g, k, n) gives each row times its group's matrix, (m, n);
# - "transposed rows": y of shape (g, n, k) gives each row times its group's matrix transposed, (m, n);
# - "sums": y of shape (m, n) gives for each group the sum of its rows' outer products, (g, k, n).
#
# It is linear in x and in y, and its transposes are again these three. Rows beyond the last group are zeros, or belong to no sum. `rounds`
# says whether a GPU may round the operands to TensorFloat-32 (`Precision`).

ROWS, TRANSPOSED_ROWS, SUMS = "rows", "transposed rows", "sums"


def _bind(x: Array, y: Array, sizes: Array, kind: str, precision: Any, dtype: Any) -> Array:
    preferred = None if dtype is None else dtypes.as_dtype(dtype)
    x, y = in_kind_of(preferred, x, y)
    result = product_dtype("ragged_dot", x.aval, y.aval, preferred)
    if precision is not None:
        check_precision("ragged_dot", precision)
    precision = settings.matmul_precision if precision is None else precision
    rounds = precision is not None and x.dtype == y.dtype == np.float32 and rounding(precision) == TENSORFLOAT32
    out: Array = bind(ragged_dot_p, x, y, sizes, kind=kind, rounds=rounds, dtype=result)
    return out


def _abstract(x: ShapedArray, y: ShapedArray, sizes: ShapedArray, *, kind: str, rounds: bool, dtype: np.dtype) -> ShapedArray:
    if kind not in (ROWS, TRANSPOSED_ROWS, SUMS):
        raise ArgumentError(f"ragged_dot: kind={kind!r} is none of {ROWS!r}, {TRANSPOSED_ROWS!r} and {SUMS!r}")
    shape: tuple[int, ...] = ()
    if (x.ndim, y.ndim, sizes.ndim) == (2, 2 if kind == SUMS else 3, 1):
        (m, k), (g,) = x.shape, sizes.shape
        if kind == SUMS and y.shape[0] == m:
            shape = (g, k, y.shape[1])
        elif kind != SUMS and (y.shape[0], y.shape[2 if kind == TRANSPOSED_ROWS else 1]) == (g, k):
            shape = (m, y.shape[1 if kind == TRANSPOSED_ROWS else 2])
    if not shape:
        raise ShapeError(f"ragged_dot: rows {x}, {y} and sizes {sizes} of groups do not fit together")
    return ShapedArray(shape, product_dtype("ragged_dot", x, y, dtype))


def _evaluate(x: np.ndarray, y: np.ndarray, sizes: np.ndarray, *, kind: str, rounds: bool, dtype: np.dtype) -> np.ndarray:
    wide = dtypes.accumulator(dtype) if dtype in dtypes.FLOATS else dtype
    ends = np.minimum(np.cumsum(sizes.astype(np.int64)), len(x))
    x, y = x.astype(wide, copy=False), y.astype(wide, copy=False)
    shape: tuple[int, ...] = (
        (len(sizes), x.shape[1], y.shape[1]) if kind == SUMS else (len(x), y.shape[1 if kind == TRANSPOSED_ROWS else 2])
    )
    out = np.zeros(shape, wide)
    for group, (start, end) in enumerate(zip([0, *ends[:-1]], ends, strict=True)):
        if kind == SUMS:
            out[group] = x[start:end].T @ y[start:end]
        else:
            out[start:end] = x[start:end] @ (y[group].T if kind == TRANSPOSED_ROWS else y[group])
    return out.astype(dtype, copy=False)


def _transpose(ct: Array, x: Any, y: Any, sizes: Array, *, kind: str, rounds: bool, dtype: np.dtype) -> list[Any]:
    def product(left: Array, right: Array, kind: str, like: Any) -> Array:
        wide = dtypes.promote_types(left.dtype, right.dtype)
        out: Array = bind(ragged_dot_p, left, right, sizes, kind=kind, rounds=rounds, dtype=wide)
        return out if wide == like.dtype else convert_element_type(out, like.dtype)

    if type(x) is Linear:
        if kind == SUMS:
            return [product(y, ct, TRANSPOSED_ROWS, x), None, None]
        return [product(ct, y, TRANSPOSED_ROWS if kind == ROWS else ROWS, x), None, None]
    if kind == SUMS:
        return [None, product(x, ct, ROWS, y), None]
    left, right = (x, ct) if kind == ROWS else (ct, x)
    return [None, product(left, right, SUMS, y), None]


def _batch(axis: AxisData, args: Sequence[Array], dims: Sequence[int | None], **params: Any) -> tuple[Array, int]:
    """Batch by more rows in each group, or by a loop over examples."""
    x, y, sizes = args
    if dims[1] is None and dims[2] is None and params["kind"] != SUMS:
        rows = moveaxis(x, dims[0] or 0, 1)
        together = reshape(rows, (rows.shape[0] * axis.size, rows.shape[2]))
        out = bind(ragged_dot_p, together, y, sizes * sizes.dtype.type(axis.size), **params)
        return reshape(out, (rows.shape[0], axis.size, out.shape[1])), 1
    stacked = tuple(stacked_in_front(axis, args, dims))
    return _SCAN.scan(lambda _, each: (None, bind(ragged_dot_p, *each, **params)), None, stacked)[1], 0


ragged_dot_p = Primitive("ragged_dot", _abstract, evaluate=_evaluate, jvp=bilinear_jvp, transpose=_transpose, batch=_batch)


def masked(x: Array, y: Array, sizes: Array, *, kind: str, rounds: bool, dtype: np.dtype) -> Array:
    """Return what the primitive means, by rows masked by group.

    Every row meets every matrix.
    """
    members = _members(x, sizes, 0, ())
    grouped = _masked(broadcast_in_dim(x, members.shape, (1, 2)), members)
    precision = "default" if rounds else "highest"
    if kind == SUMS:
        return dot_general(grouped, y, (((1,), (0,)), ((), ())), precision, dtype)
    contracted = 2 if kind == TRANSPOSED_ROWS else 1
    return dot_general(grouped, y, (((0, 2), (0, contracted)), ((), ())), precision, dtype)


# The expansion: a loop over blocks of rows of one group each.

#: Loaded when a ragged contraction is expanded: it loads pytrees.
_SCAN = deferred("volta_fn.primitives.scan")

#: The most rows of a block.
_BLOCK = 128


def block_size(rows: int, groups: int) -> int:
    """Return how many rows a block has: a power of two near the mean of a group."""
    return 1 if rows <= groups else min(1 << (rows // groups).bit_length() - 1, _BLOCK)


def expanded_ragged_dot(x: Array, y: Array, sizes: Array, *, kind: str, rounds: bool, dtype: np.dtype) -> Array:
    """Return what the primitive means, by blocks of rows of one group."""
    rows, groups = x.shape[0], sizes.shape[0]
    shape = ragged_dot_p.abstract(x.aval, y.aval, sizes.aval, kind=kind, rounds=rounds, dtype=dtype).shape
    precision = "default" if rounds else "highest"
    wide = dtypes.accumulator(dtype) if dtype in dtypes.FLOATS else dtype
    zero = np.zeros((), wide if kind == SUMS else dtype)
    if not rows or not groups or not x.shape[1] or 0 in shape:
        return full_like(x, np.zeros((), dtype), dtype, shape)
    block = block_size(rows, groups)
    count = min(rows, rows // block + groups)  # no more blocks, however rows are distributed
    ends = cumsum(sizes.astype(np.int32), 0).clip(0, rows)
    starts = concatenate([ends[:1] * 0, ends[:-1]], 0)
    blocks = (ends - starts + (block - 1)) // block
    last_blocks = cumsum(blocks, 0)
    number = broadcasted_iota(np.dtype(np.int32), (count,), 0)
    group = (number[:, None] >= last_blocks).astype(np.int32).sum(1).clip(0, groups - 1)
    row = (starts + (blocks - last_blocks) * block)[group][:, None] + number[:, None] * block
    row = row + broadcasted_iota(np.dtype(np.int32), (1, block), 1)
    inside = (row < ends[group][:, None]) & (number < last_blocks[-1])[:, None]
    row = row.clip(0, rows - 1)
    if kind == SUMS:

        def accumulate(sums: Array, each: tuple[Array, ...]) -> tuple[Array, None]:
            index, left, right = each
            total = add(dynamic_index_in_dim(sums, index, 0, False), dot_general(left, right, (((0,), (0,)), ((), ())), precision, wide))
            return dynamic_update_index_in_dim(sums, total, index, 0), None

        left = select(broadcast_in_dim(inside, (count, block, x.shape[1]), (0, 1)), x[row], full_like(x[row], np.zeros((), x.dtype)))
        total: Array = _SCAN.scan(accumulate, full_like(x, zero, wide, shape), (group, left, y[row]))[0]
        return convert_element_type(total, dtype)
    contracted = 1 if kind == TRANSPOSED_ROWS else 0

    def multiply(_: None, each: tuple[Array, Array]) -> tuple[None, Array]:
        index, some = each
        return None, dot_general(some, dynamic_index_in_dim(y, index, 0, False), (((1,), (contracted,)), ((), ())), precision, dtype)

    results = reshape(_SCAN.scan(multiply, None, (group, x[row]))[1], (count * block, shape[1]))
    every = broadcasted_iota(np.dtype(np.int32), (rows,), 0)
    owner = (every[:, None] >= ends).astype(np.int32).sum(1).clip(0, groups - 1)
    place = ((last_blocks - blocks) * block - starts)[owner] + every
    exists = broadcast_in_dim(every < ends[-1], shape, (0,))
    return select(exists, results[place.clip(0, count * block - 1)], full_like(x, zero, dtype, shape))
