"""Transposes before contractions go, if the result keeps its axes and the sums their order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

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
