"""Padding layers against PyTorch's."""

from __future__ import annotations

import numpy as np
import pytest

from tests.nn.torch_oracle import DTYPES, compare, numbers, torch
from volta_fn import nn
from volta_fn.errors import ArgumentError, ShapeError

SIZES = (6, 5, 4)
KINDS = ["ConstantPad", "ZeroPad", "ReflectionPad", "ReplicationPad", "CircularPad"]
PADDINGS = {1: [2, (3, 0)], 2: [1, (1, 2, 0, 3)], 3: [2, (0, 1, 2, 3, 1, 0)]}


@pytest.mark.wide
@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_agrees_with_torch(kind, rank):
    for padding in PADDINGS[rank]:
        arguments = (padding, -1.5) if kind == "ConstantPad" else (padding,)
        layer, oracle = (getattr(library, f"{kind}{rank}d") for library in (nn, torch.nn))
        for dtype in DTYPES[: rank % 2 + 1]:
            compare(layer.init(*arguments), oracle(*arguments), numbers((2, 3, *SIZES[:rank]), dtype))


@pytest.mark.parametrize("kind", ["ConstantPad", "ZeroPad"])
def test_negative_padding_crops(kind):
    arguments = ((-1, 2, -2, -1), 0.5) if kind == "ConstantPad" else ((-1, 2, -2, -1),)
    layer, oracle = (getattr(library, f"{kind}2d")(*arguments) for library in (nn, torch.nn))
    compare(layer, oracle, numbers((2, 3, 6, 5), "float32"))


@pytest.mark.parametrize("dtype", ["int32", "bool", "float16", "bfloat16", "complex64"])
def test_any_dtype_is_kept(dtype):
    x = np.ones((1, 2, 4), "float32").astype(dtype if dtype != "bfloat16" else "float16")
    for kind in KINDS:
        arguments = (1, 1) if kind == "ConstantPad" else (1,)
        out = getattr(nn, f"{kind}1d").init(*arguments)(nn.Identity()(x).astype(dtype))
        assert out.dtype == dtype and out.shape == (1, 2, 6)
        edges = [0, 5] if kind == "ZeroPad" else []
        np.testing.assert_array_equal(np.asarray(out, "complex64")[0, 0], [i not in edges for i in range(6)])


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: nn.ZeroPad2d.init((1, 2)), ArgumentError),
        (lambda: nn.ZeroPad1d.init(1.5), ArgumentError),
        (lambda: nn.ReflectionPad1d.init(3)(np.ones((1, 1, 3), "float32")), ShapeError),
        (lambda: nn.CircularPad1d.init(4)(np.ones((1, 1, 3), "float32")), ShapeError),
        (lambda: nn.ReplicationPad1d.init(1)(np.ones((1, 1, 0), "float32")), ShapeError),
        (lambda: nn.ZeroPad1d.init((-2, -2))(np.ones((1, 1, 3), "float32")), ShapeError),
        (lambda: nn.ZeroPad1d.init(1)(np.ones((1, 3), "float32")), ShapeError),
    ],
)
def test_bad_arguments_are_refused(make, error):
    with pytest.raises(error):
        make()
