"""Causal attention of many heads, forward and backward, with and without a window."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.workloads.case import Case, Library, Workload, normal


def _inputs(rng: np.random.Generator, batch: int, tokens: int, heads: int, width: int, count: int) -> tuple[np.ndarray, ...]:
    return tuple([normal(rng, batch, tokens, heads, width) for _ in range(count)])


def _ours(lib: Library, q: Any, k: Any, v: Any) -> Any:
    return lib.nn.dot_product_attention(q, k, v, is_causal=True)


def _theirs(torch: Any, q: Any, k: Any, v: Any) -> Any:
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)


def attention(rng: np.random.Generator, batch: int, tokens: int, heads: int, width: int) -> Case:
    """Attend by scaled dot products (Vaswani et al. 2017)."""
    return Case(
        _inputs(rng, batch, tokens, heads, width, 3),
        lambda lib: lambda *qkv: _ours(lib, *qkv),
        lambda torch, *qkv: lambda: _theirs(torch, *qkv),
    )


def attention_gradient(rng: np.random.Generator, batch: int, tokens: int, heads: int, width: int) -> Case:
    """Return the cotangents of queries, keys and values."""

    def functional(lib: Library) -> Any:
        return lambda ct, *qkv: lib.jax.vjp(lambda *qkv: _ours(lib, *qkv), *qkv)[1](ct)

    def torch_work(torch: Any, ct: Any, *qkv: Any) -> Any:
        for x in qkv:
            x.requires_grad_()
        return lambda: torch.autograd.grad(_theirs(torch, *qkv), qkv, ct)

    return Case(_inputs(rng, batch, tokens, heads, width, 4), functional, torch_work)


def windowed_attention(rng: np.random.Generator, batch: int, tokens: int, heads: int, width: int, before: int) -> Case:
    """Attend to the last `before` tokens (Beltagy et al. 2020).

    PyTorch has a mask for that.
    """

    def functional(lib: Library) -> Any:
        return lambda *qkv: lib.nn.dot_product_attention(*qkv, is_causal=True, local_window_size=(before, 0))

    def torch_work(torch: Any, *qkv: Any) -> Any:
        ones = torch.ones(tokens, tokens, dtype=torch.bool)
        mask = torch.tril(ones) & torch.triu(ones, -before)
        q, k, v = (x.transpose(1, 2) for x in qkv)
        return lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2)

    return Case(_inputs(rng, batch, tokens, heads, width, 3), functional, torch_work)


_LONG, _SHORT = {"batch": 1, "tokens": 4096, "heads": 4, "width": 64}, {"batch": 2, "tokens": 5, "heads": 2, "width": 4}

WORKLOADS = [
    Workload("op/attention to the last 256 1×4096×4×64", windowed_attention, _LONG | {"before": 256}, _SHORT | {"before": 2}),
]
