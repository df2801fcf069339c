"""Layers against PyTorch's: outputs, and the gradients by input and parameters of the output's product with fixed numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import volta_fn as vf
from tests.narrow_devices import where_the_device_has_the_dtypes

torch = pytest.importorskip("torch")
torch.set_num_threads(1)

#: How far results may be off, relative to the largest number.
RELATIVE = {"float32": 1e-5, "float64": 1e-10}
DTYPES = list(RELATIVE)


def numbers(shape: tuple[int, ...], dtype: str, seed: int = 0) -> np.ndarray:
    """Reproducible normal numbers."""
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def assert_near(actual: Any, desired: Any, dtype: str, subject: str = "") -> None:
    """Equal shapes, and values to the dtype's relative error."""
    result, wanted = np.asarray(actual), desired.detach().numpy() if isinstance(desired, torch.Tensor) else np.asarray(desired)
    assert result.shape == wanted.shape, subject
    assert result.dtype == wanted.dtype, subject
    scale = np.abs(wanted).max(initial=0.0)
    np.testing.assert_allclose(result, wanted, rtol=RELATIVE[dtype], atol=RELATIVE[dtype] * max(float(scale), 1e-30), err_msg=subject)


@where_the_device_has_the_dtypes()
def compare(layer: Any, oracle: Callable[..., Any], x: np.ndarray, **call: Any) -> None:
    """Output and gradients of `layer` and of `oracle(x, **parameters)`, whose parameters are tensors by the paths of the layer's.

    Raises `AssertionError` if they differ.
    """
    dtype = x.dtype.name
    leaves = vf.tree.leaves_with_path(layer)
    tensors = {vf.tree.keystr(path).lstrip("."): torch.tensor(np.asarray(leaf), requires_grad=True) for path, leaf in leaves}
    torch_x = torch.tensor(x, requires_grad=True)
    expected = oracle(torch_x, **{name.replace(".", "_"): tensor for name, tensor in tensors.items()})
    weights = numbers(tuple(expected.shape), dtype, seed=1)
    (expected * torch.tensor(weights)).sum().backward()

    def loss(layer: Any, x: Any) -> Any:
        out = layer(x, **call)
        return (out * weights).sum(), out

    (_, out), (by_layer, by_x) = vf.value_and_grad(loss, (0, 1), has_aux=True)(layer, x)
    assert_near(out, expected, dtype, "output")
    assert_near(by_x, torch_x.grad, dtype, "gradient by the input")
    for (_, gradient), (name, tensor) in zip(vf.tree.leaves_with_path(by_layer), tensors.items(), strict=True):
        assert_near(gradient, tensor.grad, dtype, f"gradient by {name}")
