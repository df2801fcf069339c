"""Sparse arrays with batch, sparse and dense dimensions: padding, duplicates, unsorted indices, shared batches, and empty arrays."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import jax.experimental.sparse
import jax.numpy as jnp
import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as vnp
from volta_fn import lax
from volta_fn.errors import ArgumentError, ShapeError
from volta_fn.experimental import sparse

#: Shapes with the numbers of batch and dense dimensions.
LAYOUTS = [
    ((), 0, 0),
    ((3,), 0, 0),
    ((3,), 1, 0),
    ((3,), 0, 1),
    ((3, 4), 0, 0),
    ((3, 4), 1, 0),
    ((3, 4), 0, 1),
    ((2, 3, 4), 1, 1),
    ((2, 3, 4), 2, 0),
    ((2, 3, 4), 0, 2),
    ((2, 3, 4), 1, 0),
    ((2, 3, 2, 3), 1, 1),
    ((2, 0, 3), 1, 0),
    ((0, 3, 2), 1, 1),
    ((1, 3, 1), 1, 1),
]
CASES = [(*layout, shared) for layout in LAYOUTS for shared in (False, True) if layout[1] or not shared]


def draw(shape: tuple[int, ...], n_batch: int, n_dense: int, shared: bool = False, nse: int = 5, seed: int = 0) -> tuple[Any, np.ndarray]:
    """Return an array whose indices repeat, are unsorted and partly out of range, and what it is with its zeros."""
    rng = np.random.default_rng(seed)
    n_sparse = len(shape) - n_batch - n_dense
    batch, sizes, dense = shape[:n_batch], shape[n_batch : n_batch + n_sparse], shape[n_batch + n_sparse :]
    # Data have the size 1 in the first batch dimension, or indices in all.
    data_batch = (1, *batch[1:]) if shared and seed % 2 else batch
    index_batch = (1,) * n_batch if shared and not seed % 2 else batch
    data = rng.integers(-3, 4, (*data_batch, nse, *dense)).astype(np.float32)
    indices = np.stack([rng.integers(0, s + 2, (*index_batch, nse)) for s in sizes], -1) if sizes else np.zeros((*index_batch, nse, 0))
    indices = indices.astype(np.int32)
    array = np.zeros(shape, np.float32)
    for at in np.ndindex(*batch):
        for e in range(nse):
            from_data = tuple(i if s > 1 else 0 for i, s in zip(at, data_batch, strict=True))
            from_indices = tuple(i if s > 1 else 0 for i, s in zip(at, index_batch, strict=True))
            position = tuple(int(i) for i in indices[(*from_indices, e)])
            if all(i < s for i, s in zip(position, sizes, strict=True)):
                array[(*at, *position)] += data[(*from_data, e)]
    return sparse.BCOO((data, indices), shape=shape), array


def check(result: Any, expected: Any) -> None:
    """Compare a sparse or dense array with a dense one."""
    assert result.shape == np.shape(expected)
    np.testing.assert_allclose(np.asarray(sparse.todense(result)), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_methods_of_every_layout(case: Any, seed: int) -> None:
    shape, n_batch, n_dense, _ = case
    m, array = draw(*case, seed=seed)
    assert (m.shape, m.n_batch, m.n_dense, m.n_sparse, m.ndim) == (shape, n_batch, n_dense, len(shape) - n_batch - n_dense, len(shape))
    check(m, array)
    check(vf.jit(lambda m: m)(m), array)
    check(m.sort_indices(), array)
    check(m.sum_duplicates(), array)
    check(m.sum_duplicates(remove_zeros=False), array)
    check(vf.jit(lambda m: m.sum_duplicates(nse=7))(m), array)
    check(sparse.BCOO.fromdense(array, n_batch=n_batch, n_dense=n_dense), array)
    check(m.astype("int32"), array)
    check(-m, -array)
    check(m + m, 2 * array)
    check(m * m, array * array)
    check(m**2, array**2)
    check(abs(m), abs(array))
    check(m * array, array * array)
    check(m / np.float32(2), array / 2)
    children, static = m.tree_flatten()
    check(sparse.BCOO.tree_unflatten(static, children), array)
    for count in range(len(shape) + 1):
        for axes in itertools.combinations(range(len(shape)), count):
            check(sparse.bcoo_reduce_sum(m, axes=axes), array.sum(axes))
            check(sparse.bcoo_rev(m, axes), np.flip(array, axes))
            if all(shape[a] == 1 for a in axes):
                check(sparse.bcoo_squeeze(m, dimensions=axes), array.squeeze(axes))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_extraction(case: Any) -> None:
    m, array = draw(*case)
    ones = sparse.BCOO((np.ones_like(m.data), m.indices), shape=m.shape).todense()
    other = np.random.default_rng(5).normal(size=array.shape).astype(np.float32)
    check(sparse.bcoo_extract(m, other), np.where(np.asarray(ones) != 0, other, 0))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_layouts_convert_to_each_other(case: Any) -> None:
    m, array = draw(*case)
    for n_batch in range(m.ndim + 1):
        for n_dense in range(m.ndim + 1 - n_batch):
            other = m.update_layout(n_batch=n_batch, n_dense=n_dense, on_inefficient=None)
            assert (other.n_batch, other.n_dense) == (n_batch, n_dense)
            check(other, array)
            compiled = vf.jit(lambda m, b=n_batch, d=n_dense: sparse.bcoo_update_layout(m, n_batch=b, n_dense=d, on_inefficient=None))
            check(compiled(m), array)


def test_layouts_that_store_zeros_are_errors() -> None:
    m, _ = draw((3, 4), 0, 0)
    with pytest.raises(sparse.SparseEfficiencyError, match="on_inefficient"):
        m.update_layout(n_batch=1)
    with pytest.warns(sparse.SparseEfficiencyWarning, match="zeros"):
        m.update_layout(n_dense=1, on_inefficient="warn")
    with pytest.raises(ArgumentError, match="do not fit"):
        m.update_layout(n_batch=3)
    with pytest.raises(ArgumentError, match="on_inefficient"):
        m.update_layout(n_batch=1, on_inefficient="ignore")


@pytest.mark.parametrize("case", CASES, ids=str)
def test_shapes(case: Any) -> None:
    shape, n_batch, *_ = case
    m, array = draw(*case)
    n_sparse = m.n_sparse
    order = [*range(n_batch)[::-1], *range(n_batch, n_batch + n_sparse)[::-1], *range(n_batch + n_sparse, m.ndim)[::-1]]
    check(m.transpose(order), array.transpose(order))
    for places in itertools.combinations(range(m.ndim + 2), m.ndim):
        sizes = [2] * (m.ndim + 2)
        for place, size in zip(places, shape, strict=True):
            sizes[place] = size if size != 1 else 3
        expected = lax.broadcast_in_dim(array, tuple(sizes), places)
        check(sparse.bcoo_broadcast_in_dim(m, shape=sizes, broadcast_dimensions=places), expected)
    for axis in range(m.ndim):
        check(sparse.bcoo_concatenate([m, m], dimension=axis), np.concatenate([array, array], axis))
        check(m[(slice(None),) * axis + (slice(1, None),)], array[(slice(None),) * axis + (slice(1, None),)])
        check(m[(slice(None),) * axis + (slice(None, None, 2),)], array[(slice(None),) * axis + (slice(None, None, 2),)])
        if shape[axis]:
            check(m[(slice(None),) * axis + (-1,)], array[(slice(None),) * axis + (-1,)])
    sizes = [max(s - 1, 0) for s in shape]
    for starts in ([0] * m.ndim, [1] * m.ndim, [5] * m.ndim, [-1] * m.ndim):
        check(sparse.bcoo_dynamic_slice(m, starts, sizes), lax.dynamic_slice(array, starts, sizes) if m.ndim else array)
    new = (*shape[:n_batch][::-1], 1, int(np.prod(shape[n_batch : n_batch + n_sparse])), *shape[n_batch + n_sparse :])
    check(m.reshape(new), array.reshape(new))


def test_new_leading_dimensions_are_batches_that_hold_all_elements() -> None:
    m = sparse.BCOO.fromdense(np.array([0, 3, 0, 4]))
    wide = sparse.bcoo_broadcast_in_dim(m, shape=(2, 4), broadcast_dimensions=(1,))
    assert (wide.n_batch, wide.data.shape, wide.indices.shape) == (1, (2, 2), (2, 2, 1))
    check(wide, np.array([[0, 3, 0, 4]] * 2))


def test_booleans_are_stored() -> None:
    mask = np.array([[True, False], [False, True]])
    for n_batch in (0, 1):
        check(sparse.BCOO.fromdense(mask, n_batch=n_batch), mask)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_products(case: Any) -> None:
    shape, *_ = case
    m, array = draw(*case)
    rng = np.random.default_rng(7)
    for count in range(m.ndim + 1):
        for axes in itertools.combinations(range(m.ndim), count):
            dense = rng.integers(-2, 3, (*[shape[a] for a in axes], 2)).astype(np.float32)
            for split in range(count + 1):
                numbers = ((axes[split:], tuple(range(split, count))), (axes[:split], tuple(range(split))))
                expected = lax.dot_general(array, dense, dimension_numbers=numbers)
                check(sparse.bcoo_dot_general(m, dense, dimension_numbers=numbers), expected)
                flipped = ((numbers[0][1], numbers[0][0]), (numbers[1][1], numbers[1][0]))
                check(
                    sparse.bcoo_dot_general(dense, m, dimension_numbers=flipped), lax.dot_general(dense, array, dimension_numbers=flipped)
                )
                other = sparse.BCOO.fromdense(dense)
                check(sparse.bcoo_dot_general(m, other, dimension_numbers=numbers), expected)


@pytest.mark.parametrize("case", [c for c in CASES if c[1]], ids=str)
def test_batches_of_both_operands_stay_batches(case: Any) -> None:
    m, array = draw(*case)
    n, batch = m.n_batch, tuple(range(m.n_batch))
    rest = tuple(range(n, m.ndim))
    product = sparse.bcoo_dot_general(m, m, dimension_numbers=((rest, rest), (batch, batch)))
    assert product.n_batch == n
    check(product, (array * array).sum(rest))


@pytest.mark.parametrize("layout", [(0, 2), (1, 1), (2, 0), (0, 1), (1, 0), (0, 3), (3, 0), (0, 0)])
def test_sampled_products(layout: Any) -> None:
    n_batch, n_sparse = layout
    rng = np.random.default_rng(3)
    a, b = rng.normal(size=(2, 3, 4)).astype(np.float32), rng.normal(size=(2, 4, 5)).astype(np.float32)
    numbers = (((2,), (1,)), ((0,), (0,)))
    product = np.einsum("bij,bjk->bik", a, b)
    m, _ = draw(product.shape, n_batch, 3 - n_batch - n_sparse)
    data = sparse.bcoo_dot_general_sampled(a, b, m.indices, dimension_numbers=numbers)
    theirs = jax.experimental.sparse.bcoo_dot_general_sampled(
        jnp.asarray(a), jnp.asarray(b), jnp.asarray(np.asarray(m.indices)), dimension_numbers=numbers
    )
    inside = np.asarray(m.valid()).reshape(*m.valid().shape, *[1] * m.n_dense)
    np.testing.assert_allclose(np.where(inside, data, 0), np.where(inside, theirs, 0), rtol=1e-4, atol=1e-5)


def test_batches_under_vmap_scan_and_gradients() -> None:
    m, array = draw((2, 3, 4), 1, 0)
    vector = np.arange(4, dtype=np.float32)

    def multiply(row: Any) -> Any:
        assert row.n_batch == 0 and row.shape == (3, 4)
        return row @ vector

    check(vf.vmap(multiply)(m), array @ vector)
    check(vf.vmap(lambda row: row.T)(m), array.transpose(0, 2, 1))
    check(vf.jit(vf.vmap(lambda row: sparse.BCOO.fromdense(row, nse=12)))(array), array)
    total, stacked = lax.scan(lambda c, row: (c + row.todense(), row * np.float32(2)), np.zeros((3, 4), np.float32), m)
    check(total, array.sum(0))
    check(stacked, 2 * array)
    gradient = vf.grad(lambda data: (m.replace_data(data).todense() * array).sum())(m.data)
    np.testing.assert_allclose(gradient, sparse.bcoo_extract(m, array, assume_unique=True).data)
    sparse_gradient = sparse.grad(lambda m: (m.todense() * array).sum())(m)
    np.testing.assert_allclose(sparse_gradient.data, gradient)
    by_dense = vf.jacrev(lambda x: sparse.BCOO.fromdense(x, n_batch=1, nse=12).sum((1, 2)).todense())(array + (array == 0))
    np.testing.assert_allclose(by_dense, np.broadcast_to(np.eye(2)[:, :, None, None], (2, 2, 3, 4)))


@pytest.mark.parametrize("name", ["jacfwd", "jacrev", "jacobian"])
def test_jacobians_are_jaxs(name: str) -> None:
    array = np.array([[0, 2, 0], [3, 0, 4]], np.float32)
    vector = np.arange(3, dtype=np.float32)
    results = []
    for module, xp in ((sparse, vnp), (jax.experimental.sparse, jnp)):
        m = module.BCOO.fromdense(xp.asarray(array))
        f = lambda m, v, xp=xp: xp.sin(m @ v)
        by_m, by_v = getattr(module, name)(f, argnums=(0, 1))(m, xp.asarray(vector))
        single = getattr(module, name)(f)(m, xp.asarray(vector))
        assert (by_m.shape, by_m.n_batch) == ((2, 2, 3), 1) == (single.shape, single.n_batch)
        results.append([np.asarray(x) for x in (by_m.todense(), by_v, single.todense())])
    for ours, theirs in zip(*results, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5)


def test_unfit_arguments_raise() -> None:
    m, array = draw((2, 3, 4), 1, 1)
    with pytest.raises(ShapeError, match="batch dimensions"):
        sparse.BCOO((m.data, m.indices), shape=(3, 3, 4))
    with pytest.raises(ArgumentError, match="permute"):
        m.transpose((1, 0, 2))
    with pytest.raises(ArgumentError, match="bcoo_update_layout"):
        m.reshape(6, 4)
    with pytest.raises(ShapeError, match="one shape"):
        sparse.bcoo_extract(m, array[0])
    with pytest.raises(ShapeError, match="broadcast"):
        m * np.ones(3, np.float32)
    with pytest.raises(ArgumentError, match="broadcast_dimensions"):
        sparse.bcoo_broadcast_in_dim(m, shape=(2, 3, 4), broadcast_dimensions=(0, 1))
    with pytest.raises(IndexError, match="out of range"):
        m[2]


def test_negative_indices_are_padding() -> None:
    data, indices = np.array([1, 2, 4], np.float32), np.array([[-1], [1], [5]])
    m, dense = sparse.BCOO((data, indices), shape=(3,)), np.array([0, 2, 0], np.float32)
    ones = vnp.ones(3)
    for function in (lambda m: m.todense(), lambda m: m.sum_duplicates(nse=3).todense(), lambda m: (m * ones).todense()):
        np.testing.assert_array_equal(function(m), dense)
        np.testing.assert_array_equal(vf.jit(function)(m), dense)
    for function in (lambda m: m @ ones, lambda m: m.sum(), lambda m: (m * ones).sum()):
        assert float(function(m)) == float(vf.jit(function)(m)) == 2
    pairs = sparse.BCOO((np.ones((2, 3), np.float32), np.stack([indices, indices])), shape=(2, 3))
    np.testing.assert_array_equal(pairs @ ones, [1, 1])


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32])
def test_narrow_indices_of_large_results(dtype: type) -> None:
    rows = np.arange(1, 301, dtype=np.float32)[:, None] * np.ones(3, np.float32)
    batched, narrow = sparse.BCOO.fromdense(rows, n_batch=1, index_dtype=dtype), sparse.BCOO.fromdense(rows[:100], index_dtype=dtype)
    np.testing.assert_array_equal(batched.todense(), rows)
    np.testing.assert_array_equal(sparse.bcoo_update_layout(batched, n_batch=0, n_dense=0).todense(), rows)
    np.testing.assert_array_equal(narrow.reshape(300).todense(), rows[:100].reshape(300))
    np.testing.assert_array_equal(narrow.reshape(60, 5).todense(), rows[:100].reshape(60, 5))
    joined = sparse.bcoo_concatenate([narrow] * 3, dimension=0)
    np.testing.assert_array_equal(joined.todense(), np.concatenate([rows[:100]] * 3))
    wide = sparse.bcoo_broadcast_in_dim(narrow, shape=(300, 100, 3), broadcast_dimensions=(1, 2))
    np.testing.assert_array_equal(wide.todense(), np.broadcast_to(rows[:100], (300, 100, 3)))
    dense = sparse.BCOO.fromdense(np.ones((2, 300), np.float32), n_dense=1, index_dtype=dtype)
    np.testing.assert_array_equal(sparse.bcoo_update_layout(dense, n_dense=0).todense(), np.ones((2, 300)))


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16])
@pytest.mark.parametrize(
    "function",
    [
        lambda m: m.sum_duplicates(nse=3),
        lambda m: m.sort_indices(),
        lambda m: m.astype(np.int32),
        lambda m: m + m,
        lambda m: m * m,
        lambda m: m.reshape(10, 30),
        lambda m: m[50:290:2],
        lambda m: sparse.bcoo_dynamic_slice(m, (50,), (200,)),
        lambda m: sparse.bcoo_broadcast_in_dim(m, shape=(2, 300), broadcast_dimensions=(1,)),
    ],
)
def test_indices_narrower_than_their_array(dtype: type, function: Callable[[sparse.BCOO], sparse.BCOO]) -> None:
    data, positions = np.array([1, 2, 3], np.float32), np.array([[0], [60], [100]])
    narrow, wide = (sparse.BCOO((data, positions.astype(t)), shape=(300,)) for t in (dtype, np.int32))
    np.testing.assert_array_equal(function(narrow).todense(), function(wide).todense())


@pytest.mark.parametrize(("dtype", "values"), [(np.int32, [2, 1, 0]), (np.bool_, [True, True, False]), (np.float16, [2, 1, 0])])
def test_duplicates_are_added_up_before_they_are_rounded(dtype: type, values: list[Any]) -> None:
    m = sparse.BCOO((np.array([0.5, 0.5, 2, 1, -1], np.float32), np.array([[1], [1], [0], [2], [2]])), shape=(3,))
    for function in (lambda m: m.astype(dtype), sparse.sparsify(lambda m: m.astype(dtype))):
        for result in (function(m), vf.jit(function)(m)):
            assert result.dtype == dtype
            np.testing.assert_array_equal(result.todense(), np.array(values, dtype))
