"""Convolutions of sparse arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from volta_fn import lax
from volta_fn import numpy as vnp
from volta_fn.core.aval import ShapeDtypeStruct
from volta_fn.errors import ArgumentTypeError
from volta_fn.experimental.sparse.bcoo import BCOO, JAXSparse
from volta_fn.experimental.sparse.products import element_pairs
from volta_fn.experimental.sparse.shapes import bcoo_update_layout
from volta_fn.primitives.convolution import padtype_to_pads
from volta_fn.transforms.make_jaxpr import eval_shape


def bcoo_conv_general_dilated(
    lhs: Any,
    rhs: Any,
    *,
    window_strides: Sequence[int],
    padding: Any,
    lhs_dilation: Sequence[int] | None = None,
    rhs_dilation: Sequence[int] | None = None,
    dimension_numbers: Any = None,
    feature_group_count: int = 1,
    batch_group_count: int = 1,
    precision: Any = None,
    preferred_element_type: Any = None,
    out_sharding: Any = None,
) -> BCOO:
    """Convolve sparse arrays as `lax.conv_general_dilated` convolves dense ones.

    One of the arrays may be dense.

    The result has sparse dimensions alone, and stores an element for each pair of an element of `lhs` and one of `rhs`; pairs that meet
    nowhere become padding. Where the first two dimensions have size 1 they are batch dimensions, as in JAX. A dense operand counts with all
    of its elements. Dilations, strides and groups are supported.

    Raises `ArgumentTypeError` if neither array is sparse, and what `lax.conv_general_dilated` raises for shapes that do not fit.

    >>> import volta_fn as vf
    >>> from volta_fn.experimental import sparse
    >>> m = sparse.BCOO.fromdense(vf.numpy.array([[[1.0, 0.0, 2.0]]]))
    >>> sparse.bcoo_conv_general_dilated(m, vf.numpy.ones((1, 1, 2)), window_strides=(1,), padding="VALID").todense()
    Array([[[1., 2.]]], dtype=float32)
    """
    if not isinstance(lhs, JAXSparse) and not isinstance(rhs, JAXSparse):
        raise ArgumentTypeError("bcoo_conv_general_dilated takes a sparse array and an array, or two sparse ones; got two dense ones")
    count = len(lhs.shape) - 2
    dilations = [tuple(d) if d is not None else (1,) * count for d in (lhs_dilation, rhs_dilation)]
    options: dict[str, Any] = {
        "window_strides": window_strides,
        "padding": padding,
        "lhs_dilation": dilations[0],
        "rhs_dilation": dilations[1],
        "dimension_numbers": dimension_numbers,
        "feature_group_count": feature_group_count,
        "batch_group_count": batch_group_count,
        "preferred_element_type": preferred_element_type,
    }
    of_type = [ShapeDtypeStruct(x.shape, x.dtype) for x in (lhs, rhs)]
    out = eval_shape(lambda x, y: lax.conv_general_dilated(x, y, **options), *of_type)
    specs = lax.conv_dimension_numbers(lhs.shape, rhs.shape, dimension_numbers)
    left, right = (_plain(x) for x in (lhs, rhs))
    if preferred_element_type is not None:
        left, right = left.astype(preferred_element_type), right.astype(preferred_element_type)

    data, first, second = element_pairs(left, right, [], [])
    first, second = (positions.reshape(-1, positions.shape[-1]) for positions in (first, second))
    (batch, channel, *places), (out_channel, in_channel, *window) = specs.lhs_spec, specs.rhs_spec
    sizes = [(lhs.shape[p] - 1) * d + 1 for p, d in zip(places, dilations[0], strict=True)]
    spans = [(rhs.shape[w] - 1) * d + 1 for w, d in zip(window, dilations[1], strict=True)]
    pads = padtype_to_pads(sizes, spans, window_strides, padding) if isinstance(padding, str) else padding
    # Of grouped channels, an output channel sums over those of its group; of grouped images, it has those of its group.
    groups = feature_group_count * batch_group_count
    group = second[:, out_channel] // max(rhs.shape[out_channel] // groups, 1)
    images, of_image = lhs.shape[batch] // batch_group_count, first[:, batch]
    if batch_group_count > 1:
        meets = (of_image // max(images, 1) == group) & (first[:, channel] == second[:, in_channel])
    else:
        meets = first[:, channel] == second[:, in_channel] + group * rhs.shape[in_channel]
    columns = {specs.out_spec[0]: of_image % max(images, 1), specs.out_spec[1]: second[:, out_channel]}
    for i, (place, step) in enumerate(zip(places, window_strides, strict=True)):
        position = first[:, place] * dilations[0][i] + pads[i][0] - second[:, window[i]] * dilations[1][i]
        axis = specs.out_spec[2 + i]
        columns[axis] = position // step
        meets = meets & (position % step == 0) & (position >= 0) & (columns[axis] < out.shape[axis])
    indices = vnp.stack([columns[axis] for axis in range(len(out.shape))], -1)
    indices = vnp.where(meets[:, None], indices, np.array(out.shape, indices.dtype))
    data = vnp.where(meets, data, vnp.zeros((), data.dtype)).astype(out.dtype)
    result = BCOO((data, indices), shape=out.shape)
    return bcoo_update_layout(result, n_batch=2, on_inefficient=None) if tuple(out.shape[:2]) == (1, 1) else result


def _plain(x: Any) -> BCOO:
    """Return an array with sparse dimensions alone; a dense one has all elements."""
    if isinstance(x, JAXSparse):
        return bcoo_update_layout(x.to_bcoo(), n_batch=0, n_dense=0)
    array = vnp.asarray(x)
    positions = np.indices(array.shape, np.int32).reshape(array.ndim, -1).T
    return BCOO((array.reshape(-1), positions), shape=array.shape, indices_sorted=True, unique_indices=True)
