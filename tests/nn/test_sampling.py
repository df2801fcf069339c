"""grid_sample and affine_grid against PyTorch's, with positions inside, outside and at the edges."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import volta_fn as vf
from tests.nn.torch_oracle import assert_near, compare, numbers, torch
from volta_fn import nn
from volta_fn.errors import ArgumentError, DTypeError, ShapeError

F = torch.nn.functional
OPTIONS = list(itertools.product(["bilinear", "nearest", "bicubic"], ["zeros", "border", "reflection"], [False, True]))


def positions(rank: int, dtype: str) -> np.ndarray:
    """Return some positions inside, and some far outside."""
    return numbers((2, 3, *(4, 2)[: rank - 1], rank), dtype, 5) * 1.5


@pytest.mark.wide
@pytest.mark.parametrize(("mode", "padding", "corners"), OPTIONS)
def test_grid_sample_agrees_with_torch(mode, padding, corners):
    arguments = {"mode": mode, "padding_mode": padding, "align_corners": corners}
    for rank in (2, 3) if mode != "bicubic" else (2,):
        x, grid = numbers((2, 2, *(5, 4, 3)[:rank]), "float64"), positions(rank, "float64")
        compare(nn.Lambda(lambda x: nn.grid_sample(x, grid, **arguments)), lambda x: F.grid_sample(x, torch.tensor(grid), **arguments), x)
        compare(
            nn.Lambda(lambda grid: nn.grid_sample(x, grid, **arguments)),
            lambda grid: F.grid_sample(torch.tensor(x), grid, **arguments),
            grid,
        )


@pytest.mark.filterwarnings("ignore:Since version 1.3.0, affine_grid")
@pytest.mark.parametrize("corners", [False, True])
@pytest.mark.parametrize("size", [(2, 3, 4, 5), (1, 1, 2, 3, 4), (1, 1, 1, 3)])
def test_affine_grid_agrees_with_torch(size, corners):
    rank = len(size) - 2
    theta = numbers((size[0], rank, rank + 1), "float32")
    oracle = lambda theta: F.affine_grid(theta, size, align_corners=corners)
    compare(nn.Lambda(lambda theta: nn.affine_grid(theta, size, corners)), oracle, theta)


def test_the_identity_returns_the_image():
    x = numbers((2, 3, 4, 5), "float32")
    identity = np.broadcast_to(np.eye(2, 3, dtype="float32"), (2, 2, 3))
    for corners, mode in itertools.product([False, True], ["bilinear", "nearest", "bicubic"]):
        grid = nn.affine_grid(identity, x.shape, corners)
        np.testing.assert_allclose(nn.grid_sample(x, grid, mode, "border", corners), x, rtol=1e-4, atol=1e-5)  # positions round


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_float32_rounded(dtype):
    x, grid = (vf.numpy.asarray(v, dtype) for v in (numbers((2, 2, 5, 4), "float32"), positions(2, "float32")))
    np.testing.assert_array_equal(nn.grid_sample(x, grid), nn.grid_sample(x.astype("float32"), grid.astype("float32")).astype(dtype))


def test_infinities_outside_do_not_spread_and_nan_positions_show():
    x = np.ones((1, 1, 2, 2), "float32")
    grid = np.array([[[[5.0, 5.0], [np.nan, 0.0], [0.0, 0.0]]]], "float32")
    assert_near(np.isnan(nn.grid_sample(x, grid)).astype("float32"), np.array([[[[0.0, 1.0, 0.0]]]], "float32"), "float32")
    assert nn.grid_sample(x[:0], grid[:0]).shape == (0, 1, 1, 3)


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda x, g: nn.grid_sample(x, g[..., :1]), ShapeError),
        (lambda x, g: nn.grid_sample(x, g[:1]), ShapeError),
        (lambda x, g: nn.grid_sample(x[..., :0], g), ShapeError),
        (lambda x, g: nn.grid_sample(x, g, mode="cubic"), ArgumentError),
        (lambda x, g: nn.grid_sample(x, g, padding_mode="wrap"), ArgumentError),
        (lambda x, g: nn.grid_sample(x[..., None], positions(3, "float32"), mode="bicubic"), ArgumentError),
        (lambda x, g: nn.grid_sample(1j * x, g), DTypeError),
        (lambda x, g: nn.affine_grid(np.ones((1, 2, 3), "float32"), (2, 1, 4, 4)), ShapeError),
    ],
)
def test_bad_arguments_are_refused(call, error):
    with pytest.raises(error):
        call(numbers((2, 2, 5, 4), "float32"), positions(2, "float32"))
