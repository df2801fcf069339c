"""Causal attention of many heads, forward and backward."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.workloads.case import Case, Library, normal


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
