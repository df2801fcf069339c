"""Elements chosen from rows, and put back into them, as comparisons: the same values, in the kernel that goes over the rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as jnp
from tests.compiler.ir import oracle
from volta_fn import nn
from volta_fn.compiler.fusion import fuse
from volta_fn.compiler.ir.kernel import KernelCall
from volta_fn.compiler.passes.expansions import expand_onehot_indexing
from volta_fn.compiler.pipeline import simplify

#: Beyond both ends, too, and below the first: NumPy's negative numbers.
LABELS = np.array([0, 4, -1, 2, 5, -5, -6, 9], np.int32)
X = np.random.default_rng(0).standard_normal((8, 5)).astype(np.float32)


def parts(function: Any, *args: Any) -> Any:
    return fuse(expand_onehot_indexing(simplify(vf.make_jaxpr(function)(*args))), oracle.SimpleTarget())


def names(partition: Any) -> list[str]:
    return [item.primitive.name for item in partition.nodes if not isinstance(item, KernelCall)]


def check(function: Any, *args: Any, kernels: int = 1) -> None:
    """Check that the function is so many kernels and nothing else, and gives what its operations give one by one."""
    partition = parts(function, *args)
    assert not names(partition) and len(partition.kernels) == kernels
    for actual, wanted in zip(oracle.run(partition, *args), vf.tree.leaves(function(*args)), strict=True):
        np.testing.assert_array_equal(actual, wanted)


def softened(x: Any) -> Any:
    """Made element by element of a reduction over the last axis."""
    return x - x.max(-1, keepdims=True)


def chosen(x: Any, labels: Any, **options: Any) -> Any:
    """Return the element of each row that its label says."""
    numbers = vf.lax.GatherDimensionNumbers((), (1,), (1,), (0,), (0,))
    return vf.lax.gather(x, labels[:, None], numbers, (1, 1), **options)


@pytest.mark.parametrize("mode", ["fill", "clip", "promise_in_bounds"])
@pytest.mark.parametrize("dtype", [np.int32, np.uint8, np.int64], ids=lambda d: d.__name__)
def test_reading_follows_the_mode(mode: str, dtype: Any) -> None:
    labels = np.where(LABELS < 0, 4, LABELS).astype(dtype) if dtype is np.uint8 else LABELS.astype(dtype)
    check(lambda x, i: chosen(softened(x), i, mode=mode), X, labels)


def test_fill_values_and_signs_of_zero() -> None:
    x = np.where(np.arange(40).reshape(8, 5) % 3 == 0, -0.0, X).astype(np.float32)
    x[3, 2] = np.nan
    function = lambda x, i: chosen(x * jnp.sign(1 + abs(x).max(1, keepdims=True)), i, mode="fill", fill_value=-3)
    check(function, x, LABELS)
    result = oracle.run(parts(function, x, LABELS), x, LABELS)[0]
    np.testing.assert_array_equal(np.signbit(result), np.signbit(function(x, LABELS)))


def test_other_axes_and_more_dimensions() -> None:
    x = np.random.default_rng(1).standard_normal((3, 7, 2)).astype(np.float32)
    for axis, labels in ((1, [[[0, 6]], [[3, 3]], [[-7, 1]]]), (2, np.ones((3, 7, 1))), (0, np.full((1, 7, 2), 2))):
        shifted = lambda x, i, axis=axis: jnp.take_along_axis(x - x.max(axis, keepdims=True), i, axis)
        check(shifted, x, np.array(labels, np.int32), kernels=1 + (axis != 2))


@pytest.mark.parametrize("update", ["set", "add"])
@pytest.mark.parametrize("mode", ["drop", "clip"])
def test_one_number_put_into_each_row(update: str, mode: str) -> None:
    labels = np.abs(LABELS)

    def scattered(u: Any, i: Any) -> Any:
        numbers = vf.lax.ScatterDimensionNumbers((), (1,), (1,), operand_batching_dims=(0,), scatter_indices_batching_dims=(0,))
        return {"set": vf.lax.scatter, "add": vf.lax.scatter_add}[update](jnp.full((8, 5), 0.5), i[:, None], u, numbers, mode=mode)

    check(scattered, X[:, 0], labels)


def test_cross_entropy_and_its_gradient_go_over_the_rows_once() -> None:
    def loss(x: Any, labels: Any) -> Any:
        return -jnp.take_along_axis(nn.log_softmax(x), labels[:, None], 1)

    def both(x: Any, labels: Any) -> Any:
        value, pullback = vf.vjp(lambda x: loss(x, labels), x)
        return value, pullback(jnp.ones_like(value))[0]

    partition = parts(both, X, LABELS % 5)
    assert not names(partition) and len(partition.kernels) == 1
    value, gradient = oracle.run(partition, X, LABELS % 5)
    chances = np.exp(X.astype(np.float64)) / np.exp(X.astype(np.float64)).sum(1, keepdims=True)
    chosen = np.arange(5) == (LABELS % 5)[:, None]
    np.testing.assert_allclose(value[:, 0], -np.log(chances[chosen]), rtol=1e-5)
    np.testing.assert_allclose(gradient, chances - chosen, atol=1e-6)


def test_arrays_that_are_there_are_read_where_the_index_says() -> None:
    """Comparing all places would read the whole array for a few numbers of it."""
    assert names(parts(lambda x, i: chosen(x, i), X, LABELS))[-1] == "gather"
    assert names(parts(lambda x, i: jnp.take_along_axis(softened(x), i, 1), X, np.zeros((8, 2), np.int32))) == ["gather"]
    assert "gather" in names(parts(lambda x, i: softened(x)[i], X, LABELS))


def test_arrays_of_many_numbers_are_changed_where_the_index_says() -> None:
    assert "scatter_add" in names(parts(lambda x, u, i: x.at[jnp.arange(8), i].add(u), X, X[:, 0], LABELS))
