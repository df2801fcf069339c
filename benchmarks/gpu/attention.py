"""Compare attention in WGSL with PyTorch's: `python -m benchmarks.gpu.attention`.

Forward and backward, in true float32.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.gpu import peers
from benchmarks.gpu.bench import WAKING, Bench
from volta_fn.core.aval import ShapedArray
from volta_fn.primitives.call import CAUSAL, Axes, Form, Window
from volta_fn.targets.wgsl.attention import attention, attention_gradient

_LEAST = 0.7 * float(np.finfo(np.float32).min)

#: Batch, heads, queries and keys, features.
SHAPES = [(8, 4, 128, 64), (8, 12, 1024, 64), (2, 16, 2048, 128), (4, 8, 4096, 64)]


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.attention", description=__doc__)
    parser.add_argument("--most", type=int, default=1 << 40, help="leave out shapes with more logits")
    options = parser.parse_args(arguments)
    bench = Bench()
    print(f"{bench.name}; µs in float32: forward, backward; PyTorch's; PyTorch's / ours")
    for shape in SHAPES:
        if shape[0] * shape[1] * shape[2] ** 2 <= options.most:
            for causal in (False, True):
                ours, theirs = times(bench, shape, causal), peer_times(shape, causal)
                ratios = [y / x for x, y in zip(ours, theirs, strict=True)]
                numbers = "".join(f"{1e6 * x:10.1f}" for x in (*ours, *theirs)) + "".join(f"{x:7.2f}" for x in ratios)
                print(f"{'x'.join(map(str, shape)):>16} {'causal' if causal else 'all':>7}{numbers}", flush=True)


def times(bench: Bench, shape: tuple[int, int, int, int], causal: bool) -> list[float]:
    """Return the seconds of the forward and of the backward routine."""
    rows = ShapedArray(shape, np.dtype(np.float32))
    axes = Axes((0, 1), 2, 3)
    form = Form(axes, axes, axes, axes, shape[3] ** -0.5, _LEAST, CAUSAL if causal else Window())
    rng = np.random.default_rng(0)
    q, k, v, d = (bench.put(rng.standard_normal(shape, np.float32)) for _ in range(4))
    size = 4 * int(np.prod(shape))
    out, statistics = bench.room(size), bench.room(8 * int(np.prod(shape[:3])))
    ahead = attention((rows,) * 3, {"form": form._replace(cotangent=None)}, bench.capabilities)
    back = attention_gradient((rows,) * 6, {"form": form}, bench.capabilities)
    first = bench.seconds(ahead, [q, k, v, out, statistics], wake=WAKING)
    results = [bench.room(size) for _ in range(3)]
    return [first, bench.seconds(back, [q, k, v, out, statistics, d, *results, *[bench.room(n) for n in back.workspaces]])]


def peer_times(shape: tuple[int, int, int, int], causal: bool) -> list[float]:
    """Return PyTorch's seconds of the forward and of the backward pass."""
    library = peers.torch()
    if library is None:
        return [float("nan")] * 2
    q, k, v, d = (library.randn(shape, device="cuda", requires_grad=True) for _ in range(4))

    def ahead() -> Any:
        return library.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)

    with library.no_grad():
        first = peers.seconds(ahead)
    return [first, peers.seconds(lambda: library.autograd.grad(ahead(), (q, k, v), d)) - first]


if __name__ == "__main__":
    main()
