"""Convolution: `conv_general_dilated`.

It has any rank, strides, dilation of either operand, groups and any order of dimensions.

As in networks generally, the right operand is not flipped: along every spatial axis the result is

    out[p] = sum over taps k of lhs'[p * stride + k * rhs_dilation - low] * rhs[k]

where lhs' is `lhs` with `lhs_dilation` - 1 zeros between its elements and zeros around it. Both gradients are convolutions of this form:
by `lhs` strides and left dilation are exchanged and `rhs` is flipped; by `rhs` the cotangent is the window, batch and features are
exchanged, and strides become right dilation.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from volta_fn import dtypes
from volta_fn.core.array import Array, as_value
from volta_fn.core.aval import Shape, ShapedArray, as_integer
from volta_fn.core.memory.transfer import constrained
from volta_fn.core.primitive import AxisData, Linear, Primitive
from volta_fn.core.promotion import check_promotion
from volta_fn.core.trace import bind
from volta_fn.errors import ArgumentError, ShapeError
from volta_fn.primitives.contraction import bilinear_jvp, check_precision, product_dtype
from volta_fn.primitives.data_movement.movement import broadcast, moveaxis, reshape, rev
from volta_fn.primitives.elementwise.cast import convert_element_type
from volta_fn.primitives.geometry import (
    Ints,
    Padding,
    canonical_ints,
    canonical_padding,
    check_cut,
    dilated,
    padtype_to_pads,
    window_counts,
)


class ConvDimensionNumbers(NamedTuple):
    """The order of a convolution's dimensions.

    Of `lhs` and the result (batch, feature, *spatial), of `rhs` (out feature, in feature, *spatial). In `conv_general_dilated`, strings
    such as ("NHWC", "HWIO", "NHWC") say the same.
    """

    lhs_spec: Ints
    rhs_spec: Ints
    out_spec: Ints


#: What functions take as `dimension_numbers`.
ConvGeneralDilatedDimensionNumbers = tuple[str, str, str] | ConvDimensionNumbers | None

#: How a convolution may be computed: by the algorithm that is likely the fastest; by the definition; as matrix products of patches that
#: are gathered tile by tile, or are never stored; by Winograd's transforms; by Fourier transforms. A target without an algorithm uses
#: another one: the choice changes rounding alone.
ALGORITHMS = ("auto", "direct", "im2col", "igemm", "winograd", "fft")


class _Params(NamedTuple):
    """The parameters of the primitive."""

    window_strides: Ints
    padding: Padding
    lhs_dilation: Ints
    rhs_dilation: Ints
    dimension_numbers: ConvDimensionNumbers
    feature_group_count: int = 1
    batch_group_count: int = 1
    preferred_element_type: np.dtype | None = None
    algorithm: str = "auto"

    def bind(self, lhs: Array, rhs: Array) -> Array:
        """Bind the primitive."""
        return bind(conv_general_dilated_p, lhs, rhs, **self._asdict())


def _take(shape: Shape, spec: Ints) -> Ints:
    return tuple([shape[i] for i in spec])


def _abstract(lhs: ShapedArray, rhs: ShapedArray, **params: Any) -> ShapedArray:
    p = _Params(**params)
    _check_groups(lhs, rhs, p)
    lhs_spec, rhs_spec, out_spec = p.dimension_numbers
    (batch, _, *sizes), (features, _, *taps) = _take(lhs.shape, lhs_spec), _take(rhs.shape, rhs_spec)
    counts = window_counts(tuple(sizes), tuple(taps), p.window_strides, p.padding, p.lhs_dilation, p.rhs_dilation)
    placed = dict(zip(out_spec, (batch // p.batch_group_count, features, *counts), strict=True))
    dtype = product_dtype("conv_general_dilated", lhs, rhs, p.preferred_element_type)
    _check_algorithm(p, taps, dtype)
    weak = lhs.weak_type and rhs.weak_type and p.preferred_element_type is None
    return ShapedArray(tuple([placed[i] for i in range(len(placed))]), dtype, weak)


def _check_groups(lhs: ShapedArray, rhs: ShapedArray, p: _Params) -> None:
    lhs_spec, rhs_spec, _ = p.dimension_numbers
    batch, channels = _take(lhs.shape, lhs_spec[:2])
    features, inputs = _take(rhs.shape, rhs_spec[:2])
    shapes = (
        f"lhs has shape {lhs.shape} (batch {batch}, {channels} features), rhs {rhs.shape} ({features} out features, {inputs} in features)"
    )
    groups, batch_groups = p.feature_group_count, p.batch_group_count
    if groups < 1 or batch_groups < 1 or (groups > 1 and batch_groups > 1):
        raise ShapeError(
            f"conv_general_dilated: feature_group_count={groups} and batch_group_count={batch_groups} must be positive, and one of them 1"
        )
    if channels != inputs * groups:
        raise ShapeError(
            f"conv_general_dilated: lhs must have {inputs} * {groups} features, the in features of rhs times feature_group_count; "
            f"{shapes}. Check dimension_numbers={tuple(p.dimension_numbers)}."
        )
    if features % groups or features % batch_groups or batch % batch_groups:
        raise ShapeError(
            f"conv_general_dilated: the out features of rhs must be a multiple of feature_group_count={groups} and batch_group_count="
            f"{batch_groups}, and so must the batch of lhs of the latter; {shapes}"
        )


def _check_algorithm(p: _Params, taps: Sequence[int], dtype: np.dtype) -> None:
    """Raise `ArgumentError` unless the algorithm can compute the convolution."""
    if p.algorithm not in ALGORITHMS:
        raise ArgumentError(f"conv_general_dilated: algorithm={p.algorithm!r} is none of {', '.join(map(repr, ALGORITHMS))}")
    fits = tuple(taps) in ((3, 3), (5, 5)) and {*p.window_strides, *p.lhs_dilation, *p.rhs_dilation} == {1}
    if p.algorithm == "winograd" and not (fits and dtypes.isdtype(dtype, "real floating")):
        raise ArgumentError(
            f"conv_general_dilated: algorithm='winograd' is for windows of 3x3 or 5x5 and real floating-point numbers, without strides and "
            f"dilation; got windows {tuple(taps)} of {dtype}, window_strides={p.window_strides}, lhs_dilation={p.lhs_dilation}, "
            f"rhs_dilation={p.rhs_dilation}. Use algorithm='auto'."
        )
    if p.algorithm == "fft" and not dtypes.isdtype(dtype, ("real floating", "complex floating")):
        raise ArgumentError(f"conv_general_dilated: algorithm='fft' rounds, and {dtype} is exact; use algorithm='auto'")


def _jvp(primals: Sequence[Array], tangents: Sequence[Any], **params: Any) -> tuple[Array, Any]:
    return bilinear_jvp(conv_general_dilated_p, primals, tangents, **params)


# Moving an axis into or out of another one, as groups and batches of convolutions need.


def _merge(x: Array, dim: int, axis: int, groups: int = 1) -> Array:
    """Merge dimension `dim` of `x` into `axis`, as the major axis of each group.

    `axis` is numbered without `dim`, and has `groups` equal groups.
    """
    front = moveaxis(x, dim, 0)
    count, shape = front.shape[0], front.shape[1:]
    parted = reshape(front, (count, *shape[:axis], groups, shape[axis] // groups, *shape[axis + 1 :]))
    return reshape(moveaxis(parted, 0, axis + 1), (*shape[:axis], shape[axis] * count, *shape[axis + 1 :]))


def _split(x: Array, axis: int, count: int, groups: int = 1) -> Array:
    """Split a dimension of size `count` off `axis` and move it to the front.

    The inverse of `_merge`.
    """
    shape = x.shape
    rest = shape[axis] // (groups * count)
    parted = reshape(x, (*shape[:axis], groups, count, rest, *shape[axis + 1 :]))
    return reshape(moveaxis(parted, axis + 1, 0), (count, *shape[:axis], groups * rest, *shape[axis + 1 :]))


# transpose


def _transposed(spec: Ints) -> Ints:
    return (spec[1], spec[0], *spec[2:])


def _transpose(ct: Array, lhs: Any, rhs: Any, **params: Any) -> list[Array | None]:
    p = _Params(**params)
    return [_lhs_cotangent(ct, lhs, rhs, p), None] if type(lhs) is Linear else [None, _rhs_cotangent(ct, lhs, rhs, p)]


def _axes(lhs: Shape, rhs: Shape, out: Shape, p: _Params) -> Iterable[tuple[int, int, int, int, tuple[int, int], int, int]]:
    """Yield each spatial axis: size, taps, positions, stride, padding, dilations."""
    lhs_spec, rhs_spec, out_spec = p.dimension_numbers
    sizes, taps, counts = _take(lhs, lhs_spec[2:]), _take(rhs, rhs_spec[2:]), _take(out, out_spec[2:])
    return zip(sizes, taps, counts, p.window_strides, p.padding, p.lhs_dilation, p.rhs_dilation, strict=True)


def _lhs_cotangent(ct: Array, lhs: Linear, rhs: Array, p: _Params) -> Array:
    lhs_spec, rhs_spec, out_spec = p.dimension_numbers
    groups = max(p.feature_group_count, p.batch_group_count)
    if groups > 1:
        rhs = _merge(_split(rhs, rhs_spec[0], groups), 0, rhs_spec[1])
    pads = []
    for size, taps, count, stride, (low, _), base, dilation in _axes(lhs.shape, rhs.shape, ct.shape, p):
        before = dilated(taps, dilation) - 1 - low
        pads.append((before, dilated(size, base) - 1 + dilated(taps, dilation) - dilated(count, stride) - before))
    out = p._replace(
        window_strides=p.lhs_dilation,
        lhs_dilation=p.window_strides,
        padding=tuple(pads),
        dimension_numbers=ConvDimensionNumbers(out_spec, _transposed(rhs_spec), lhs_spec),
        feature_group_count=groups,
        batch_group_count=1,
        preferred_element_type=_wide(ct, rhs, p),
    ).bind(ct, rev(rhs, rhs_spec[2:]))
    if p.batch_group_count > 1:
        out = _merge(_split(out, lhs_spec[1], groups), 0, lhs_spec[0])
    return _as_dtype(out, lhs.dtype)


def _rhs_cotangent(ct: Array, lhs: Array, rhs: Linear, p: _Params) -> Array:
    lhs_spec, rhs_spec, out_spec = p.dimension_numbers
    pads = []
    for size, taps, count, stride, (low, _), base, dilation in _axes(lhs.shape, rhs.shape, ct.shape, p):
        pads.append((low, dilated(taps, dilation) - 1 + dilated(count, stride) - dilated(size, base) - low))
    out = p._replace(
        window_strides=p.rhs_dilation,
        rhs_dilation=p.window_strides,
        padding=tuple(pads),
        dimension_numbers=ConvDimensionNumbers(*map(_transposed, (lhs_spec, out_spec, rhs_spec))),
        feature_group_count=p.batch_group_count,
        batch_group_count=p.feature_group_count,
        preferred_element_type=_wide(ct, lhs, p),
        algorithm="auto" if p.algorithm == "winograd" else p.algorithm,  # its windows are as large as the result was
    ).bind(lhs, ct)
    return _as_dtype(out, rhs.dtype)


def _wide(ct: Array, other: Array, p: _Params) -> np.dtype | None:
    return p.preferred_element_type if ct.dtype == other.dtype else ct.dtype


def _as_dtype(x: Array, dtype: np.dtype) -> Array:
    return x if x.dtype == dtype else convert_element_type(x, dtype)


# batching


def _batch(axis: AxisData, args: Sequence[Array], dims: Sequence[int | None], **params: Any) -> tuple[Array, int]:
    """Batch a convolution as one.

    It has more groups (both operands stacked), a longer batch, or more features.
    """
    p = _Params(**params)
    (lhs, rhs), (lhs_dim, rhs_dim) = args, dims
    if not axis.size:  # no example, and no group
        out_aval = _abstract(*[_without(a.aval, d) for a, d in zip(args, dims, strict=True)], **params)
        return broadcast(as_value(np.zeros((), out_aval.dtype)), (0, *out_aval.shape)), 0
    lhs_spec, rhs_spec, out_spec = p.dimension_numbers
    grouped_by = "batch_group_count" if p.batch_group_count > 1 else "feature_group_count"
    if lhs_dim is not None and rhs_dim is not None:
        lhs = _merge(lhs, lhs_dim, lhs_spec[0 if p.batch_group_count > 1 else 1])
        rhs = _merge(rhs, rhs_dim, rhs_spec[0])
        out = p._replace(**{grouped_by: getattr(p, grouped_by) * axis.size}).bind(lhs, rhs)
        return _split(out, out_spec[1], axis.size), 0
    if lhs_dim is not None:
        out = p.bind(_merge(lhs, lhs_dim, lhs_spec[0], p.batch_group_count), rhs)
        return _split(out, out_spec[0], axis.size), 0
    groups = getattr(p, grouped_by)
    out = p.bind(lhs, _merge(rhs, rhs_dim or 0, rhs_spec[0], groups))
    return _split(out, out_spec[1], axis.size, groups), 0


def _without(aval: ShapedArray, dim: int | None) -> ShapedArray:
    return aval if dim is None else aval.update(shape=aval.shape[:dim] + aval.shape[dim + 1 :])


conv_general_dilated_p = Primitive("conv_general_dilated", _abstract, jvp=_jvp, transpose=_transpose, batch=_batch)
conv_general_dilated_p.bilinear = True


# the user's functions


def conv_dimension_numbers(lhs_shape: Sequence[int], rhs_shape: Sequence[int], dimension_numbers: Any) -> ConvDimensionNumbers:
    """Return `dimension_numbers` as positions of dimensions.

    It may be None (batch, feature, spatial; out feature, in feature, spatial), a `ConvDimensionNumbers`, or three strings in which N
    (batch), C (feature), O and I (out and in feature) and any other letters (spatial) stand where the dimensions are. Spatial dimensions
    are in the order of the second string. Raises `ShapeError` or `ArgumentError` for what does not fit the shapes.

    >>> conv_dimension_numbers((8, 32, 32, 3), (3, 3, 3, 16), ("NHWC", "HWIO", "NHWC"))
    ConvDimensionNumbers(lhs_spec=(0, 3, 1, 2), rhs_spec=(3, 2, 0, 1), out_spec=(0, 3, 1, 2))
    """
    rank = len(lhs_shape)
    if rank < 2 or len(rhs_shape) != rank:
        raise ShapeError(
            f"convolution takes operands of one rank, spatial dimensions plus two, got shapes {tuple(lhs_shape)} and {tuple(rhs_shape)}"
        )
    if dimension_numbers is None:
        order = tuple(range(rank))
        return ConvDimensionNumbers(order, order, order)
    try:
        specs = tuple(dimension_numbers)
        lhs_spec, rhs_spec, out_spec = specs
    except (TypeError, ValueError):
        raise ArgumentError(f"dimension_numbers must be three strings, ConvDimensionNumbers or None, got {dimension_numbers!r}") from None
    if not all(isinstance(spec, str) for spec in specs):
        positions = ConvDimensionNumbers(*[tuple([as_integer(i, "dimension_numbers") for i in spec]) for spec in specs])
        if any(sorted(spec) != list(range(rank)) for spec in positions):
            raise ArgumentError(f"dimension_numbers must order the dimensions 0 to {rank - 1} in each of its three parts, got {positions}")
        return positions
    for argument, spec, letters in (("lhs", lhs_spec, "NC"), ("rhs", rhs_spec, "OI"), ("out", out_spec, "NC")):
        spatial = set(spec) - set(letters)
        if len(spec) != rank or len(set(spec)) != rank or not set(letters) <= set(spec) or spatial != set(rhs_spec) - set("OI"):
            raise ArgumentError(
                f"dimension_numbers {specs!r}: the string for {argument} must have {rank} different letters, one per dimension, among them "
                f"{letters[0]} and {letters[1]}, and the same spatial letters as the others"
            )
    spatial_letters = [c for c in rhs_spec if c not in "OI"]
    pairs = ((lhs_spec, "NC"), (rhs_spec, "OI"), (out_spec, "NC"))
    return ConvDimensionNumbers(*[tuple([spec.index(c) for c in (*letters, *spatial_letters)]) for spec, letters in pairs])


def conv_general_dilated(
    lhs: Any,
    rhs: Any,
    window_strides: Sequence[int],
    padding: str | Sequence[tuple[int, int]],
    lhs_dilation: Sequence[int] | None = None,
    rhs_dilation: Sequence[int] | None = None,
    dimension_numbers: Any = None,
    feature_group_count: int = 1,
    batch_group_count: int = 1,
    precision: Any = None,
    preferred_element_type: Any = None,
    algorithm: str = "auto",
    *,
    out_sharding: Any = None,
) -> Array:
    """Convolve `lhs` with `rhs` (which is not flipped).

    `padding` is "SAME", "SAME_LOWER", "VALID" or a (low, high) pair per spatial dimension, which may be negative; `dimension_numbers` is as
    in `conv_dimension_numbers`. With `feature_group_count` G, the features of `lhs` and the out features of `rhs` fall into G groups that
    are convolved separately (G = features: a depthwise convolution); with `batch_group_count` the batch of `lhs` does. The dtype is as in
    `dot_general`: float16 and bfloat16 sum in float32, and `preferred_element_type` may be a wider dtype of the
    same kind, or a float for integers.

    `algorithm` may ask for a way to compute it: "direct", "im2col", "igemm", "winograd" (windows of 3x3 or 5x5, no strides, no dilation) or
    "fft"; a gradient whose form it does not fit is computed as with "auto".

    Raises `ShapeError` for shapes, groups or sequences that do not fit one another, `ArgumentError` for malformed `dimension_numbers` and
    for an algorithm that is not there or not for such a convolution, and `DTypeError` for a preferred dtype of another kind.

    >>> import volta_fn as vf
    >>> images, weights = vf.numpy.ones((8, 3, 32, 32)), vf.numpy.ones((16, 3, 3, 3))
    >>> vf.lax.conv_general_dilated(images, weights, (2, 2), "SAME").shape
    (8, 16, 16, 16)
    """
    x, w = as_value(lhs), as_value(rhs)
    numbers = conv_dimension_numbers(x.shape, w.shape, dimension_numbers)
    rank = x.ndim - 2
    sizes, taps = _take(x.shape, numbers.lhs_spec[2:]), _take(w.shape, numbers.rhs_spec[2:])
    strides = canonical_ints(window_strides, rank, "conv_general_dilated: window_strides")
    bases = canonical_ints(lhs_dilation, rank, "conv_general_dilated: lhs_dilation")
    dilations = canonical_ints(rhs_dilation, rank, "conv_general_dilated: rhs_dilation")
    if isinstance(padding, str) and set(bases) - {1}:
        raise ArgumentError(
            f"conv_general_dilated: padding={padding!r} needs lhs_dilation 1, got {bases}; give (low, high) pairs or use conv_transpose"
        )
    reach = tuple(map(dilated, taps, dilations))
    pads = canonical_padding(padtype_to_pads(sizes, reach, strides, padding), rank, "conv_general_dilated: padding")
    check_cut("conv_general_dilated", sizes, pads, bases)
    if precision is not None:
        check_precision("conv_general_dilated", precision)
    wanted = None if preferred_element_type is None else dtypes.as_dtype(preferred_element_type)
    if wanted is None and x.dtype != w.dtype:
        wanted = dtypes.promote_types(x.dtype, w.dtype)
        check_promotion("conv_general_dilated", (x, w), wanted)
    elif wanted in dtypes.INEXACT and x.dtype == w.dtype and x.dtype in dtypes.INTEGERS:
        x, w = convert_element_type(x, wanted), convert_element_type(w, wanted)
    return constrained(
        _Params(strides, pads, bases, dilations, numbers, int(feature_group_count), int(batch_group_count), wanted, algorithm).bind(x, w),
        out_sharding,
    )
