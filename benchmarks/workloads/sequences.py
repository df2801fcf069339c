"""Training steps of networks for sequences: an LSTM by `scan`, a GPT."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.workloads.case import Case, Library, Workload, normal
from benchmarks.workloads.training import adam, cross_entropy, training


def lstm(rng: np.random.Generator, batch: int, steps: int, width: int) -> Case:
    """Train an LSTM layer (Hochreiter & Schmidhuber 1997) and a linear one, by Adam.

    They predict a sequence; PyTorch has its own LSTM.
    """
    shapes = {"w_ih": (4 * width, width), "w_hh": (4 * width, width), "b_ih": (4 * width,), "b_hh": (4 * width,), "head": (width, width)}
    params = {name: normal(rng, *shape, scale=width**-0.5) for name, shape in shapes.items()}

    def loss(lib: Library, params: Any, x: Any, y: Any) -> Any:
        def step(carry: Any, x: Any) -> Any:
            h, c = carry
            gates = x @ params["w_ih"].T + h @ params["w_hh"].T + params["b_ih"] + params["b_hh"]
            i, f, g, o = lib.jnp.split(gates, 4, -1)
            c = lib.nn.sigmoid(f) * c + lib.nn.sigmoid(i) * lib.jnp.tanh(g)
            h = lib.nn.sigmoid(o) * lib.jnp.tanh(c)
            return (h, c), h

        start = lib.jnp.zeros((batch, width), x.dtype)
        _, hidden = lib.lax.scan(step, (start, start), x)
        return lib.jnp.mean((hidden @ params["head"] - y) ** 2)

    def torch_loss(torch: Any, params: Any, x: Any, y: Any) -> Any:
        start, weights = x.new_zeros(1, batch, width), [params[name] for name in ("w_ih", "w_hh", "b_ih", "b_hh")]
        hidden, _, _ = torch.lstm(x, (start, start), weights, True, 1, 0.0, True, False, False)
        return torch.nn.functional.mse_loss(hidden @ params["head"], y)

    data = normal(rng, steps, batch, width), normal(rng, steps, batch, width)
    return training(params, data, loss, torch_loss, adam)


def gpt(rng: np.random.Generator, batch: int, tokens: int, width: int, layers: int, heads: int, vocabulary: int) -> Case:
    """Train a transformer that predicts the next token, by Adam.

    As in Radford et al. 2019: layer norm first, learned positions.
    """
    shapes = {"tokens": (vocabulary, width), "positions": (tokens, width), "head": (width, vocabulary)}
    for i in range(layers):
        shapes |= {f"qkv{i}": (width, 3 * width), f"out{i}": (width, width), f"up{i}": (width, 4 * width), f"down{i}": (4 * width, width)}
    params = {name: normal(rng, *shape, scale=0.02) for name, shape in shapes.items()}
    for i in range(layers):
        params |= {f"upb{i}": np.zeros(4 * width, np.float32), f"downb{i}": np.zeros(width, np.float32)}
    for norm in (*(f"{kind}{i}" for i in range(layers) for kind in ("before", "between")), "last"):
        params |= {norm + "scale": np.ones(width, np.float32), norm + "shift": np.zeros(width, np.float32)}

    def loss(lib: Library, params: Any, x: Any, labels: Any) -> Any:
        def norm(name: str, x: Any) -> Any:
            centred = x - lib.jnp.mean(x, -1, keepdims=True)
            variance = lib.jnp.mean(centred**2, -1, keepdims=True)
            return centred * lib.lax.rsqrt(variance + 1e-5) * params[name + "scale"] + params[name + "shift"]

        def attend(qkv: Any) -> Any:
            q, k, v = (x.reshape(batch, tokens, heads, width // heads) for x in lib.jnp.split(qkv, 3, -1))
            return lib.nn.dot_product_attention(q, k, v, is_causal=True).reshape(batch, tokens, width)

        return cross_entropy(lib, transformer(norm, attend, lib.nn.gelu, params, x), labels)

    def torch_loss(torch: Any, params: Any, x: Any, labels: Any) -> Any:
        nn = torch.nn.functional

        def norm(name: str, x: Any) -> Any:
            return nn.layer_norm(x, (width,), params[name + "scale"], params[name + "shift"])

        def attend(qkv: Any) -> Any:
            q, k, v = (x.view(batch, tokens, heads, width // heads).transpose(1, 2) for x in qkv.split(width, -1))
            return nn.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(batch, tokens, width)

        logits = transformer(norm, attend, lambda x: nn.gelu(x, approximate="tanh"), params, x)
        return nn.cross_entropy(logits.flatten(0, 1), labels.flatten())

    def transformer(norm: Any, attend: Any, gelu: Any, params: Any, x: Any) -> Any:
        x = params["tokens"][x] + params["positions"]
        for i in range(layers):
            x = x + attend(norm(f"before{i}", x) @ params[f"qkv{i}"]) @ params[f"out{i}"]
            hidden = gelu(norm(f"between{i}", x) @ params[f"up{i}"] + params[f"upb{i}"])
            x = x + hidden @ params[f"down{i}"] + params[f"downb{i}"]
        return norm("last", x) @ params["head"]

    text = rng.integers(0, vocabulary, (batch, tokens + 1), np.int32)
    return training(params, (text[:, :-1].copy(), text[:, 1:].copy()), loss, torch_loss, adam)


GPT = {"batch": 8, "tokens": 128, "width": 256, "layers": 4, "heads": 4, "vocabulary": 256}
SMALL_GPT = {"batch": 2, "tokens": 5, "width": 8, "layers": 1, "heads": 2, "vocabulary": 11}

WORKLOADS = [
    Workload("train/lstm", lstm, {"batch": 32, "steps": 64, "width": 128}, {"batch": 2, "steps": 3, "width": 4}),
    Workload("train/gpt", gpt, GPT, SMALL_GPT),
]
