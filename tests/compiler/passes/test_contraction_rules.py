"""Transposes before contractions go, if the result keeps its axes and the sums their order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as jnp
from tests.compiler.passes.common import left
from volta_fn import lax

RNG = np.random.default_rng(0)
X, Y = (RNG.normal(size=s).astype(np.float32) for s in ((2, 5, 3, 4), (2, 6, 3, 4)))


def test_products_of_transposed_matrices() -> None:
    a, b = X[0, :, 0], Y[0, :, 0]
    assert left(lambda a, b: lax.dot(a, b.T), a, b) == ["dot_general"]
    assert left(lambda a, b: lax.dot(a.T, b), a, b[:5]) == ["dot_general"]
    assert left(lambda a, b: lax.dot(a.T, b.T), b[:4], a) == ["dot_general"]


def test_heads_of_attention_stay_where_they_are() -> None:
    def scores(q: Any, k: Any) -> Any:
        q, k = (lax.transpose(v, (0, 2, 1, 3)) for v in (q, k))
        return jnp.matmul(q, lax.transpose(k, (0, 1, 3, 2)))

    assert left(scores, X, Y) == ["dot_general"]


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (1, 0, 2, 3), (2, 0, 3, 1), (3, 2, 1, 0), (1, 3, 0, 2), (0, 2, 1, 3)])
@pytest.mark.parametrize("contracted", [((1, 2), (2, 1)), ((2, 1), (1, 2)), ((0,), (3,)), ((3, 0), (0, 3)), ((), ())])
def test_results_are_the_same_to_the_bit(order: tuple[int, ...], contracted: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    x, y = (RNG.normal(size=(3, 3, 3, 3)).astype(np.float32) for _ in range(2))
    first = lambda x, y: lax.dot_general(lax.transpose(x, order), y, (contracted, ((), ())))
    second = lambda x, y: lax.dot_general(x, lax.transpose(y, order), (contracted, ((), ())))
    assert left(first, x, y)[-1] == left(second, x, y)[-1] == "dot_general"


def test_what_would_move_axes_of_the_result_or_the_order_of_sums_stays() -> None:
    x, y = X[0], Y[0]
    free = lambda x, y: lax.dot_general(lax.transpose(x, (1, 0, 2)), y, (((2,), (2,)), ((), ())))
    assert left(free, x, y) == ["transpose", "dot_general"]
    sums = lambda x, y: lax.dot_general(lax.transpose(x, (0, 2, 1)), y, (((1, 2), (2, 1)), ((), ())))
    assert left(sums, x, y) == ["transpose", "dot_general"]


BATCH_OF_ONE = {
    "matrix on the right": (lambda x, w: x @ w.T, (1, 1, 6), (5, 6)),
    "stack of one on the right": (lambda x, w: x @ w.T[None], (1, 1, 6), (5, 6)),
    "two leading axes": (lambda x, w: x @ w.T, (1, 1, 1, 6), (5, 6)),
    "matrix on the left": (lambda x, w: w.T @ x, (1, 6, 1), (6, 5)),
    "stack of one on the left": (lambda x, w: w.T[None] @ x, (1, 6, 4), (6, 5)),
    "batch axes": (lambda x, w: lax.dot_general(x, w.T[None], (((2,), (1,)), ((0,), (0,)))), (1, 3, 6), (5, 6)),
    "einsum": (lambda x, w: jnp.einsum("btd,bdv->btv", x, w.T[None]), (1, 1, 6), (5, 6)),
    "squeezed": (lambda x, w: x @ jnp.squeeze(jnp.swapaxes(w, 1, 2), 0), (1, 6), (1, 5, 6)),
    "unit axes of the result": (lambda x, w: jnp.tensordot(jnp.transpose(x, (2, 0, 1, 3)), w, ((2,), (1,))), (2, 6, 1, 4), (5, 6)),
    "converted": (lambda x, w: x @ w.T.astype("float32"), (1, 1, 6), (5, 6)),
}


@pytest.mark.parametrize("name", BATCH_OF_ONE)
def test_axes_of_size_1_keep_no_transpose_from_its_product(name: str) -> None:
    product, x_shape, w_shape = BATCH_OF_ONE[name]
    x, w = RNG.normal(size=x_shape).astype(np.float32), RNG.normal(size=w_shape).astype(np.float16 if name == "converted" else np.float32)
    assert "transpose" not in left(product, x, w)
    expected = np.asarray(vf.jit(product)(x.astype(np.float64), w.astype(np.float64)), np.float64)
    np.testing.assert_allclose(np.asarray(vf.jit(product)(x, w)), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", [n for n in BATCH_OF_ONE if n != "converted"])
def test_batches_of_one_copy_no_operand(name: str, dtype: str) -> None:
    """Neither forward nor backward: no temporary is as large as the matrix."""
    product, x_shape, w_shape = BATCH_OF_ONE[name]
    wide = lambda shape: tuple(size * 64 if size > 4 else size for size in shape)
    avals = [vf.ShapeDtypeStruct(wide(shape), dtype) for shape in (x_shape, w_shape)]
    matrix = np.prod(avals[1].shape) * avals[1].dtype.itemsize
    assert vf.jit(product).lower(*avals).memory().temporaries < matrix / 4
    gradients = vf.grad(lambda x, w: (product(x, w).astype("float32") ** 2).sum(), (0, 1))
    if 1 in x_shape[-2:]:
        assert vf.jit(gradients).lower(*avals).memory().temporaries < matrix / 4


def test_reshapes_that_split_or_merge_axes_keep_their_transpose() -> None:
    product = lambda x, w: x @ jnp.reshape(w.T, (2, 3, 5))
    assert "transpose" in left(product, RNG.normal(size=(2, 1, 3)).astype(np.float32), RNG.normal(size=(5, 6)).astype(np.float32))
