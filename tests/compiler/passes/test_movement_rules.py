"""Movement that moves nothing, undoes itself or combines."""

from __future__ import annotations

import numpy as np
import pytest

from tests.compiler.passes.common import left, special
from volta_fn import lax

X = np.arange(24, dtype=np.float32).reshape(2, 3, 4)


def test_reshapes_combine() -> None:
    assert left(lambda x: lax.reshape(lax.reshape(x, (6, 4)), (4, 6)), X) == ["reshape"]
    assert left(lambda x: lax.reshape(lax.reshape(x, (24,)), (2, 3, 4)), X) == []
    assert left(lambda x: lax.squeeze(lax.expand_dims(x, (0, 2)), (0, 2)), X) == []
    assert left(lambda x: lax.expand_dims(x, (1,)), X) == ["reshape"]


def test_transposes_combine() -> None:
    assert left(lambda x: lax.transpose(lax.transpose(x, (2, 0, 1)), (1, 2, 0)), X) == []
    assert left(lambda x: lax.transpose(lax.transpose(x, (2, 0, 1)), (2, 0, 1)), X) == ["transpose"]
    assert left(lambda x: lax.transpose(x, (1, 2, 0)), X[:1]) == ["reshape"]
    assert left(lambda x: lax.transpose(x, (1, 0, 2)), X[:, :, :0]) == ["transpose"]


def test_broadcasts_combine() -> None:
    row = X[0, 0]
    twice = lambda x: lax.broadcast_in_dim(lax.broadcast_in_dim(x, (3, 4), (1,)), (5, 3, 2, 4), (1, 3))
    assert left(twice, row) == ["broadcast_in_dim"]
    assert left(lambda x: lax.broadcast_in_dim(lax.expand_dims(x, (0,)), (3, 4), (0, 1)), row) == ["broadcast_in_dim"]
    assert left(lambda x: lax.broadcast_in_dim(x, (1, 4, 1), (1,)), row) == ["reshape"]
    unit = X[:1, :1, :1]
    assert left(lambda x: lax.broadcast_in_dim(lax.reshape(x, (1,)), (3,), (0,)), unit) == ["reshape", "broadcast_in_dim"]


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int8, np.complex64])
@pytest.mark.parametrize("name", ["reduce_sum", "reduce_prod", "reduce_max", "reduce_min"])
def test_reductions_over_unit_axes_are_reshapes(name: str, dtype: type) -> None:
    x = special(dtype)[:, None]
    assert left(lambda x: getattr(lax, name)(x, (1,)), x) == ["reshape"]
    assert left(lambda x: getattr(lax, name)(x, (0,)), x) == [name]


def test_what_moves_nothing_goes() -> None:
    assert left(lambda x: lax.rev(lax.rev(x, (0, 2)), (2, 0)), X) == []
    assert left(lambda x: lax.rev(x, (0,)), X[:1]) == []
    assert left(lambda x: lax.concatenate([x], 0), X) == []
    assert left(lambda x: lax.slice(x, (0, 0, 0), (2, 3, 4)), X) == []
    assert left(lambda x: lax.slice(x, (0, 0, 0), (2, 3, 3)), X) == ["slice"]
    assert left(lambda x: lax.pad(x, np.float32(1), [(0, 0, 0)] * 3), X) == []
    assert left(lambda x: lax.pad(x, np.float32(1), [(1, -1, 0)] + [(0, 0, 0)] * 2), X) == ["pad"]
    start = np.int32(7)
    assert left(lambda x, i: lax.dynamic_slice(x, (i, i, i), (2, 3, 4)), X, start) == []
    assert left(lambda x, y, i: lax.dynamic_update_slice(x, y, (i, i, i)), X, -X, start) == []
