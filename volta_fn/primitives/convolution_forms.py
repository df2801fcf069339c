"""The usual forms of convolution, in terms of `conv_general_dilated`."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from volta_fn import dtypes
from volta_fn.core.array import Array, as_value
from volta_fn.errors import ArgumentError
from volta_fn.primitives.contraction import check_precision, dot_general
from volta_fn.primitives.convolution import conv_dimension_numbers, conv_general_dilated
from volta_fn.primitives.data_movement.joining import concatenate, pad
from volta_fn.primitives.data_movement.movement import broadcast, expand_dims, reshape, rev, transpose
from volta_fn.primitives.data_movement.slicing import slice
from volta_fn.primitives.elementwise.cast import convert_element_type
from volta_fn.primitives.geometry import canonical_ints, canonical_padding, dilated, padtype_to_pads, window_counts

Pads = Sequence[tuple[int, int]]


def conv(
    lhs: Any, rhs: Any, window_strides: Sequence[int], padding: str, precision: Any = None, preferred_element_type: Any = None
) -> Array:
    """Convolve `lhs` with `rhs`, padded by "SAME" or "VALID".

    Their dimensions are (batch, feature, *spatial) and (out feature, in feature, *spatial).

    >>> import volta_fn as vf
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

    There are `strides` - 1 zeros between the elements of `lhs`.

    "SAME" and "VALID" are the padding of the convolution that this one undoes; pairs are the padding of this one, unless
    `use_consistent_padding`. With `transpose_kernel`, `rhs` is flipped and its feature dimensions are exchanged, which makes this the
    gradient of that convolution. By default the dimensions are in the order (batch, *spatial, feature) and (*spatial, in, out).

    >>> import volta_fn as vf
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

    They are what `conv_general_dilated` would sum: the feature of `lhs` first, then the window's elements in row-major order.

    Elements are copied, so infinities and NaN stay where they are.

    >>> import volta_fn as vf
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
