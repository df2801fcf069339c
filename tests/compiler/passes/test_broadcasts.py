"""Broadcasts before operations that broadcast by themselves."""

from __future__ import annotations

from typing import Any

import numpy as np

import volta_fn.numpy as jnp
from tests.compiler.passes.common import left, special
from volta_fn import lax

X = np.stack([special(np.float32), special(np.float32)[::-1]])


def test_they_go_where_another_operand_gives_the_shape() -> None:
    row, column = X[0], X[:, 0]
    assert left(lambda x, r: x + lax.broadcast_in_dim(r, x.shape, (1,)), X, row) == ["add"]
    assert left(lambda x, c: lax.broadcast_in_dim(c, x.shape, (0,)) * x, X, column) == ["reshape", "mul"]
    assert left(lambda x: lax.max(x, lax.broadcast_in_dim(np.float32(0), x.shape, ())), X) == ["max"]
    assert left(lambda x: x - lax.reduce_max(x, (1,))[:, None], X) == ["reduce_max", "reshape", "sub"]
    assert left(lambda x: jnp.where(x > 0, x, 0.0), X) == ["gt", "select_n"]


def test_they_stay_where_the_shape_comes_from_them() -> None:
    row, column = X[0], X[:, 0]
    assert left(lambda r: lax.sin(lax.broadcast_in_dim(r, (3, 14), (1,))), row) == ["broadcast_in_dim", "sin"]
    both = lambda r, c: lax.broadcast_in_dim(r, (2, 14), (1,)) + lax.broadcast_in_dim(c, (2, 14), (0,))
    assert left(both, row, column) == ["reshape", "add"]
    wider = lambda r, c: lax.broadcast_in_dim(r, (3, 2, 14), (2,)) + lax.broadcast_in_dim(c, (3, 2, 14), (1,))
    assert left(wider, row, column).count("broadcast_in_dim") == 1
    assert left(lambda x, r: lax.dot(x, lax.broadcast_in_dim(r, (14, 14), (1,))), X, row) == ["broadcast_in_dim", "dot_general"]


def test_a_broadcast_with_other_uses_stays_for_them() -> None:
    def function(x: Any, r: Any) -> Any:
        wide = lax.broadcast_in_dim(r, x.shape, (1,))
        return x + wide, wide

    assert left(function, X, X[0]) == ["broadcast_in_dim", "add"]


def test_empty_arrays() -> None:
    assert left(lambda x, r: x + lax.broadcast_in_dim(r, (0, 14), (1,)), X[:0], X[0]) == ["add"]
    assert left(lambda x, r: x + lax.broadcast_in_dim(r, (0, 14), (0, 1)), X[:0], X[:1]) == ["add"]
