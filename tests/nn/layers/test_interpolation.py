"""`interpolate` and the modes of `Upsample` that test_resampling leaves out, against PyTorch's."""

from __future__ import annotations

import numpy as np
import pytest

from tests.nn.torch_oracle import DTYPES, assert_near, compare, numbers, torch
from volta_fn import nn
from volta_fn.errors import ArgumentError, ShapeError

F = torch.nn.functional
CASES = {
    "bicubic": (2, {"scale_factor": 2.0, "mode": "bicubic"}),
    "bicubic, smaller": (2, {"size": (3, 2), "mode": "bicubic"}),
    "bicubic, corners": (2, {"size": (7, 9), "mode": "bicubic", "align_corners": True}),
    "bicubic, broken": (2, {"scale_factor": (1.5, 2.3), "mode": "bicubic"}),
    "area": (2, {"size": (2, 7), "mode": "area"}),
    "area, 1d": (1, {"scale_factor": 0.4, "mode": "area"}),
    "area, 3d": (3, {"size": 2, "mode": "area"}),
    "nearest-exact": (2, {"size": (7, 3), "mode": "nearest-exact"}),
    "nearest-exact, broken": (1, {"scale_factor": 1.7, "mode": "nearest-exact"}),
    "recomputed": (2, {"scale_factor": (1.5, 2.3), "mode": "bilinear", "recompute_scale_factor": True}),
    "nearest": (2, {"scale_factor": [3.0, 2.0]}),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", CASES)
def test_interpolate_agrees_with_torch(case, dtype):
    rank, options = CASES[case]
    oracle = {name: tuple(value) if isinstance(value, list) else value for name, value in options.items()}
    compare(
        nn.Lambda(lambda x: nn.interpolate(x, **options)), lambda x: F.interpolate(x, **oracle), numbers((2, 3, *(5, 4, 3)[:rank]), dtype)
    )


@pytest.mark.wide
@pytest.mark.parametrize("mode", ["bicubic", "aligned", "nearest-exact", "area"])
def test_all_small_sizes(mode):
    options = {"mode": "bicubic", "align_corners": True} if mode == "aligned" else {"mode": mode}
    for size in range(1, 6):
        x = numbers((1, 1, size, 2), "float64", size)
        for out in range(1, 12, 2):
            expected = F.interpolate(torch.tensor(x), (out, 3), **options)
            assert_near(nn.interpolate(x, (out, 3), **options), expected, "float64", f"{size} to {out}")


def test_bad_arguments_are_refused():
    x = np.ones((1, 1, 2, 2), "float32")
    with pytest.raises(ArgumentError):
        nn.interpolate(x, 3, mode="area", align_corners=True)
    with pytest.raises(ArgumentError):
        nn.interpolate(x)
    with pytest.raises(ShapeError):
        nn.interpolate(x[0], 3, mode="bicubic")
