"""Matrix products of several shapes, single and in batches."""

from __future__ import annotations

import numpy as np

from benchmarks.workloads.case import Case, Workload, normal


def matmul(rng: np.random.Generator, m: int, k: int, n: int) -> Case:
    """Multiply (m, k) by (k, n)."""
    return Case((normal(rng, m, k), normal(rng, k, n)), lambda lib: lambda x, y: x @ y, lambda torch, x, y: lambda: x @ y)


def by_transposed(rng: np.random.Generator, m: int, k: int, n: int) -> Case:
    """Multiply (k, m) transposed by (k, n), as in a layer's gradient."""
    return Case((normal(rng, k, m), normal(rng, k, n)), lambda lib: lambda x, y: x.T @ y, lambda torch, x, y: lambda: x.T @ y)


def linear_gelu(rng: np.random.Generator, m: int, k: int, n: int) -> Case:
    """Apply a layer: product, bias, gelu."""
    return Case(
        (normal(rng, m, k), normal(rng, k, n, scale=k**-0.5), normal(rng, n)),
        lambda lib: lambda x, w, b: lib.nn.gelu(x @ w + b),
        lambda torch, x, w, b: lambda: torch.nn.functional.gelu(torch.addmm(b, x, w), approximate="tanh"),
    )


def batched(rng: np.random.Generator, batch: int, m: int, k: int, n: int) -> Case:
    """Multiply (batch, m, k) by (batch, k, n)."""
    return Case((normal(rng, batch, m, k), normal(rng, batch, k, n)), lambda lib: lib.jnp.matmul, lambda torch, x, y: lambda: x @ y)


def _shape(m: int, k: int, n: int) -> dict[str, int]:
    return {"m": m, "k": k, "n": n}


QUICK = _shape(3, 8, 5)

WORKLOADS = [
    *(Workload(f"product/{s}×{s}×{s}", matmul, _shape(s, s, s), QUICK) for s in (64, 256, 1024, 2048)),
    Workload("product/1×2048×2048", matmul, _shape(1, 2048, 2048), QUICK | {"m": 1}),
    Workload("product/4096×64×4096", matmul, _shape(4096, 64, 4096), QUICK),
    Workload("product/64×4096×64", matmul, _shape(64, 4096, 64), QUICK),
    Workload("product/transposed 512×1024×512", by_transposed, _shape(512, 1024, 512), QUICK),
    Workload("product/linear and gelu 1024×256×1024", linear_gelu, _shape(1024, 256, 1024), QUICK),
    Workload("product/batched 64 of 128×64×128", batched, _shape(128, 64, 128) | {"batch": 64}, QUICK | {"batch": 2}),
    Workload("product/batched 512 of 32×32×32", batched, _shape(32, 32, 32) | {"batch": 512}, QUICK | {"batch": 2}),
    Workload("product/batched 4 of 512×512×512", batched, _shape(512, 512, 512) | {"batch": 4}, QUICK | {"batch": 2}),
]
