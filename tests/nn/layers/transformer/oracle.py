"""PyTorch's transformer modules with the parameters of ours."""

from __future__ import annotations

from typing import Any

import numpy as np

import volta_fn as vf
from tests.nn.torch_oracle import assert_near, numbers, torch


def of_linear(prefix: str, layer: Any) -> dict[str, np.ndarray]:
    """Return a linear layer's parameters, or its gradients, by PyTorch's names and in its layout."""
    result = {f"{prefix}.weight": np.asarray(layer.weight).T}
    return result if layer.bias is None else result | {f"{prefix}.bias": np.asarray(layer.bias)}


def of_attention(mha: Any) -> dict[str, np.ndarray]:
    """Likewise of multi-head attention; one matrix for queries, keys and values if they read inputs of one size."""
    weights = [np.asarray(layer.weight).T for layer in (mha.q_proj, mha.k_proj, mha.v_proj)]
    if len({w.shape[1] for w in weights}) == 1:
        result = {"in_proj_weight": np.concatenate(weights)}
    else:
        result = {f"{name}_proj_weight": w for name, w in zip("qkv", weights, strict=True)}
    if mha.q_proj.bias is not None:
        result["in_proj_bias"] = np.concatenate([np.asarray(layer.bias) for layer in (mha.q_proj, mha.k_proj, mha.v_proj)])
    return result | of_linear("out_proj", mha.out_proj)


def of_norm(prefix: str, norm: Any) -> dict[str, np.ndarray]:
    """Likewise of a layer norm."""
    return {f"{prefix}.weight": np.asarray(norm.weight), f"{prefix}.bias": np.asarray(norm.bias)}


def of_layer(layer: Any) -> dict[str, np.ndarray]:
    """Likewise of a layer of an encoder or decoder."""
    result = {f"self_attn.{name}": value for name, value in of_attention(layer.self_attn).items()}
    if hasattr(layer, "cross_attn"):
        result |= {f"multihead_attn.{name}": value for name, value in of_attention(layer.cross_attn).items()} | of_norm(
            "norm3", layer.norm3
        )
    result |= of_linear("linear1", layer.feed_forward.linear1) | of_linear("linear2", layer.feed_forward.linear2)
    return result | of_norm("norm1", layer.norm1) | of_norm("norm2", layer.norm2)


def of_stack(stack: Any) -> dict[str, np.ndarray]:
    """Likewise of an encoder or decoder."""
    result = {f"layers.{i}.{name}": value for i, layer in enumerate(stack.layers) for name, value in of_layer(layer).items()}
    return result if stack.norm is None else result | of_norm("norm", stack.norm)


def filled(module: Any, parameters: dict[str, np.ndarray]) -> Any:
    """Return the PyTorch module with those parameters, of their dtype, in evaluation mode."""
    dtype = next(iter(parameters.values())).dtype.name
    module = module.to(getattr(torch, dtype)).eval()
    module.load_state_dict({name: torch.tensor(value) for name, value in parameters.items()})
    return module


def shaken(layer: Any) -> Any:
    """Return the layer with other parameters, so that none is 0 or 1."""
    leaves, structure = vf.tree.flatten(layer)
    return vf.tree.unflatten(structure, [leaf + 0.1 * numbers(leaf.shape, leaf.dtype.name, 50 + i) for i, leaf in enumerate(leaves)])


def check_against_torch(ours: Any, theirs: Any, layer: Any, inputs: list[np.ndarray], parameters: Any = None, module: Any = None) -> None:
    """Output and gradients by inputs and parameters.

    Args:
        ours: a function of the layer (or None) and arrays; `theirs`: of tensors.
        parameters: of our layer's gradient by PyTorch's names; `module` has them in PyTorch.
    """
    dtype = inputs[0].dtype.name
    tensors = [torch.tensor(x).requires_grad_() for x in inputs]
    expected = theirs(*tensors)
    weights = numbers(tuple(expected.shape), dtype, 99)
    assert_near(ours(layer, *inputs), expected, dtype)
    (expected * torch.tensor(weights)).sum().backward()
    loss = lambda layer, *inputs: (ours(layer, *inputs) * weights).sum()
    by_layer, *by_inputs = vf.grad(loss, tuple(range(len(inputs) + 1)))(layer, *inputs)
    for i, (mine, tensor) in enumerate(zip(by_inputs, tensors, strict=True)):
        assert_near(mine, tensor.grad, dtype, f"input {i}")
    if module is None:
        return
    actual, wanted = parameters(by_layer), {name: p.grad for name, p in module.named_parameters()}
    assert actual.keys() == wanted.keys()
    scale = max(float(g.abs().max()) for g in wanted.values())  # attention does not depend on the keys' bias: its gradient is rounding
    for name, gradient in wanted.items():
        if name.endswith("in_proj_bias"):
            np.testing.assert_allclose(actual[name], gradient, atol=scale * {"float32": 1e-5, "float64": 1e-10}[dtype], err_msg=name)
        else:
            assert_near(actual[name], gradient, dtype, name)
