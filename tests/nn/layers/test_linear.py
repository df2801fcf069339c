"""Linear, Bilinear and Embedding against PyTorch's."""

from __future__ import annotations

import math

import numpy as np
import pytest

import volta_fn as vf
from tests.nn.torch_oracle import DTYPES, assert_near, compare, numbers, torch
from volta_fn import nn
from volta_fn.errors import ArgumentError, DTypeError, OutOfBoundsError, ShapeError

KEY = vf.random.key(0)
F = torch.nn.functional


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(3,), (5, 3), (2, 4, 3), (0, 3)])
def test_linear_agrees_with_torch(shape, bias, dtype):
    layer = nn.Linear.init(KEY, 3, 4, bias=bias, dtype=dtype)
    compare(layer, lambda x, weight, bias=None: F.linear(x, weight.T, bias), numbers(shape, dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bias", [True, False])
def test_bilinear_agrees_with_torch(bias, dtype):
    layer = nn.Bilinear.init(KEY, 3, 4, 2, bias=bias, dtype=dtype)
    left, right = numbers((5, 3), dtype), numbers((5, 4), dtype, 1)
    oracle = lambda x, weight, bias=None: F.bilinear(x, torch.tensor(right), weight, bias)
    compare(vf.tree.Partial(lambda layer, x: layer(x, right), layer), lambda x, **parameters: oracle(x, *parameters.values()), left)
    swapped = vf.grad(lambda y: layer(left, y).sum())(right)
    tensor = torch.tensor(right, requires_grad=True)
    F.bilinear(torch.tensor(left), tensor, *[torch.tensor(np.asarray(leaf)) for leaf in vf.tree.leaves(layer)]).sum().backward()
    assert_near(swapped, tensor.grad, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("padding_idx", [None, 2, -1])
def test_embedding_agrees_with_torch(padding_idx, dtype):
    layer = nn.Embedding.init(KEY, 6, 3, padding_idx=padding_idx, dtype=dtype)
    oracle = torch.nn.Embedding(6, 3, padding_idx, _weight=torch.tensor(np.asarray(layer.weight)))
    indices = np.int32([[0, 2, 2], [5, 1, 2]])
    weights = numbers((2, 3, 3), dtype)
    expected = oracle(torch.tensor(indices))
    (expected * torch.tensor(weights)).sum().backward()
    assert_near(layer(indices), expected, dtype)
    gradient = vf.grad(lambda layer: (layer(indices) * weights).sum())(layer)
    assert_near(gradient.weight, oracle.weight.grad, dtype)
    if padding_idx is not None:
        assert not layer.weight[padding_idx].any()


def test_embedding_outside_the_table_is_nan_and_attend_is_the_transpose():
    layer = nn.Embedding.init(KEY, 4, 3)
    assert np.isnan(vf.jit(layer)(np.int32([4]))).all()
    with pytest.raises(OutOfBoundsError, match="index 4 is out of bounds"):
        layer(np.int32([4]))
    np.testing.assert_allclose(layer.attend(layer(np.int32([1, 2]))), layer.weight[1:3] @ layer.weight.T, rtol=1e-6)
    assert layer(np.zeros((0, 2), np.int32)).shape == (0, 2, 3)


@pytest.mark.parametrize("dtype", [np.int8, np.int32])
def test_negative_indices_are_outside_the_table(dtype):
    """As in PyTorch: -1 often means that there is no token, and the table's last row is another one."""
    layer, indices = nn.Embedding.init(KEY, 200, 3), np.array([-1, 2, -4], dtype)
    with pytest.raises(OutOfBoundsError, match="index -1 is out of bounds"):
        layer(indices)
    for model in (layer, nn.quantize(layer, "int8")):
        for result in (vf.jit(model)(indices), vf.jit(vf.vmap(model))(indices)):
            np.testing.assert_array_equal(np.isnan(np.asarray(result)).all(1), [True, False, True])
    gradient = vf.jit(vf.grad(lambda layer, indices: layer(indices).sum()))(layer, indices).weight
    np.testing.assert_array_equal(np.asarray(gradient)[:, 0], np.arange(200) == 2)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"])
def test_indices_of_every_dtype_number_the_vectors_of_a_quantized_table(dtype):
    layer = nn.quantize(nn.Embedding.init(KEY, 200, 3), "int8")
    for indices in (np.array([1, 0, 100], dtype), np.array([7], dtype)):
        np.testing.assert_array_equal(np.asarray(vf.jit(layer)(indices)), np.asarray(layer(indices.astype(np.int32))))


def test_initial_parameters_are_distributed_as_torchs():
    for layer, bound in ((nn.Linear.init(KEY, 400, 50), 1 / 20), (nn.Bilinear.init(KEY, 25, 40, 30), 1 / 5)):
        for leaf in vf.tree.leaves(layer):
            assert 0.8 * bound < float(abs(leaf).max()) <= bound
        assert float(layer.weight.std()) == pytest.approx(bound / math.sqrt(3), rel=0.02)
    table = nn.Embedding.init(KEY, 100, 200).weight
    assert float(table.std()) == pytest.approx(1, rel=0.02)
    assert float(table.mean()) == pytest.approx(0, abs=0.02)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision(dtype):
    x = vf.numpy.asarray(numbers((5, 3), "float32")).astype(dtype)
    for layer in (nn.Linear.init(KEY, 3, 4, dtype=dtype), vf.tree.Partial(nn.Bilinear.init(KEY, 3, 3, 4, dtype=dtype), x)):
        wide = vf.tree.map(lambda leaf: leaf.astype("float32"), layer)
        assert layer(x).dtype == dtype
        np.testing.assert_allclose(layer(x).astype("float32"), wide(x.astype("float32")), rtol=0.05, atol=0.05)


def test_no_features():
    assert nn.Linear.init(KEY, 0, 3)(np.ones((2, 0), np.float32)).tolist() == [[0.0] * 3] * 2
    assert nn.Linear.init(KEY, 3, 0)(np.ones((2, 3), np.float32)).shape == (2, 0)


def test_bad_arguments():
    for sizes in ((-1, 2), (1.5, 2), (True, 2)):
        with pytest.raises(ArgumentError, match="in_features is an integer"):
            nn.Linear.init(KEY, *sizes)
    with pytest.raises(ArgumentError, match="outside a table of 3"):
        nn.Embedding.init(KEY, 3, 2, padding_idx=3)
    with pytest.raises(ShapeError, match="size 3 along axis -1, got shape"):
        nn.Linear.init(KEY, 3, 2)(np.ones((3, 2), np.float32))
    with pytest.raises(ShapeError):
        nn.Linear.init(KEY, 3, 2)(1.0)
    with pytest.raises(ShapeError, match="second"):
        nn.Bilinear.init(KEY, 3, 4, 2)(np.ones((5, 3), np.float32), np.ones((5, 3), np.float32))
    with pytest.raises(DTypeError, match="indices are integers"):
        nn.Embedding.init(KEY, 3, 2)(np.ones(2, np.float32))
