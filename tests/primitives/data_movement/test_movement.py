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


@pytest.mark.parametrize("config", [[(1, 2, 0)], [(-1, 3, 2)], [(2, -1, 1)], [(-2, -1, 0)]])
def test_the_derivative_by_what_fills_is_a_sum_of_those_elements_alone(config: list[tuple[int, int, int]]) -> None:
    x = np.array([1.0, 2, 3, 4], np.float32)
    is_padding = np.asarray(lax.pad(np.zeros(4, np.float32), np.float32(1), config)) == 1
    for weight in (3e10, np.inf):  # of the operand's elements, beside which the others would vanish
        weights = np.where(is_padding, np.arange(1, is_padding.size + 1), weight).astype(np.float32)
        total = lambda v, weights=weights: (lax.pad(x, v, config) * weights).sum()
        for gradient in (vf.grad(total), vf.jit(vf.grad(total))):
            assert float(gradient(np.float32(0.5))) == weights[is_padding].sum()
    cubes = lambda v: (lax.pad(x, v, config) ** 3).sum()
    assert float(vf.grad(vf.grad(cubes))(np.float32(0.5))) == 3 * is_padding.sum()
