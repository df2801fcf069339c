"""The adaptive softmax against PyTorch's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import volta_fn as vf
from tests.nn.torch_oracle import DTYPES, assert_near, compare, numbers, torch
from volta_fn import nn
from volta_fn.errors import ArgumentError, DTypeError, OutOfBoundsError, ShapeError

TARGET = np.array([0, 3, 4, 9, 10, 19])


def layer_of(dtype: str, **options: Any) -> nn.AdaptiveLogSoftmaxWithLoss:
    return nn.AdaptiveLogSoftmaxWithLoss.init(vf.random.key(0), 16, 20, [4, 10], dtype=dtype, **options)


class Joined(nn.Module):
    """The layer, with the log-probabilities and the loss in one array."""

    layer: nn.AdaptiveLogSoftmaxWithLoss

    def __call__(self, x: Any) -> Any:
        output, loss = self.layer(x, TARGET)
        return vf.numpy.append(output, loss)


def oracle_of(**options: Any) -> Any:
    """PyTorch's layer as a function of the input, with the parameters of ours."""
    oracle = torch.nn.AdaptiveLogSoftmaxWithLoss(16, 20, [4, 10], **options)

    def run(x: Any, **parameters: Any) -> Any:
        values = list(parameters.values())
        names = [name for name, _ in oracle.named_parameters()]
        weights = {name: value.T if value.ndim == 2 else value for name, value in zip(names, values, strict=True)}
        output, loss = torch.func.functional_call(oracle, weights, (x, torch.tensor(TARGET)))
        return torch.cat([output, loss[None]])

    return run


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("options", [{}, {"div_value": 2.0, "head_bias": True}, {"div_value": 3.0}])
def test_agrees_with_torch(options, dtype):
    compare(Joined(layer_of(dtype, **options)), oracle_of(**options), numbers((6, 16), dtype))


def test_probabilities_and_predictions():
    layer, x = layer_of("float32", div_value=2.0), 5 * numbers((50, 16), "float32")
    scores = np.asarray(layer.log_prob(x))
    np.testing.assert_allclose(np.exp(scores).sum(1), 1, rtol=1e-5)
    np.testing.assert_array_equal(layer.predict(x), scores.argmax(1))
    target = np.arange(50) % 20
    output, loss = layer(x, target)
    assert_near(output, scores[np.arange(50), target], "float32")
    assert_near(loss, -np.asarray(output).mean(), "float32")
    assert_near(layer(x[0], 0).output, scores[0, 0], "float32")
    assert layer(x[:0], target[:0]).output.shape == (0,)


def test_labels_that_are_no_class():
    layer, x = layer_of("float32"), numbers((2, 16), "float32")
    with pytest.raises(OutOfBoundsError, match="label 20 is none of the 20 classes"):
        layer(x, np.array([0, 20]))
    output = vf.jit(layer)(x, np.array([0, 20])).output
    assert np.isnan(output).tolist() == [False, True]


def test_bad_arguments():
    for cutoffs in ([], [0], [4, 4], [10, 4], [20], [1.5]):
        with pytest.raises(ArgumentError, match="cutoffs"):
            nn.AdaptiveLogSoftmaxWithLoss.init(vf.random.key(0), 16, 20, cutoffs)
    with pytest.raises(ArgumentError, match="div_value"):
        layer_of("float32", div_value=0)
    with pytest.raises(ShapeError, match="size 16"):
        layer_of("float32").log_prob(np.ones((2, 7), np.float32))
    with pytest.raises(ShapeError, match="labels of shape"):
        layer_of("float32")(np.ones((2, 16), np.float32), np.zeros(3, int))
    with pytest.raises(DTypeError, match="integers"):
        layer_of("float32")(np.ones((2, 16), np.float32), np.zeros(2))
