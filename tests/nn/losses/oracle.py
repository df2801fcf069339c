"""Comparison of a loss with PyTorch's: values, gradients by every differentiable argument, and curvature."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import volta_fn as vf
from tests.narrow_devices import where_the_device_has_the_dtypes

torch = pytest.importorskip("torch")

#: Relative tolerances; absolute ones are a tenth, for elements that are small differences of larger numbers.
TOLERANCE = {"float32": 1e-5, "float64": 1e-10}


def as_torch(value: Any) -> Any:
    """Return a NumPy array as a tensor."""
    return torch.tensor(np.asarray(value))


def cast(values: Sequence[Any], dtype: str) -> list[np.ndarray]:
    """Floating arrays in the dtype; others as they are."""
    arrays = [np.asarray(v) for v in values]
    return [a.astype(dtype) if a.dtype.kind == "f" else a for a in arrays]


@where_the_device_has_the_dtypes()
def check(ours: Callable, theirs: Callable, values: Sequence[Any], dtype: str, wrt: Sequence[int] = (0,), second: bool = True) -> None:
    """Hold `ours` of arrays against `theirs` of tensors: the result, the gradient of its weighted sum, and a Hessian's product."""
    arrays = cast(values, dtype)
    tensors = [as_torch(a).requires_grad_(i in wrt) for i, a in enumerate(arrays)]
    expected = theirs(*tensors)
    rng = np.random.default_rng(7)
    weights = rng.normal(size=expected.shape).astype(dtype)
    directions = [rng.normal(size=arrays[i].shape).astype(dtype) for i in wrt]
    slopes = torch.autograd.grad((expected * as_torch(weights)).sum(), [tensors[i] for i in wrt], create_graph=second)

    def total(*chosen: Any) -> Any:
        full = list(arrays)
        for i, value in zip(wrt, chosen, strict=True):
            full[i] = value
        return (ours(*full) * weights).sum()

    chosen = [vf.numpy.asarray(arrays[i]) for i in wrt]
    gradient = vf.grad(total, tuple(range(len(wrt))))
    tolerance = {"rtol": TOLERANCE[dtype], "atol": TOLERANCE[dtype] / 10}
    result = ours(*arrays)
    assert result.dtype == dtype and result.shape == tuple(expected.shape)
    np.testing.assert_allclose(result, expected.detach().numpy(), **tolerance)
    for mine, slope in zip(vf.jit(gradient)(*chosen), slopes, strict=True):
        np.testing.assert_allclose(mine, slope.detach().numpy(), **tolerance)
    if second:
        along = sum((s * as_torch(d)).sum() for s, d in zip(slopes, directions, strict=True))
        curved = [np.zeros(a.shape, dtype) for a in chosen]
        if along.requires_grad:
            actual = torch.autograd.grad(along, [tensors[i] for i in wrt], allow_unused=True)
            curved = [c if f is None else f.numpy(force=True) for c, f in zip(curved, actual, strict=True)]
        _, products = vf.jvp(gradient, tuple(chosen), tuple(vf.numpy.asarray(d) for d in directions))
        for mine, theirs_ in zip(products, curved, strict=True):
            np.testing.assert_allclose(mine, theirs_, rtol=10 * tolerance["rtol"], atol=10 * tolerance["atol"])
