"""LayerNorm, RMSNorm, GroupNorm and InstanceNorm against PyTorch's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import volta_fn as vf
from tests.nn.torch_oracle import DTYPES, assert_near, compare, numbers, torch
from volta_fn import nn
from volta_fn.errors import ArgumentError, DTypeError, ShapeError

#: Our layer, PyTorch's, the shape of an input.
CASES: dict[str, tuple[Any, Any, tuple[int, ...]]] = {
    "layer": (lambda **o: nn.LayerNorm.init(5, **o), lambda **o: torch.nn.LayerNorm(5, **o), (3, 4, 5)),
    "layer, two axes": (lambda **o: nn.LayerNorm.init((4, 5), **o), lambda **o: torch.nn.LayerNorm((4, 5), **o), (3, 4, 5)),
    "layer, all axes": (lambda **o: nn.LayerNorm.init([5], **o), lambda **o: torch.nn.LayerNorm([5], **o), (5,)),
    "rms": (lambda **o: nn.RMSNorm.init(5, **o), lambda **o: torch.nn.RMSNorm(5, **o), (3, 4, 5)),
    "rms, two axes": (lambda **o: nn.RMSNorm.init((4, 5), **o), lambda **o: torch.nn.RMSNorm((4, 5), **o), (3, 4, 5)),
    "group": (lambda **o: nn.GroupNorm.init(2, 6, **o), lambda **o: torch.nn.GroupNorm(2, 6, **o), (3, 6, 4, 5)),
    "group, no space": (lambda **o: nn.GroupNorm.init(3, 12, **o), lambda **o: torch.nn.GroupNorm(3, 12, **o), (5, 12)),
    "one group": (lambda **o: nn.GroupNorm.init(1, 6, **o), lambda **o: torch.nn.GroupNorm(1, 6, **o), (2, 6, 3)),
    "instance 1d": (lambda **o: nn.InstanceNorm1d.init(3, **o), lambda **o: torch.nn.InstanceNorm1d(3, **o), (2, 3, 7)),
    "instance 2d": (lambda **o: nn.InstanceNorm2d.init(3, **o), lambda **o: torch.nn.InstanceNorm2d(3, **o), (2, 3, 4, 5)),
    "instance 3d": (lambda **o: nn.InstanceNorm3d.init(3, **o), lambda **o: torch.nn.InstanceNorm3d(3, **o), (2, 3, 4, 2, 3)),
}


def with_numbers(layer: Any, dtype: str) -> Any:
    """Return the layer with parameters that show where they go."""
    return vf.tree.map(lambda leaf: vf.numpy.asarray(numbers(leaf.shape, dtype, seed=leaf.size)), layer)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("case", CASES)
def test_agrees_with_torch(case, affine, dtype):
    make, make_oracle, shape = CASES[case]
    name = "elementwise_affine" if case.startswith(("layer", "rms")) else "affine"
    oracle = make_oracle(dtype=getattr(torch, dtype), **{name: affine})
    layer = with_numbers(make(affine=affine, dtype=dtype), dtype)
    assert len(vf.tree.leaves(layer)) == len(list(oracle.parameters()))
    x = 3 * numbers(shape, dtype) + 1
    compare(layer, lambda x, **parameters: torch.func.functional_call(oracle, parameters, (x,)), x)


@pytest.mark.wide
@pytest.mark.parametrize("case", ["layer", "rms", "group", "instance 2d"])
def test_eps(case):
    make, make_oracle, shape = CASES[case]
    x = 1e-3 * numbers(shape, "float64")
    name = "elementwise_affine" if case in ("layer", "rms") else "affine"
    assert_near(make(eps=0.5, affine=False)(x), make_oracle(eps=0.5, **{name: False})(torch.tensor(x)), "float64")


def test_initial_parameters_change_nothing():
    layer = nn.GroupNorm.init(2, 4)
    np.testing.assert_array_equal(layer.weight, np.ones(4))
    np.testing.assert_array_equal(layer.bias, np.zeros(4))
    assert nn.LayerNorm.init(4, bias=False).bias is None
    assert nn.InstanceNorm1d.init(4).weight is None


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("case", CASES)
def test_half_precision_is_float32_rounded(case, dtype):
    make, _, shape = CASES[case]
    x = vf.numpy.asarray(200 * numbers(shape, "float32")).astype(dtype)  # squares overflow in float16
    out = make(dtype=dtype)(x)
    assert out.dtype == dtype
    np.testing.assert_array_equal(out, make()(x.astype("float32")).astype(dtype))


@pytest.mark.parametrize("case", CASES)
def test_under_transforms_and_empty(case):
    make, _, shape = CASES[case]
    layer = make(affine=True)
    x = numbers((3, *shape), "float32")
    assert_near(vf.jit(lambda layer, x: layer(x))(layer, x[0]), layer(x[0]), "float32")
    expected = np.stack([layer(one) for one in x])
    assert_near(vf.vmap(layer)(x), expected, "float32")
    if len(shape) > 1:
        assert layer(x[0][:0]).shape == (0, *shape[1:])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: nn.LayerNorm.init(0), "normalized_shape"),
        (lambda: nn.LayerNorm.init(()), "normalized_shape"),
        (lambda: nn.RMSNorm.init("5"), "normalized_shape"),
        (lambda: nn.GroupNorm.init(4, 6), "no multiple"),
        (lambda: nn.GroupNorm.init(0, 6), "no multiple"),
        (lambda: nn.InstanceNorm1d.init(-1), "num_features"),
    ],
)
def test_bad_arguments(make, message):
    with pytest.raises(ArgumentError, match=message):
        make()


@pytest.mark.parametrize(
    ("layer", "shape", "message"),
    [
        (nn.LayerNorm.init(4), (4, 3), r"last axes of the input have sizes \(4,\), got shape \(4, 3\)"),
        (nn.RMSNorm.init((2, 3)), (3,), r"sizes \(2, 3\)"),
        (nn.GroupNorm.init(2, 4), (2, 3, 4), "size 4 along axis 1"),
        (nn.InstanceNorm2d.init(3), (3, 4, 4), "batch axis"),
        (nn.InstanceNorm2d.init(3), (2, 4, 4, 4), "size 3 along axis 1"),
    ],
)
def test_bad_shapes(layer, shape, message):
    with pytest.raises(ShapeError, match=message):
        layer(np.ones(shape, np.float32))


@pytest.mark.parametrize("dtype", ["int32", "bool", "complex64"])
def test_bad_dtypes(dtype):
    for layer in (nn.LayerNorm.init(2), nn.RMSNorm.init(2), nn.GroupNorm.init(1, 2), nn.InstanceNorm1d.init(2)):
        with pytest.raises(DTypeError, match="is of dtype"):
            layer(np.ones((2, 2, 2), dtype))
