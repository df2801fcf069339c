"""PyTorch's recurrent modules with the parameters of ours."""

from __future__ import annotations

from typing import Any

import numpy as np

import volta_fn as vf
from tests.nn.torch_oracle import assert_near, numbers, torch
from volta_fn import nn

WEIGHTS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")


def of_cell(cell: Any) -> dict[str, np.ndarray]:
    """Return a cell's parameters, or its gradients, by PyTorch's names and in its layout."""
    return {name: np.asarray(getattr(cell, name)).T for name in WEIGHTS if getattr(cell, name) is not None}


def of_layer(layer: Any) -> dict[str, np.ndarray]:
    """Likewise of a layer."""
    results = {}
    for suffix, cells in (("", layer.cells), ("_reverse", layer.reverse_cells)):
        for level, cell in enumerate(cells):
            results |= {f"{name}_l{level}{suffix}": value for name, value in of_cell(cell).items()}
    return results


def torch_twin(layer: Any) -> Any:
    """PyTorch's cell or layer with the parameters of ours."""
    is_layer = not hasattr(layer, "weight_ih")
    cell = layer.cells[0] if is_layer else layer
    options = {"bias": cell.bias_ih is not None, "dtype": getattr(torch, cell.weight_ih.dtype.name)}
    if hasattr(cell, "nonlinearity"):
        options["nonlinearity"] = cell.nonlinearity
    if is_layer:
        options |= {"num_layers": len(layer.cells), "batch_first": layer.batch_first, "bidirectional": bool(layer.reverse_cells)}
    module = getattr(torch.nn, type(layer).__name__)(cell.input_size, cell.hidden_size, **options)
    module.load_state_dict({name: torch.tensor(value) for name, value in (of_layer if is_layer else of_cell)(layer).items()})
    return module


def random_carry(layer: Any, shape: tuple[int, ...], dtype: str) -> Any:
    """Return a carry for ours and, as the same numbers, for PyTorch's."""
    carry = tuple([numbers(shape, dtype, seed) for seed in (7, 8)])
    return carry if isinstance(layer, (nn.LSTM, nn.LSTMCell)) else carry[0]


def check_against_torch(layer: Any, theirs: Any, run: Any, x: np.ndarray, carry: Any, parameters: Any) -> None:
    """Outputs, last carries, and the gradients by input, first carry and parameters of a fixed combination of all results.

    Args:
        layer: ours, called with the input and the carry; `theirs` its twin, called as ``run(input, carry)``.
        parameters: of our layer's gradient by PyTorch's names.
    """
    dtype = x.dtype.name
    ours = vf.tree.leaves(layer(x, carry))
    tensors = [torch.tensor(a).requires_grad_() for a in vf.tree.leaves((x, carry))]
    rest = tensors[1:]
    expected = vf.tree.leaves(run(tensors[0], None if carry is None else tuple(rest) if len(rest) > 1 else rest[0]))
    for mine, wanted in zip(ours, expected, strict=True):
        assert_near(mine, wanted, dtype)
    weights = [numbers(tuple(e.shape), dtype, seed) for seed, e in enumerate(expected)]
    sum((e * torch.tensor(w)).sum() for e, w in zip(expected, weights, strict=True)).backward()

    def loss(layer: Any, x: Any, carry: Any) -> Any:
        return sum((out * w).sum() for out, w in zip(vf.tree.leaves(layer(x, carry)), weights, strict=True))

    by_layer, *by_rest = vf.grad(loss, (0, 1, 2))(layer, x, carry)
    for mine, tensor in zip(vf.tree.leaves(by_rest), tensors, strict=True):
        assert_near(mine, tensor.grad, dtype)
    wanted_gradients = {name: p.grad for name, p in theirs.named_parameters()}
    actual = parameters(by_layer)
    assert actual.keys() == wanted_gradients.keys()
    for name, wanted in wanted_gradients.items():
        assert_near(actual[name], wanted, dtype, name)
