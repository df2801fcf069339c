"""Faults of Volta, the framework before this one, that no other test is about; `docs/from_volta.md` lists them all."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as jnp
from volta_fn import nn
from volta_fn.errors import VoltaError


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("axis", [None, 0, 1])
def test_maxima_of_very_small_numbers(axis: int | None, dtype: str) -> None:
    """Below -1e9, down to the smallest there are, and -inf alone."""
    x = -np.array([[3e9, 1e30, np.inf], [2e9, 1e38, np.inf]], np.float32)
    result = jnp.max(jnp.asarray(x, dtype), axis)
    np.testing.assert_array_equal(result, np.max(np.asarray(jnp.asarray(x, dtype)), axis))
    pooled = nn.MaxPool1d.init(2, stride=1)(jnp.asarray(x, dtype)[None])
    np.testing.assert_array_equal(pooled[0, :, 0], jnp.asarray(x[:, 0], dtype))


@pytest.mark.wide
def test_arrays_of_seventeen_million_elements() -> None:
    """More than 65,535 groups of 256: elementwise, broadcast and reduced."""
    x = jnp.ones(65_535 * 256 + 1_000, "int8")
    y = vf.jit(lambda x: x + x * x)(x)
    assert y.shape == x.shape and int(y[-1]) == 2
    assert int(jnp.sum(y, dtype="int64")) == 2 * x.size


@pytest.mark.parametrize(
    "call",
    [
        lambda x: x + jnp.ones(4),
        lambda x: x @ jnp.ones(4),
        lambda x: x.reshape(5),
        lambda x: jnp.transpose(x, (0, 0)),
        lambda x: jnp.broadcast_to(x, (3, 2)),
        lambda x: jnp.sum(x, axis=2),
        lambda x: jnp.concatenate([x, x[0]]),
        lambda x: x[2],
        lambda x: nn.Linear.init(vf.random.key(0), 4, 4)(x),
        lambda x: nn.mse_loss(x, x[:, :2]),
    ],
)
def test_shape_errors_are_typed(call: Any) -> None:
    """An exception that can be caught, with the line of the call in it, traced or not."""
    for function in (call, vf.jit(call)):
        with pytest.raises(VoltaError) as caught:
            function(jnp.ones((2, 3)))
        assert isinstance(caught.value, (ValueError, IndexError))
        assert caught.value.location is not None and caught.value.location.file == __file__
