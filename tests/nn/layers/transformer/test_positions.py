"""Positions by their definitions, in NumPy."""

from __future__ import annotations

import numpy as np
import pytest

import volta_fn as vf
from tests.nn.torch_oracle import numbers
from volta_fn import nn
from volta_fn.errors import ArgumentError, DTypeError, OutOfBoundsError, ShapeError


@pytest.mark.wide
@pytest.mark.parametrize("features", [6, 7, 1, 0])
def test_sinusoidal_positions(features):
    table = np.zeros((9, features))
    for p, j in np.ndindex(*table.shape):
        table[p, j] = (np.sin if j % 2 == 0 else np.cos)(p / 100.0 ** ((j - j % 2) / features))
    np.testing.assert_allclose(nn.sinusoidal_positions(np.arange(9), features, base=100.0, dtype="float64"), table, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(nn.sinusoidal_positions(np.arange(9), features, base=100.0), table, rtol=1e-5, atol=1e-6)


@pytest.mark.wide
@pytest.mark.parametrize("interleaved", [False, True])
def test_rotary_positions_rotate_pairs(interleaved):
    x, positions = numbers((2, 5, 6), "float64"), np.array([0, 1, 2, 7, 30])
    wanted = x.copy()
    for t, i in np.ndindex(5, 3):
        pair = [2 * i, 2 * i + 1] if interleaved else [i, i + 3]
        angle = positions[t] / 100.0 ** (2 * i / 6)
        rotation = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
        wanted[:, t, pair] = x[:, t, pair] @ rotation.T
    np.testing.assert_allclose(nn.apply_rotary(x, positions, 100.0, interleaved), wanted, rtol=1e-12, atol=1e-12)
    single = nn.apply_rotary(x.astype(np.float32), positions, 100.0, interleaved)
    np.testing.assert_allclose(single, wanted, rtol=1e-4, atol=1e-5)
    each = nn.apply_rotary(x, np.stack([positions, positions]), 100.0, interleaved)
    np.testing.assert_allclose(each, wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.wide
@pytest.mark.parametrize("interleaved", [False, True])
def test_products_of_rotated_vectors_depend_on_distances(interleaved):
    q, k = numbers((1, 8), "float64", 0), numbers((1, 8), "float64", 1)
    product = lambda m, n: float((nn.apply_rotary(q, m, interleaved=interleaved) * nn.apply_rotary(k, n, interleaved=interleaved)).sum())
    assert product(3, 8) == pytest.approx(product(103, 108), rel=1e-9)
    assert abs(product(3, 8) - product(3, 9)) > 1e-3


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_rotates_by_exact_angles(dtype):
    x, positions = numbers((4, 8), "float32"), np.array([0, 1000, 1001, 4003])
    result = nn.apply_rotary(vf.numpy.asarray(x, dtype), positions)
    assert result.dtype.name == dtype
    np.testing.assert_allclose(result.astype("float32"), nn.apply_rotary(x, positions), atol=2e-2)
    assert nn.sinusoidal_positions(positions, 8, dtype=dtype).dtype.name == dtype


@pytest.mark.wide
def test_layers_add_vectors():
    x = numbers((2, 5, 6), "float32")
    sines, table = nn.SinusoidalPositions(), nn.LearnedPositions.init(vf.random.key(0), 9, 6)
    np.testing.assert_allclose(sines(x), x + nn.sinusoidal_positions(np.arange(5), 6), rtol=1e-6)
    np.testing.assert_allclose(table(x), x + table.weight[:5], rtol=1e-6)
    indices = np.array([[4, 3, 2, 1, 0], [8, 7, 6, 5, 4]])
    np.testing.assert_allclose(sines(x, indices), x + nn.sinusoidal_positions(indices, 6), rtol=1e-6)
    np.testing.assert_allclose(table(x, indices), x + np.asarray(table.weight)[indices], rtol=1e-6)
    with pytest.raises(vf.errors.OutOfBoundsError):
        table(x, np.array([8, 9, 0, 0, 0]))
    assert np.asarray(table.weight).std() == pytest.approx(0.02, rel=0.3)
    gradient = vf.jit(vf.grad(lambda table: table(x).sum()))(table)
    np.testing.assert_allclose(gradient.weight, np.repeat([2.0, 0.0], [5, 4])[:, None] * np.ones(6))
    assert sines(x.astype("float64")).dtype == np.float64
    assert sines(x[:, :0]).shape == (2, 0, 6) and table(x[:0]).shape == (0, 5, 6)


@pytest.mark.wide
def test_bad_arguments():
    x = np.ones((2, 5, 6), np.float32)
    table = nn.LearnedPositions.init(vf.random.key(0), 4, 6)
    with pytest.raises(ShapeError, match="5 positions, but the table has 4"):
        table(x)
    for bad in (x[0, 0], np.float32(1)):
        with pytest.raises(ShapeError):
            table(bad)
    with pytest.raises(ShapeError, match="size 6"):
        table(x[:, :4, :5])
    with pytest.raises(DTypeError):
        table(x, np.ones(5))
    for position in (-1, 4):
        with pytest.raises(OutOfBoundsError, match=f"LearnedPositions: position {position} is outside the table of 4"):
            table(x[:, :1], np.array([position]))
    for layer in (table, nn.SinusoidalPositions()):
        with pytest.raises(ShapeError, match="positions must broadcast"):
            layer(x, np.arange(4))
    with pytest.raises(DTypeError, match="float dtype"):
        nn.SinusoidalPositions()(np.ones((5, 6), np.int32))
    with pytest.raises(ShapeError, match="even number"):
        nn.apply_rotary(np.ones((5, 3)), np.arange(5))
    with pytest.raises(ShapeError, match="broadcast"):
        nn.apply_rotary(x, np.arange(4))
    with pytest.raises(DTypeError):
        nn.apply_rotary(np.ones((5, 4), np.int32), np.arange(5))
    with pytest.raises(ArgumentError):
        nn.LearnedPositions.init(vf.random.key(0), 4, 6, std=-1.0)
    with pytest.raises(ArgumentError):
        nn.sinusoidal_positions(np.arange(3), -2)
    with pytest.raises(ArgumentError, match="above 0"):
        nn.apply_rotary(x, np.arange(5), base=0.0)
