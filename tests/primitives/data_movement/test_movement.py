"""Broadcasts and padding: NumPy's results, and mistakes."""

from __future__ import annotations

import numpy as np
import pytest

import volta_fn as vf
from volta_fn import lax
from volta_fn.errors import DTypeError


def test_dimensions_may_be_broadcast_in_any_order() -> None:
    x = np.arange(3.0, dtype=np.float32).reshape(3, 1)
    result = vf.jit(lambda x: lax.broadcast_in_dim(x, (2, 3, 4), (1, 0)))(x)
    np.testing.assert_array_equal(result, np.broadcast_to(x.T[:, :, None], (1, 3, 1)).repeat(2, 0).repeat(4, 2))
    weights = np.arange(24.0, dtype=np.float32).reshape(2, 3, 4)
    gradient = vf.grad(lambda x: (lax.broadcast_in_dim(x, (2, 3, 4), (1, 0)) * weights).sum())(x)
    np.testing.assert_allclose(gradient, weights.sum((0, 2))[:, None])


def test_what_fills_is_a_scalar_even_if_nothing_is_filled() -> None:
    with pytest.raises(DTypeError, match="zero-dimensional"):
        lax.pad(np.zeros(2, np.float32), np.zeros(2, np.float32), [(0, 0, 0)])
