"""Products, sums and convolutions of `BCOO` arrays, and with dense arrays."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from volta_fn import lax
from volta_fn import numpy as vnp
from volta_fn.core.arrays.array import Array
from volta_fn.core.aval import ShapeDtypeStruct
from volta_fn.core.staging import eval_shape
from volta_fn.errors import ArgumentTypeError, ShapeError
from volta_fn.experimental.sparse.bcoo import BCOO, JAXSparse, add_at, dtype_of_indices, over_batches, read_at
from volta_fn.experimental.sparse.shapes import bcoo_broadcast_in_dim, bcoo_update_layout, bounded, stacked
from volta_fn.numpy.products import matmul as dense_matmul
from volta_fn.primitives.convolution import padtype_to_pads


def bcoo_fromdense(mat: Any, *, nse: int | None = None, n_batch: int = 0, n_dense: int = 0, index_dtype: Any = np.int32) -> BCOO:
    """Do what `BCOO.fromdense` does."""
    return BCOO.fromdense(mat, nse=nse, n_batch=n_batch, n_dense=n_dense, index_dtype=index_dtype)


def bcoo_todense(mat: BCOO) -> Array:
    """Return the array with its zeros."""
    return mat.todense()


def todense(arr: Any) -> Array:
    """Return a sparse array with its zeros, and any other as it is."""
    return arr.todense() if hasattr(arr, "todense") else vnp.asarray(arr)


def bcoo_extract(sparr: BCOO, arr: Any, *, assume_unique: bool | None = None) -> BCOO:
    """Return the elements of a dense array at the indices of a sparse one.

    Where an index is stored more than once, its first element gets the value and the others get 0, so that they add up to the value.
    `assume_unique` (default: what the array promises) skips this: all get the value. Raises `ShapeError` for arrays of two shapes.
    """
    array = vnp.asarray(arr)
    if array.shape != sparr.shape:
        raise ShapeError(f"bcoo_extract: the arrays must have one shape, got {sparr.shape} and {array.shape}")
    data = _read_like(sparr, array)
    if not (sparr.unique_indices if assume_unique is None else assume_unique):
        is_first = over_batches(_is_first, sparr.n_batch)(sparr.indices)
        data = vnp.where(is_first.reshape(*is_first.shape, *[1] * sparr.n_dense), data, vnp.zeros((), data.dtype))
    return sparr.replace_data(data)


def _is_first(indices: Array) -> Array:
    """Return which rows of a matrix do not occur above."""
    count, width = indices.shape
    if not count:
        return vnp.ones(0, bool)
    if not width:
        return vnp.arange(count) == 0
    order = vnp.lexsort(tuple(indices[:, i] for i in reversed(range(width))))  # stable: the first of equal rows comes first
    ordered = indices[order]
    begins = vnp.concatenate([vnp.ones(1, bool), (ordered[1:] != ordered[:-1]).any(-1)])
    return vnp.zeros(count, bool).at[order].set(begins)


def _read_like(mat: BCOO, array: Array) -> Array:
    """Return the elements of a dense array in the places of sparse ones."""
    n = mat.n_batch
    batch = array.shape[:n]
    if math.prod(mat.indices.shape[:n]) == 1 and mat.n_sparse and array.size:  # all positions share the indices
        flat = array.reshape(math.prod(batch), *array.shape[n:])
        columns = [mat.indices.reshape(mat.nse, mat.n_sparse)[:, i] for i in range(mat.n_sparse)]
        values = flat.at[(slice(None), *columns)].get(mode="fill", fill_value=0, wrap_negative_indices=False)
        return values.reshape(*batch, mat.nse, *array.shape[n + mat.n_sparse :])
    wide = vnp.broadcast_to(mat.indices, (*batch, *mat.indices.shape[n:]))
    whole = BCOO((vnp.zeros((*batch, mat.nse, *array.shape[n + mat.n_sparse :]), array.dtype), wide), shape=array.shape).folded()
    data = read_at(array, whole.columns())
    data = vnp.broadcast_to(data, (math.prod(batch) * mat.nse, *data.shape[1:]))
    return data.reshape(*batch, mat.nse, *data.shape[1:])


def _plain(mat: BCOO) -> BCOO:
    """Return the array with sparse dimensions alone."""
    return bcoo_update_layout(mat, n_batch=0, n_dense=0)


# Contractions.


def bcoo_dot_general(
    lhs: Any, rhs: Any, *, dimension_numbers: Any, precision: Any = None, preferred_element_type: Any = None, out_sharding: Any = None
) -> Any:
    """Contract two arrays, of which one or both are sparse, as `lax.dot_general` does.

    The product of two sparse arrays is sparse, and stores an element for each pair of theirs, or for each index where these are fewer.
    Batch dimensions of the product that are batch dimensions of both, in order, are batch dimensions of the result.
    """
    contract, batch = (tuple(tuple(int(a) for a in axes) for axes in pair) for pair in dimension_numbers)
    if not isinstance(lhs, JAXSparse) and not isinstance(rhs, JAXSparse):
        return lax.dot_general(
            lhs, rhs, dimension_numbers=dimension_numbers, precision=precision, preferred_element_type=preferred_element_type
        )
    lhs, rhs = (x.to_bcoo() if isinstance(x, JAXSparse) else vnp.asarray(x) for x in (lhs, rhs))
    _check_sizes(lhs.shape, rhs.shape, contract, batch)
    if preferred_element_type is not None:
        lhs, rhs = lhs.astype(preferred_element_type), rhs.astype(preferred_element_type)
    if isinstance(lhs, BCOO) and isinstance(rhs, BCOO):
        return _sparse_product(lhs, rhs, contract, batch)
    if isinstance(lhs, BCOO):
        return _product(_plain(lhs), rhs, contract, batch)
    swapped = _product(_plain(rhs), lhs, contract[::-1], batch[::-1])
    count = len(batch[0])
    lhs_free = lhs.ndim - len(contract[0]) - count
    order = [*range(count), *range(swapped.ndim - lhs_free, swapped.ndim), *range(count, swapped.ndim - lhs_free)]
    return vnp.transpose(swapped, order)


def _check_sizes(lhs: tuple[int, ...], rhs: tuple[int, ...], contract: Any, batch: Any) -> None:
    for lhs_axis, rhs_axis in (*zip(*contract, strict=True), *zip(*batch, strict=True)):
        if lhs[lhs_axis] != rhs[rhs_axis]:
            raise ShapeError(f"dot_general: dimension {lhs_axis} of {lhs} and dimension {rhs_axis} of {rhs} differ")


def _free(ndim: int, contract: Sequence[int], batch: Sequence[int]) -> list[int]:
    return [i for i in range(ndim) if i not in (*contract, *batch)]


def _product(lhs: BCOO, rhs: Array, contract: Any, batch: Any) -> Array:
    """Multiply each element with a row of `rhs`, and add it to a row of the result."""
    free, other_free = _free(lhs.ndim, contract[0], batch[0]), _free(rhs.ndim, contract[1], batch[1])
    columns = lhs.columns()
    ordered = vnp.transpose(rhs, [*batch[1], *contract[1], *other_free])
    rows = read_at(ordered, [columns[i] for i in (*batch[0], *contract[0])])
    terms = lhs.masked_data().reshape(-1, *[1] * len(other_free)) * rows
    lhs_axes = [*batch[0], *free]
    out = vnp.zeros((*[lhs.shape[i] for i in lhs_axes], *[rhs.shape[i] for i in other_free]), terms.dtype)
    return add_at(out, [columns[i] for i in lhs_axes], terms)


def _sparse_product(lhs: BCOO, rhs: BCOO, contract: Any, batch: Any) -> BCOO:
    # Leading batch dimensions of all three arrays are mapped over; the others become sparse dimensions.
    mapped = 0
    while mapped < min(lhs.n_batch, rhs.n_batch, len(batch[0])) and batch[0][mapped] == batch[1][mapped] == mapped:
        mapped += 1

    def multiply(lhs: BCOO, rhs: BCOO) -> BCOO:
        lhs, rhs = _plain(lhs), _plain(rhs)
        lhs_contract, rhs_contract = ([a - mapped for a in axes] for axes in contract)
        lhs_batch, rhs_batch = ([a - mapped for a in axes[mapped:]] for axes in batch)
        data, first, second = element_pairs(lhs, rhs, [*lhs_batch, *lhs_contract], [*rhs_batch, *rhs_contract])
        lhs_axes, rhs_free = [*lhs_batch, *_free(lhs.ndim, lhs_contract, lhs_batch)], _free(rhs.ndim, rhs_contract, rhs_batch)
        columns = [*[first[..., i] for i in lhs_axes], *[second[..., i] for i in rhs_free]]
        shape = (*[lhs.shape[i] for i in lhs_axes], *[rhs.shape[i] for i in rhs_free])
        indices = stacked([c.reshape(-1) for c in columns], (data.size,), dtype_of_indices(lhs.indices.dtype, shape))
        return bounded(BCOO((data, indices), shape=shape))

    operands = (lhs.broadcast_batches(), rhs.broadcast_batches()) if mapped else (lhs, rhs)
    return over_batches(multiply, mapped)(*operands)


def element_pairs(lhs: BCOO, rhs: BCOO, lhs_axes: Sequence[int], rhs_axes: Sequence[int]) -> tuple[Array, Array, Array]:
    """Return the products of pairs of elements, and the indices of both.

    Pairs whose indices in the given dimensions differ have the product 0.
    """
    first, second = lhs.indices[:, None, :], rhs.indices[None, :, :]
    agree = lhs.valid()[:, None] & rhs.valid()[None, :]
    for i, j in zip(lhs_axes, rhs_axes, strict=True):
        agree = agree & (first[..., i] == second[..., j])
    products = lhs.data[:, None] * rhs.data[None, :]
    products = vnp.where(agree.reshape(*agree.shape, *[1] * lhs.n_dense), products, vnp.zeros((), products.dtype))
    shape = agree.shape
    return (
        products.reshape(math.prod(shape), *products.shape[2:]),
        vnp.broadcast_to(first, (*shape, lhs.n_sparse)),
        vnp.broadcast_to(second, (*shape, rhs.n_sparse)),
    )


def bcoo_dot_general_sampled(A: Any, B: Any, indices: Any, *, dimension_numbers: Any) -> Array:
    """Return elements of the product of two dense arrays, without the others.

    Args:
        A, B: the arrays, as for `lax.dot_general`.
        indices: the indices of a `BCOO` array of the product's shape, (batch dimensions…, nse, number of sparse dimensions).
        dimension_numbers: the contraction, as for `lax.dot_general`.

    Returns:
        The data of such an array. Indices out of range give 0.

    >>> a, b = vf.numpy.array([[1.0, 2.0], [3.0, 4.0]]), vf.numpy.array([[5.0, 6.0], [7.0, 8.0]])
    >>> bcoo_dot_general_sampled(a, b, vf.numpy.array([[0, 1], [1, 0]]), dimension_numbers=(((1,), (0,)), ((), ())))
    Array([22., 43.], dtype=float32)
    """
    contract, batch = (tuple(tuple(int(a) for a in axes) for axes in pair) for pair in dimension_numbers)
    lhs, rhs, positions = vnp.asarray(A), vnp.asarray(B), vnp.asarray(indices)
    _check_sizes(lhs.shape, rhs.shape, contract, batch)
    lhs_free, rhs_free = _free(lhs.ndim, contract[0], batch[0]), _free(rhs.ndim, contract[1], batch[1])
    count, n = len(batch[0]), positions.ndim - 2
    shape = (*[lhs.shape[i] for i in (*batch[0], *lhs_free)], *[rhs.shape[i] for i in rhs_free])
    if n < 0 or n + positions.shape[-1] > len(shape):
        raise ShapeError(f"bcoo_dot_general_sampled: indices of shape {positions.shape} do not fit a product of shape {shape}")
    dense = shape[n + positions.shape[-1] :]
    zeros = vnp.zeros((*shape[:n], positions.shape[n], *dense), vnp.result_type(lhs, rhs))
    target = BCOO((zeros, positions), shape=shape)
    if dense:
        return _read_like(target, lax.dot_general(lhs, rhs, dimension_numbers=dimension_numbers))
    columns = target.folded().columns()
    if not columns:
        whole = lax.dot_general(lhs, rhs, dimension_numbers=dimension_numbers)
        return vnp.broadcast_to(whole, zeros.shape)
    rows = read_at(vnp.transpose(lhs, [*batch[0], *lhs_free, *contract[0]]), columns[: count + len(lhs_free)])
    others = read_at(vnp.transpose(rhs, [*batch[1], *rhs_free, *contract[1]]), [*columns[:count], *columns[count + len(lhs_free) :]])
    products = rows * others
    total = products.sum(tuple(range(1, products.ndim))).astype(zeros.dtype)
    valid = vnp.where(target.folded().valid(), total, vnp.zeros((), total.dtype))
    return valid.reshape(zeros.shape)


# Elementwise operations.


def bcoo_multiply_dense(sp_mat: BCOO, v: Any) -> Array:
    """Return the elements of a sparse array times those of a dense one.

    The dense array is broadcast to the shape of the sparse one; raises `ShapeError` if it cannot be.
    """
    array = vnp.asarray(v)
    if not array.ndim:
        return sp_mat.data * array
    return sp_mat.data * _read_like(sp_mat, _broadcast(array, sp_mat.shape))


def _broadcast(array: Array, shape: tuple[int, ...]) -> Array:
    sizes = (1,) * (len(shape) - array.ndim) + array.shape
    if len(sizes) > len(shape) or any(a not in (1, b) for a, b in zip(sizes, shape, strict=True)):
        raise ShapeError(f"a dense array of shape {array.shape} cannot be broadcast to the shape {shape} of a sparse array")
    return vnp.broadcast_to(array, shape)


def bcoo_multiply_sparse(lhs: BCOO, rhs: BCOO) -> BCOO:
    """Multiply two sparse arrays; an element for each pair is stored.

    Dimensions of size 1 are broadcast, as are missing batch dimensions. Raises `ShapeError` for other shapes.
    """
    lhs, rhs = _alike("multiply", lhs, rhs)
    shape = np.broadcast_shapes(lhs.shape, rhs.shape)
    lhs, rhs = (bcoo_broadcast_in_dim(m, shape=shape, broadcast_dimensions=range(m.ndim)) for m in (lhs, rhs))

    def multiply(lhs: BCOO, rhs: BCOO) -> BCOO:
        data, first, _ = element_pairs(lhs, rhs, range(lhs.n_sparse), range(lhs.n_sparse))
        return BCOO((data, first.reshape(data.shape[0], lhs.n_sparse)), shape=lhs.shape)

    return over_batches(multiply, lhs.n_batch)(lhs.broadcast_batches(), rhs.broadcast_batches())


def _alike(name: str, lhs: BCOO, rhs: BCOO) -> tuple[BCOO, BCOO]:
    """Return two arrays with the smaller numbers of batch and dense dimensions."""
    if lhs.ndim != rhs.ndim or any(a != b and 1 not in (a, b) for a, b in zip(lhs.shape, rhs.shape, strict=True)):
        raise ShapeError(f"{name}: sparse arrays must have one shape, got {lhs.shape} and {rhs.shape}")
    n_batch, n_dense = min(lhs.n_batch, rhs.n_batch), min(lhs.n_dense, rhs.n_dense)
    lhs, rhs = (bcoo_update_layout(m, n_batch=n_batch, n_dense=n_dense) for m in (lhs, rhs))
    return lhs, rhs


def bcoo_add(lhs: BCOO, rhs: BCOO) -> BCOO:
    """Add two sparse arrays of one shape; the elements of both are stored."""
    if lhs.shape != rhs.shape:
        raise ShapeError(f"add: sparse arrays must have one shape, got {lhs.shape} and {rhs.shape}")
    lhs, rhs = _alike("add", lhs, rhs)
    n, first, second = lhs.n_batch, lhs.broadcast_batches(), rhs.broadcast_batches()
    arrays = vnp.concatenate([first.data, second.data], n), vnp.concatenate([first.indices, second.indices], n)
    return BCOO(arrays, shape=lhs.shape)


def matmul(lhs: Any, rhs: Any) -> Any:
    """Multiply as ``@`` does, where one operand or both are sparse.

    Dimensions before the last two are batch dimensions, as for `numpy.matmul`; both operands have as many, or one of them has none. Raises
    `ShapeError` for others, and for numbers.
    """
    if not isinstance(lhs, JAXSparse) and not isinstance(rhs, JAXSparse):
        return dense_matmul(lhs, rhs)
    lhs, rhs = (x if isinstance(x, JAXSparse) else vnp.asarray(x) for x in (lhs, rhs))
    m, n = lhs.ndim, rhs.ndim
    if not m or not n:
        raise ShapeError(f"matmul: operands must have dimensions, got shapes {lhs.shape} and {rhs.shape}")
    contract = ((m - 1,), (max(n - 2, 0),))
    if m > 2 and n > 2:
        if lhs.shape[:-2] != rhs.shape[:-2]:
            raise ShapeError(f"matmul: sparse arrays must have the same batch dimensions, got shapes {lhs.shape} and {rhs.shape}")
        batch = tuple(range(m - 2))
        return bcoo_dot_general(lhs, rhs, dimension_numbers=(contract, (batch, batch)))
    product = bcoo_dot_general(lhs, rhs, dimension_numbers=(contract, ((), ())))
    if n > 2 and m == 2:  # the rows of the left operand come first: put them before the columns
        order = [*range(1, n - 1), 0, n - 1]
        if isinstance(product, BCOO):
            product = bcoo_update_layout(product, n_batch=0, n_dense=0)
            return BCOO((product.data, product.indices[:, np.array(order)]), shape=tuple(product.shape[i] for i in order))
        return vnp.transpose(product, order)
    return product


# Convolutions.


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
    left, right = (_as_sparse(x) for x in (lhs, rhs))
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


def _as_sparse(x: Any) -> BCOO:
    """Return an array with sparse dimensions alone; a dense one has all elements."""
    if isinstance(x, JAXSparse):
        return bcoo_update_layout(x.to_bcoo(), n_batch=0, n_dense=0)
    array = vnp.asarray(x)
    positions = np.indices(array.shape, np.int32).reshape(array.ndim, -1).T
    return BCOO((array.reshape(-1), positions), shape=array.shape, indices_sorted=True, unique_indices=True)
