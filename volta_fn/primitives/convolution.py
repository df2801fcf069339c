"""Convolution: `conv_general_dilated`, its usual forms, the arithmetic of windows."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from volta_fn import dtypes
from volta_fn.core.arrays.array import Array, as_value
from volta_fn.core.arrays.memory import constrained
from volta_fn.core.aval import Shape, ShapedArray, as_integer, check_promotion
from volta_fn.core.dimension import is_symbolic, max_dim
from volta_fn.core.primitive import AxisData, Linear, Primitive
from volta_fn.core.trace import bind
from volta_fn.errors import ArgumentError, ArgumentTypeError, ShapeError, VoltaError
from volta_fn.primitives.contraction import bilinear_jvp, check_precision, dot_general, in_kind_of, product_dtype, rounding
from volta_fn.primitives.data_movement.movement import broadcast, expand_dims, moveaxis, reshape, rev, transpose
from volta_fn.primitives.data_movement.slicing import concatenate, pad, slice, slice_in_dim
from volta_fn.primitives.elementwise.cast import convert_element_type
from volta_fn.settings import current as settings

# The arithmetic of sliding windows: their numbers, and named paddings.

_FLOAT32 = np.dtype(np.float32)

Ints = tuple[int, ...]
Padding = tuple[tuple[int, int], ...]


def dilated(size: int, dilation: int) -> int:
    """Return the length of `size` elements, `dilation` - 1 holes between them."""
    return (size - 1) * dilation + 1 if size else 0


def window_count(size: int, taps: int, stride: int, padding: tuple[int, int], base_dilation: int, window_dilation: int) -> int:
    """Return the number of windows along one axis."""
    room = dilated(size, base_dilation) + padding[0] + padding[1] - dilated(taps, window_dilation)
    return max_dim(room // stride + 1, 0)


def window_counts(shape: Ints, taps: Ints, strides: Ints, padding: Padding, base_dilation: Ints, window_dilation: Ints) -> Ints:
    """Return the number of windows along each axis."""
    return tuple(map(window_count, shape, taps, strides, padding, base_dilation, window_dilation))


def counts_of_windows(shape: Ints, geometry: Mapping[str, Any]) -> Ints:
    """Return the numbers of windows from the parameters of a window primitive."""
    names = ("window_dimensions", "window_strides", "padding", "base_dilation", "window_dilation")
    return window_counts(shape, *[geometry[name] for name in names])


def padtype_to_pads(
    in_shape: Sequence[int], window_shape: Sequence[int], window_strides: Sequence[int], padding: str | Sequence[tuple[int, int]]
) -> list[tuple[int, int]]:
    """Return the (low, high) padding per axis of a named padding.

    ``"VALID"`` means none, ``"SAME"`` as much as makes the result's sizes ceil(size / stride), the odd element at the high end (at the
    low end with ``"SAME_LOWER"``). Pairs are returned as they are.

    Raises `ArgumentError` for any other word.

    >>> padtype_to_pads((5, 6), (3, 2), (2, 2), "SAME")
    [(1, 1), (0, 0)]
    """
    if not isinstance(padding, str):
        try:
            return [(as_integer(low, "padding"), as_integer(high, "padding")) for low, high in padding]
        except (TypeError, ValueError) as error:
            if isinstance(error, VoltaError):
                raise
            message = f"padding must be a word or a sequence of (low, high) pairs, one per dimension, got {padding!r}"
            raise ArgumentTypeError(message) from None
    word = padding.upper()
    if word == "VALID":
        return [(0, 0)] * len(tuple(in_shape))
    if word not in ("SAME", "SAME_LOWER"):
        raise ArgumentError(f"padding={padding!r} is none of 'SAME', 'SAME_LOWER' and 'VALID', nor a sequence of (low, high) pairs")
    pads = []
    for size, taps, stride in zip(in_shape, window_shape, window_strides, strict=True):
        missing = max((-(-size // stride) - 1) * stride + taps - size, 0)
        low = missing - missing // 2 if word == "SAME_LOWER" else missing // 2
        pads.append((low, missing - low))
    return pads


def canonical_ints(value: Any, count: int, argument: str) -> Ints:
    """Return `value` as `count` positive integers.

    None means all 1; `argument` names the argument in errors.
    """
    if value is None:
        return (1,) * count
    items = (value,) if isinstance(value, int) else tuple(value)
    result = tuple([as_integer(item, argument) for item in items])
    if len(result) != count or any(item < 1 for item in result):
        raise ShapeError(f"{argument} must be {count} integers of at least 1, one per dimension that windows slide over, got {result}")
    return result


def canonical_padding(padding: Sequence[tuple[int, int]], count: int, argument: str) -> Padding:
    """Return `padding` as a tuple of `count` (low, high) pairs of integers."""
    pairs = tuple([tuple([as_integer(end, argument) for end in pair]) for pair in padding])
    if len(pairs) != count or any(len(pair) != 2 for pair in pairs):
        raise ShapeError(f"{argument} must be {count} pairs (low, high), one per dimension that windows slide over, got {pairs}")
    return pairs  # type: ignore[return-value]  # every pair has two elements, as just checked


def without_cut(operand: Array, axes: Ints, padding: Padding, base_dilation: Ints) -> tuple[Array, Padding]:
    """Drop the elements along axes where negative padding cuts all and more.

    The other end's padding may make such an axis longer again, by elements of padding. Returns the operand, and padding that cuts no more
    than there is.
    """
    pads = list(padding)
    for number, (axis, (low, high), base) in enumerate(zip(axes, padding, base_dilation, strict=True)):
        size = operand.shape[axis]
        if not is_symbolic((size, low, high)) and (length := dilated(size, base)) + min(low, 0) + min(high, 0) < 0:
            operand, pads[number] = slice_in_dim(operand, 0, 0, axis=axis), (max(length + low + high, 0), 0)
    return operand, tuple(pads)


# Convolution: `conv_general_dilated`.
#
# It has any rank, strides, dilation of either operand, groups and any order of dimensions.
#
# As in networks generally, the right operand is not flipped: along every spatial axis the result is
#
# out[p] = sum over taps k of lhs'[p * stride + k * rhs_dilation - low] * rhs[k]
#
# where lhs' is `lhs` with `lhs_dilation` - 1 zeros between its elements and zeros around it. Both gradients are convolutions of this
# form: by `lhs` strides and left dilation are exchanged and `rhs` is flipped; by `rhs` the cotangent is the window, batch and features
# are exchanged, and strides become right dilation.


class ConvDimensionNumbers(NamedTuple):
    """The order of a convolution's dimensions.

    Of `lhs` and the result (batch, feature, *spatial), of `rhs` (out feature, in feature, *spatial). In `conv_general_dilated`, strings
    such as ("NHWC", "HWIO", "NHWC") say the same.
    """

    lhs_spec: Ints
    rhs_spec: Ints
    out_spec: Ints


#: The type of the argument `dimension_numbers`.
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
    #: How operands of float32 may be rounded (`contraction.rounding`); None, and no parameter, if they may not.
    precision: str | None = None

    def bind(self, lhs: Array, rhs: Array) -> Array:
        params = self._asdict()
        if self.precision is None:
            del params["precision"]
        return bind(conv_general_dilated_p, lhs, rhs, **params)


def _take(shape: Shape, spec: Ints) -> Ints:
    return tuple([shape[i] for i in spec])


def _abstract(lhs: ShapedArray, rhs: ShapedArray, **params: Any) -> ShapedArray:
    p = _Params(**params)
    _check_groups(lhs, rhs, p)
    lhs_spec, rhs_spec, out_spec = p.dimension_numbers
    (batch, _, *sizes), (features, _, *taps) = _take(lhs.shape, lhs_spec), _take(rhs.shape, rhs_spec)
    counts = window_counts(tuple(sizes), tuple(taps), p.window_strides, p.padding, p.lhs_dilation, p.rhs_dilation)
    size_of = dict(zip(out_spec, (batch // p.batch_group_count, features, *counts), strict=True))
    dtype = product_dtype("conv_general_dilated", lhs, rhs, p.preferred_element_type)
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
    weak = lhs.weak_type and rhs.weak_type and p.preferred_element_type is None
    return ShapedArray(tuple([size_of[i] for i in range(len(size_of))]), dtype, weak)


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
    """Split a dimension of `count` off `axis` to the front: the inverse of `_merge`."""
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
    """Batch a convolution as one of more groups, a longer batch, or more features."""
    p = _Params(**params)
    (lhs, rhs), (lhs_dim, rhs_dim) = args, dims
    if not axis.size:  # no example, and no group
        examples = [a.aval if d is None else a.aval.update(shape=a.shape[:d] + a.shape[d + 1 :]) for a, d in zip(args, dims, strict=True)]
        out_aval = _abstract(*examples, **params)
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


conv_general_dilated_p = Primitive("conv_general_dilated", _abstract, jvp=bilinear_jvp, transpose=_transpose, bilinear=True, batch=_batch)


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
    same kind, or one of floats for integers. `precision` may let a GPU's matrix units round operands of float32, as in `dot_general`.

    `algorithm` may ask for a way to compute it: "direct", "im2col", "igemm", "winograd" (windows of 3x3 or 5x5, no strides, no dilation) or
    "fft"; a gradient whose form it does not fit is computed as with "auto".

    Raises `ShapeError` for shapes, groups or sequences that do not fit one another, `ArgumentError` for malformed `dimension_numbers` and
    for an algorithm that is not there or not for such a convolution, and `DTypeError` for a preferred dtype of another kind.

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
    for axis, (size, base, cut) in enumerate(zip(sizes, bases, pads, strict=True)):
        if not is_symbolic((size, *cut)) and dilated(size, base) + sum(cut) < 0:
            raise ShapeError(
                f"conv_general_dilated: the negative padding {cut} cuts more than the size {size} of spatial dimension {axis}; cut less"
            )
    x, pads = without_cut(x, numbers.lhs_spec[2:], pads, bases)
    if precision is None:
        precision = settings.matmul_precision
    else:
        check_precision("conv_general_dilated", precision)
    dtype = None if preferred_element_type is None else dtypes.as_dtype(preferred_element_type)
    if dtype is None and x.dtype != w.dtype:
        dtype = dtypes.promote_types(x.dtype, w.dtype)
        check_promotion("conv_general_dilated", (x, w), dtype)
    x, w = in_kind_of(dtype, x, w)
    rounded = rounding(precision) if precision is not None and x.dtype == w.dtype == _FLOAT32 else ""
    groups = int(feature_group_count), int(batch_group_count)
    params = _Params(strides, pads, bases, dilations, numbers, *groups, dtype, algorithm, rounded or None)
    return constrained(params.bind(x, w), out_sharding)


# The usual forms of convolution, in terms of `conv_general_dilated`.

Pads = Sequence[tuple[int, int]]


def conv(
    lhs: Any, rhs: Any, window_strides: Sequence[int], padding: str, precision: Any = None, preferred_element_type: Any = None
) -> Array:
    """Convolve `lhs` with `rhs`, padded by "SAME" or "VALID".

    Their dimensions are (batch, feature, *spatial) and (out feature, in feature, *spatial).

    >>> vf.lax.conv(vf.numpy.ones((1, 2, 5)), vf.numpy.ones((4, 2, 3)), (1,), "VALID").shape
    (1, 4, 3)
    """
    return conv_general_dilated(lhs, rhs, window_strides, padding, precision=precision, preferred_element_type=preferred_element_type)


def conv_with_general_padding(
    lhs: Any,
    rhs: Any,
    window_strides: Sequence[int],
    padding: str | Pads,
    lhs_dilation: Sequence[int] | None,
    rhs_dilation: Sequence[int] | None,
    precision: Any = None,
    preferred_element_type: Any = None,
) -> Array:
    """Convolve like `conv`, with any padding and dilation of either operand."""
    return conv_general_dilated(
        lhs, rhs, window_strides, padding, lhs_dilation, rhs_dilation, precision=precision, preferred_element_type=preferred_element_type
    )


_TRANSPOSE_LAYOUTS = {2: ("NC", "IO", "NC"), 3: ("NHC", "HIO", "NHC"), 4: ("NHWC", "HWIO", "NHWC"), 5: ("NHWDC", "HWDIO", "NHWDC")}


def conv_transpose(
    lhs: Any,
    rhs: Any,
    strides: Sequence[int],
    padding: str | Pads,
    rhs_dilation: Sequence[int] | None = None,
    dimension_numbers: Any = None,
    transpose_kernel: bool = False,
    precision: Any = None,
    preferred_element_type: Any = None,
    use_consistent_padding: bool = False,
) -> Array:
    """Convolve with fractional strides, which makes the result larger.

    There are `strides` - 1 zeros between the elements of `lhs`. "SAME" and "VALID" are the padding of the convolution that this one undoes;
    pairs are the padding of this one, unless `use_consistent_padding`. With `transpose_kernel`, `rhs` is flipped and its feature dimensions
    are exchanged, which makes this the gradient of that convolution. By default the dimensions are in the order (batch, *spatial, feature)
    and (*spatial, in, out).

    >>> vf.lax.conv_transpose(vf.numpy.ones((1, 4, 4, 3)), vf.numpy.ones((3, 3, 3, 8)), (2, 2), "SAME").shape
    (1, 8, 8, 8)
    """
    x, w = as_value(lhs), as_value(rhs)
    if dimension_numbers is None:
        if x.ndim not in _TRANSPOSE_LAYOUTS:
            raise ArgumentError(f"conv_transpose: an array of shape {x.shape} has no default order of dimensions; give dimension_numbers")
        dimension_numbers = _TRANSPOSE_LAYOUTS[x.ndim]
    numbers = conv_dimension_numbers(x.shape, w.shape, dimension_numbers)
    rank = x.ndim - 2
    steps = canonical_ints(strides, rank, "conv_transpose: strides")
    dilations = canonical_ints(rhs_dilation, rank, "conv_transpose: rhs_dilation")
    pads = padding
    if use_consistent_padding or isinstance(padding, str):
        reach = [dilated(w.shape[i], d) for i, d in zip(numbers.rhs_spec[2:], dilations, strict=True)]
        forward: Sequence[Any] = (
            [padding] * rank if isinstance(padding, str) else canonical_padding(padding, rank, "conv_transpose: padding")
        )
        pads = [_undoing(taps, step, p) for taps, step, p in zip(reach, steps, forward, strict=True)]
    if transpose_kernel:
        out, into, *spatial = numbers.rhs_spec
        order = list(range(w.ndim))
        order[out], order[into] = into, out
        w = transpose(rev(w, spatial), order)
    return conv_general_dilated(
        x, w, (1,) * rank, pads, steps, dilations, numbers, precision=precision, preferred_element_type=preferred_element_type
    )


def _undoing(taps: int, stride: int, padding: Any) -> tuple[int, int]:
    """Return the padding along an axis of the transposed convolution."""
    if padding == "SAME":
        total = taps + stride - 2
        low = taps - 1 if stride > taps - 1 else -(-total // 2)
        return low, total - low
    if padding == "VALID":
        return taps - 1, taps + stride - 2 + max(taps - stride, 0) - (taps - 1)
    if isinstance(padding, str):
        raise ArgumentError(f"conv_transpose: padding={padding!r} is none of 'SAME' and 'VALID', nor a sequence of (low, high) pairs")
    return taps - 1 - padding[0], taps - 1 - padding[1]


def conv_general_dilated_patches(
    lhs: Any,
    filter_shape: Sequence[int],
    window_strides: Sequence[int],
    padding: str | Pads,
    lhs_dilation: Sequence[int] | None = None,
    rhs_dilation: Sequence[int] | None = None,
    dimension_numbers: Any = None,
    precision: Any = None,
    preferred_element_type: Any = None,
) -> Array:
    """Return the windows of `lhs`, laid out in the result's feature dimension.

    They are what `conv_general_dilated` would sum: the feature of `lhs` first, then the window's elements in row-major order. Elements are
    copied, so infinities and NaN stay where they are.

    >>> vf.lax.conv_general_dilated_patches(vf.numpy.arange(4.0).reshape(1, 1, 4), (2,), (1,), "VALID")
    Array([[[0., 1., 2.],
            [1., 2., 3.]]], dtype=float32)
    """
    x = as_value(lhs)
    if precision is not None:
        check_precision("conv_general_dilated_patches", precision)
    rank = x.ndim - 2
    taps = canonical_ints(filter_shape, max(rank, 0), "conv_general_dilated_patches: filter_shape")
    lhs_spec, _, out_spec = conv_dimension_numbers(x.shape, (1, 1, *taps), dimension_numbers)
    strides = canonical_ints(window_strides, rank, "conv_general_dilated_patches: window_strides")
    bases = canonical_ints(lhs_dilation, rank, "conv_general_dilated_patches: lhs_dilation")
    dilations = canonical_ints(rhs_dilation, rank, "conv_general_dilated_patches: rhs_dilation")
    x = transpose(x, lhs_spec)
    (batch, features), sizes = x.shape[:2], x.shape[2:]
    pads = canonical_padding(
        padtype_to_pads(sizes, tuple(map(dilated, taps, dilations)), strides, padding), rank, "conv_general_dilated_patches: padding"
    )
    counts = window_counts(sizes, taps, strides, pads, bases, dilations)
    dtype = x.dtype if preferred_element_type is None else dtypes.as_dtype(preferred_element_type)
    placed = dict(zip(out_spec, (batch, features * math.prod(taps), *counts), strict=True))
    if 0 in counts:
        return broadcast(np.zeros((), dtype), [placed[i] for i in range(x.ndim)])
    config = [(0, 0, 0), (0, 0, 0), *[(low, high, base - 1) for (low, high), base in zip(pads, bases, strict=True)]]
    padded = pad(x, np.zeros((), x.dtype), config)
    windows = []
    for tap in itertools.product(*map(range, taps)):
        starts = [k * d for k, d in zip(tap, dilations, strict=True)]
        limits = [start + (n - 1) * s + 1 for start, n, s in zip(starts, counts, strides, strict=True)]
        windows.append(expand_dims(slice(padded, (0, 0, *starts), (batch, features, *limits), (1, 1, *strides)), (2,)))
    out = reshape(concatenate(windows, 2), (batch, features * len(windows), *counts))
    out = transpose(out, [out_spec.index(i) for i in range(len(out_spec))])
    return out if dtype == out.dtype else convert_element_type(out, dtype)


def conv_general_dilated_local(
    lhs: Any,
    rhs: Any,
    window_strides: Sequence[int],
    padding: str | Pads,
    filter_shape: Sequence[int],
    lhs_dilation: Sequence[int] | None = None,
    rhs_dilation: Sequence[int] | None = None,
    dimension_numbers: Any = None,
    precision: Any = None,
) -> Array:
    """Convolve with a kernel of its own at every output position.

    That is a locally connected layer. Arguments are those of `conv_general_dilated`, but for these:

    Args:
        rhs: the kernels, whose spatial axes are the positions of the result, and whose input feature axis counts the features of `lhs`
            times the elements of a window, as `conv_general_dilated_patches` orders them.
        filter_shape: the size of a window along each spatial axis.

    >>> kernels = jnp.array([1.0, 10.0]).reshape(1, 1, 2)
    >>> vf.lax.conv_general_dilated_local(jnp.arange(1.0, 3.0).reshape(1, 1, 2), kernels, (1,), "VALID", (1,))
    Array([[[ 1., 20.]]], dtype=float32)
    """
    x, w = as_value(lhs), as_value(rhs)
    numbers = conv_dimension_numbers(x.shape, w.shape, dimension_numbers)
    rank = x.ndim - 2
    by_feature = conv_dimension_numbers(x.shape, w.shape, (numbers.lhs_spec, numbers.rhs_spec, tuple(range(x.ndim))))
    patches = conv_general_dilated_patches(x, filter_shape, window_strides, padding, lhs_dilation, rhs_dilation, by_feature, precision)
    positions = tuple(range(2, 2 + rank))
    contract = ((1,), (numbers.rhs_spec[1],))
    out = dot_general(patches, w, (contract, (positions, numbers.rhs_spec[2:])), precision)  # (positions…, batch, features)
    spec = numbers.out_spec
    source = {spec[0]: rank, spec[1]: rank + 1, **{axis: k for k, axis in enumerate(spec[2:])}}
    return transpose(out, [source[axis] for axis in range(x.ndim)])
