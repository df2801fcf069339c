"""SpectralNorm and WeightNorm against PyTorch's: outputs, gradients by the weight that is learnt, states over several steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import volta_fn as vf
from tests.nn.torch_oracle import DTYPES, assert_near, numbers, torch
from volta_fn import nn
from volta_fn.errors import ArgumentError, ArgumentTypeError

KEY = vf.random.key(0)
SPECTRAL = torch.nn.utils.parametrizations.spectral_norm
WEIGHT = torch.nn.utils.parametrizations.weight_norm

#: Our layer, PyTorch's, the shape of an input.
CASES: dict[str, tuple[Any, Any, tuple[int, ...]]] = {
    "linear": (lambda d: nn.Linear.init(KEY, 5, 3, dtype=d), lambda: torch.nn.Linear(5, 3), (4, 5)),
    "conv": (lambda d: nn.Conv2d.init(KEY, 4, 6, 3, groups=2, dtype=d), lambda: torch.nn.Conv2d(4, 6, 3, groups=2), (2, 4, 5, 5)),
    "transposed": (lambda d: nn.ConvTranspose1d.init(KEY, 4, 6, 3, dtype=d), lambda: torch.nn.ConvTranspose1d(4, 6, 3), (2, 4, 5)),
}


def pair(case: str, dtype: str) -> tuple[Any, Any, np.ndarray]:
    """Our layer, PyTorch's with the same parameters, and an input."""
    make, make_oracle, shape = CASES[case]
    layer, oracle = make(dtype), make_oracle().to(getattr(torch, dtype))
    with torch.no_grad():
        oracle.weight.copy_(as_torch(np.asarray(layer.weight), case))
        oracle.bias.copy_(torch.tensor(np.asarray(layer.bias)))
    return layer, oracle, numbers(shape, dtype)


def as_torch(weight: np.ndarray, case: str) -> Any:
    """Return a weight in PyTorch's layout, which differs for linear layers."""
    return torch.tensor(weight.T if case == "linear" else weight)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", CASES)
def test_spectral_norm_agrees_with_torch_over_several_steps(case, dtype):
    plain, oracle, x = pair(case, dtype)
    layer, state = nn.SpectralNorm.init(KEY, plain, n_power_iterations=2)
    oracle = SPECTRAL(oracle, n_power_iterations=2)
    parametrization = oracle.parametrizations.weight[0]
    parametrization._u.copy_(torch.tensor(np.asarray(state.u)))
    parametrization._v.copy_(torch.tensor(np.asarray(state.v)))

    def loss(layer, x, state, training):
        out, new = layer(x, state, training=training)
        return (out * numbers(out.shape, dtype, 9)).sum(), (out, new)

    for step, training in enumerate([True, True, False]):
        x = numbers(x.shape, dtype, step)
        tensor = torch.tensor(x, requires_grad=True)
        oracle.zero_grad()
        oracle.train(training)
        expected = oracle(tensor)
        (expected * torch.tensor(numbers(tuple(expected.shape), dtype, 9))).sum().backward()
        (_, (out, state)), (by_layer, by_x) = vf.value_and_grad(loss, (0, 1), has_aux=True)(layer, x, state, training)
        assert_near(out, expected, dtype, "output")
        assert_near(state.u, parametrization._u, dtype, "u")
        assert_near(state.v, parametrization._v, dtype, "v")
        assert_near(by_x, tensor.grad, dtype, "gradient by the input")
        assert_near(as_torch(np.asarray(by_layer.layer.weight), case), oracle.parametrizations.weight.original.grad, dtype, "by weight")
        assert_near(by_layer.layer.bias, oracle.bias.grad, dtype, "by bias")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", CASES)
def test_weight_norm_agrees_with_torch(case, dtype):
    plain, oracle, x = pair(case, dtype)
    layer = nn.WeightNorm.init(plain)
    assert_near(layer(x), plain(x), dtype, "unchanged at first")
    oracle = WEIGHT(oracle, dim=1 if case == "transposed" else 0)
    parametrization = oracle.parametrizations.weight
    layer = layer.replace(magnitude=2 + vf.numpy.asarray(numbers(layer.magnitude.shape, dtype, 3)))
    with torch.no_grad():
        parametrization.original0.copy_(as_torch(np.asarray(layer.magnitude), case))
    tensor = torch.tensor(x, requires_grad=True)
    expected = oracle(tensor)
    weights = numbers(tuple(expected.shape), dtype, 9)
    (expected * torch.tensor(weights)).sum().backward()
    assert_near(layer(x), expected, dtype, "output")
    by_layer, by_x = vf.grad(lambda layer, x: (layer(x) * weights).sum(), (0, 1))(layer, x)
    assert_near(by_x, tensor.grad, dtype, "gradient by the input")
    assert_near(as_torch(np.asarray(by_layer.magnitude), case), parametrization.original0.grad, dtype, "by magnitude")
    assert_near(as_torch(np.asarray(by_layer.layer.weight), case), parametrization.original1.grad, dtype, "by direction")


@pytest.mark.wide
@pytest.mark.parametrize("case", CASES)
def test_the_power_iteration_finds_the_spectral_norm(case):
    plain, _, x = pair(case, "float64")
    layer, state = nn.SpectralNorm.init(KEY, plain, n_power_iterations=200)
    _, state = layer(x, state, training=True)
    weight = np.asarray(layer.unwrapped(state).weight)
    rows = np.moveaxis(weight, layer.axis, 0).reshape(weight.shape[layer.axis], -1)
    assert np.linalg.norm(rows, 2) == pytest.approx(1, rel=1e-6)


@pytest.mark.wide
def test_other_weights_and_axes():
    table = nn.WeightNorm.init(nn.Embedding.init(KEY, 10, 4), axis=1)
    assert table.magnitude.shape == (1, 4)
    assert table(np.array([1, 2])).shape == (2, 4)
    bilinear, state = nn.SpectralNorm.init(KEY, nn.Bilinear.init(KEY, 3, 4, 2), axis=2)
    assert (state.u.shape, state.v.shape) == ((4,), (6,))
    assert bilinear.unwrapped(state)(np.ones((5, 3), np.float32), np.ones((5, 4), np.float32)).shape == (5, 2)
    bias, state = nn.SpectralNorm.init(KEY, nn.LayerNorm.init(4), "weight")
    np.testing.assert_allclose(bias.unwrapped(state).weight, np.full(4, 0.5), rtol=1e-6)


class KeyedAndStateful(nn.Module):
    """A layer that takes everything."""

    weight: vf.Array

    def __call__(self, x, state, *, key=None, training=False):
        """Multiply the input by the weight; count the calls in training with a key."""
        return x * self.weight, state + int(training and key is not None)


def test_wrapped_layers_keep_their_state_key_and_training():
    inner = KeyedAndStateful(vf.numpy.ones(3)), vf.numpy.zeros((), "int32")
    weight, count = nn.WeightNorm.init(inner)
    spectral, state = nn.SpectralNorm.init(KEY, inner)
    x = np.ones(3, np.float32)
    assert weight.takes == spectral.takes == {"state", "key", "training"}
    _, count = weight(x, count, key=KEY, training=True)
    _, state = spectral(x, state, key=KEY, training=True)
    _, state = spectral(x, state)
    assert int(count) == int(state.layer) == 1
    assert nn.WeightNorm.init(nn.Linear.init(KEY, 2, 2)).takes == frozenset()
    assert nn.SpectralNorm.init(KEY, nn.Linear.init(KEY, 2, 2))[0].takes == {"state", "training"}


def test_in_sequential_under_jit_and_scan():
    model, state = nn.Sequential.init(
        nn.SpectralNorm.init(KEY, nn.Linear.init(KEY, 3, 4)), nn.relu, nn.WeightNorm.init(nn.Linear.init(KEY, 4, 2))
    )
    x = numbers((3, 5, 3), "float32")
    expected = state
    for batch in x:
        y, expected = model(batch, expected, training=True)
    scanned, outs = vf.jit(lambda s: vf.lax.scan(lambda s, batch: model(batch, s, training=True)[::-1], s, x))(state)
    assert_near(outs[-1], y, "float32")
    assert_near(scanned["0"].u, expected["0"].u, "float32")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision(dtype):
    linear = nn.Linear.init(KEY, 300, 200, dtype=dtype)
    spectral, state = nn.SpectralNorm.init(KEY, linear)
    assert {leaf.dtype.name for leaf in (state.u, state.v)} == {"float32"}
    assert spectral.unwrapped(state).weight.dtype == dtype
    weight = nn.WeightNorm.init(linear)
    np.testing.assert_allclose(
        weight.unwrapped().weight.astype("float32"), linear.weight.astype("float32"), rtol=2 * float(vf.numpy.finfo(dtype).eps)
    )


def test_empty_batch():
    for layer, *state in (nn.SpectralNorm.init(KEY, nn.Linear.init(KEY, 3, 2)), (nn.WeightNorm.init(nn.Linear.init(KEY, 3, 2)),)):
        out, _ = nn.apply(layer, np.zeros((0, 3), np.float32), *state)
        assert out.shape == (0, 2)


def test_bad_arguments():
    linear = nn.Linear.init(KEY, 3, 2)
    with pytest.raises(ArgumentError, match=r"has no array 'kernel' of floats; its children are \['weight', 'bias'\]"):
        nn.WeightNorm.init(linear, "kernel")
    with pytest.raises(ArgumentError, match="'bias'"):
        nn.SpectralNorm.init(KEY, linear.replace(bias=None), "bias")
    with pytest.raises(ArgumentError, match="axis"):
        nn.WeightNorm.init(linear, axis=2)
    with pytest.raises(ArgumentError, match="n_power_iterations"):
        nn.SpectralNorm.init(KEY, linear, n_power_iterations=0)
    with pytest.raises(ArgumentTypeError, match="wraps a layer"):
        nn.WeightNorm.init(nn.relu)
