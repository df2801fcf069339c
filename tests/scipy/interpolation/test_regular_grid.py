"""Interpolation on grids against SciPy's."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.interpolate

import volta_fn as vf
from volta_fn.errors import ArgumentError, DTypeError, ShapeError
from volta_fn.scipy.interpolate import RegularGridInterpolator

RNG = np.random.default_rng(0)
GRIDS = {n: [np.sort(RNG.uniform(0, 9, size)) for size in (4, 2, 5)[:n]] for n in (1, 2, 3)}


@pytest.mark.wide
@pytest.mark.parametrize("fill", [np.nan, None, -3.0])
@pytest.mark.parametrize("method", ["linear", "nearest"])
@pytest.mark.parametrize("rest", [(), (2,), (2, 3)])
@pytest.mark.parametrize("dimensions", GRIDS)
def test_values_are_scipys(dimensions, rest, method, fill):
    grid = GRIDS[dimensions]
    values = RNG.normal(size=(*[g.size for g in grid], *rest))
    mine = RegularGridInterpolator(grid, values, method, fill_value=fill)
    theirs = scipy.interpolate.RegularGridInterpolator(grid, values, method, bounds_error=False, fill_value=fill)
    points = RNG.uniform(-2, 11, size=(4, 6, dimensions))
    points[0, 0] = [g[0] for g in grid]
    points[0, 1] = [g[-1] for g in grid]
    points[0, 2] = [g[1] for g in grid]
    points[0, 3, 0] = np.nan
    points[0, 4] = [(g[0] + g[1]) / 2 for g in grid]
    np.testing.assert_allclose(mine(points), theirs(points), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(mine(points[1, 1]), theirs(points[1, 1]), rtol=1e-12, atol=1e-12)
    separate = tuple(np.moveaxis(points, -1, 0)) if dimensions > 1 else (points,)
    np.testing.assert_allclose(mine(separate), theirs(separate), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(mine(points, "nearest"), theirs(points, "nearest"), rtol=1e-12, atol=1e-12)


@pytest.mark.wide
def test_dtypes():
    grid, points = (np.array([1, 2, 4]),), np.array([[1.5], [3.0]], np.float32)
    assert RegularGridInterpolator(grid, np.array([1, 2, 3], np.int32))(points).dtype == np.float32
    assert RegularGridInterpolator(grid, np.array([1.0, 2, 3]))(points).dtype == np.float64
    values = np.array([1 + 1j, 2, 3j])
    result = RegularGridInterpolator(grid, values)(points)
    np.testing.assert_allclose(result, [1.5 + 0.5j, 1 + 1.5j])
    np.testing.assert_allclose(RegularGridInterpolator(grid, values.real)(np.array([2, 4], np.int32)), [2, 0])
    assert RegularGridInterpolator(grid, values.real)(np.zeros((0, 1))).shape == (0,)


@pytest.mark.wide
def test_scalars_keep_their_digits():
    interpolate = RegularGridInterpolator((np.arange(3.0), np.arange(2.0)), np.arange(6.0).reshape(3, 2), fill_value=0.1)
    np.testing.assert_allclose(interpolate((0.1, 0.3)), 0.5, rtol=1e-15)
    np.testing.assert_allclose(interpolate([0.1, 0.3]), [0.5], rtol=1e-15)
    assert interpolate((-1.0, 0.0)).item() == 0.1


def test_interpolators_are_pytrees():
    grid, values = [g.astype(np.float32) for g in GRIDS[2]], RNG.normal(size=(4, 2)).astype(np.float32)
    points = np.stack([np.full(3, (g[0] + 2 * g[1]) / 3) for g in grid], -1)
    mine = RegularGridInterpolator(grid, values)
    np.testing.assert_allclose(vf.jit(lambda f, x: f(x))(mine, points), mine(points), rtol=1e-6)
    np.testing.assert_allclose(vf.jit(lambda g, v: RegularGridInterpolator(g, v)(points))(grid, values), mine(points), rtol=1e-6)
    np.testing.assert_allclose(vf.vmap(mine)(points)[:, 0], mine(points), rtol=1e-6)
    outside = vf.grad(lambda x: mine(x, "linear").sum())(points - 100)
    assert outside.tolist() == np.zeros((3, 2)).tolist()


@pytest.mark.wide
def test_slopes_by_points_values_and_grid():
    grid, values = GRIDS[2], RNG.normal(size=(4, 2))
    points = np.stack([np.full(3, (g[0] + 2 * g[1]) / 3) for g in grid], -1)
    arguments = [*grid, values, points]

    def function(g: np.ndarray, h: np.ndarray, v: np.ndarray, x: np.ndarray) -> vf.Array:
        return (RegularGridInterpolator((g, h), v)(x) ** 2).sum()

    for i, slopes in enumerate(vf.grad(function, (0, 1, 2, 3))(*arguments)):
        steps = 1e-6 * np.eye(slopes.size).reshape(-1, *slopes.shape)
        ends = [[function(*arguments[:i], arguments[i] + s * step, *arguments[i + 1 :]) for step in steps] for s in (1, -1)]
        np.testing.assert_allclose(slopes.ravel(), (np.array(ends[0]) - np.array(ends[1])) / 2e-6, rtol=1e-6, atol=1e-8)


def test_wrong_arguments_are_named():
    grid, values = (np.arange(3.0), np.arange(2.0)), np.ones((3, 2))
    for call, error, words in [
        (lambda: RegularGridInterpolator(grid, values, "cubic"), ArgumentError, "'cubic'"),
        (lambda: RegularGridInterpolator(grid, values)(np.ones((1, 2)), "slinear"), ArgumentError, "'slinear'"),
        (lambda: RegularGridInterpolator(grid, values, bounds_error=True), ArgumentError, "fill_value"),
        (lambda: RegularGridInterpolator((grid[0][::-1], grid[1]), values), ArgumentError, "axis 0 do not increase"),
        (lambda: RegularGridInterpolator(grid, values.T), ShapeError, r"values \(2, 3\)"),
        (lambda: RegularGridInterpolator(grid, values[0]), ShapeError, "values"),
        (lambda: RegularGridInterpolator((grid[0][:1],), values[:1]), ShapeError, "at least two"),
        (lambda: RegularGridInterpolator((), values), ShapeError, "at least two"),
        (lambda: RegularGridInterpolator(grid, values, fill_value=1j), DTypeError, "complex"),
        (lambda: RegularGridInterpolator(grid, values)(np.ones((4, 3))), ShapeError, "3 coordinates, the grid 2"),
    ]:
        with pytest.raises(error, match=words):
            call()
