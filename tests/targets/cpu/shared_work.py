"""Work that threads share, by 1 to 8 of them: `python -m tests.targets.cpu.shared_work` prints a digest of each result's bits.

It begins with one thread and adds a worker at a time; each piece of work is done twice by each number of threads.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any

import numpy as np

import volta_fn as vf
import volta_fn.numpy as jnp
from benchmarks.workloads import named
from benchmarks.workloads.case import library
from volta_fn import lax, nn, random
from volta_fn.targets.cpu.runtime.executor import support_code_of_process

COUNTS = (1, 2, 3, 4, 5, 7, 8)
REPEATS = 2
STEPS: dict[str, dict[str, Any]] = {
    "train/lenet": {"batch": 16},
    "train/lstm": {"batch": 16, "steps": 6, "width": 96},
    "train/gpt": {"batch": 2, "tokens": 64, "width": 96, "layers": 1, "heads": 4, "vocabulary": 130},
}


def routines() -> dict[str, tuple[Callable[..., Any], tuple[np.ndarray, ...]]]:
    """Functions that become one routine or a few, and arguments large enough to be shared out."""
    rng = np.random.default_rng(0)
    draw = lambda *shape: rng.standard_normal(shape, np.float32)
    rows, long, square = draw(700, 513), draw(1_000_003), draw(400, 410)
    images, taps = draw(4, 32, 30, 30), draw(48, 32, 3, 3)
    places = rng.integers(0, 300, (5000,), np.int32)

    def convolution(x: Any, w: Any) -> Any:
        return vf.vjp(lambda x, w: lax.conv_general_dilated(x, w, (1, 1), "SAME"), x, w)[1](jnp.ones((4, 48, 30, 30), "float32"))

    def pooled(x: Any) -> Any:
        return vf.grad(lambda x: (lax.reduce_window(x, -jnp.inf, lax.max, (1, 1, 3, 3), (1, 1, 2, 2), "VALID") ** 2).sum())(x)

    def attention(q: Any, bias: Any) -> Any:
        run = lambda q, bias: nn.dot_product_attention(q, q, q, bias, is_causal=True)
        return run(q, bias), vf.vjp(run, q, bias)[1](jnp.ones(q.shape, "float32"))

    return {
        "attention": (attention, (draw(1, 600, 4, 32), draw(4, 1, 600))),
        "sums": (lambda x, y: (x.sum(), jnp.mean(y, 0), jnp.var(y, 1), jnp.max(y)), (long, rows)),
        "rows": (lambda x: (nn.softmax(x), nn.log_softmax(x, 0), jnp.linalg.norm(x, axis=1)), (rows,)),
        "gelu": (nn.gelu, (long,)),
        "cumulative": (lambda x, y: (jnp.cumsum(x), jnp.cumprod(y, 1), lax.cummax(y, 0)), (long, rows)),
        "order": (lambda x, y: (jnp.sort(x), jnp.argsort(y, 1), lax.top_k(y, 7)), (long[:200_000], rows)),
        "indices": (lambda x, i: (x[i], jnp.zeros_like(x).at[i].add(x[i] + 1.0)), (rows, places)),
        "products": (lambda x, y: (x @ x.T, x.T @ x, y @ y[:410].T, x[:5] @ x.T, x @ x[0]), (square, draw(500, 410))),
        "batched products": (lambda x: jnp.einsum("bij,bkj->bik", x, x), (draw(24, 60, 70),)),
        "convolution": (convolution, (images, taps)),
        "1x1 convolution": (lambda x, w: lax.conv_general_dilated(x, w, (1, 1), "SAME"), (images, taps[:, :, :1, :1])),
        "windows": (pooled, (images,)),
        "random": (lambda x: (random.normal(random.key(3), x.shape) * x, random.permutation(random.key(4), 10_000)), (rows,)),
    }


def steps() -> dict[str, tuple[Callable[..., Any], tuple[Any, ...]]]:
    """Steps of training: their results are parameters, moments and the loss."""
    ours = library("volta_fn")
    cases = {name: named(name).make(np.random.default_rng(0), **size) for name, size in STEPS.items()}
    return {name: (case.functional(ours), case.inputs) for name, case in cases.items()}


def digest(results: Any) -> str:
    """Return a digest of all bits."""
    whole = hashlib.sha256()
    for leaf in vf.tree.leaves(results):
        whole.update(np.asarray(leaf).tobytes())
    return whole.hexdigest()


def main() -> None:
    """Print, as JSON, the digests of each piece of work by the number of threads."""
    work = {name: (vf.jit(function), arguments) for name, (function, arguments) in (routines() | steps()).items()}
    result: dict[str, dict[int, list[str]]] = {name: {} for name in work}
    threads = 1
    for count in COUNTS:
        support_code_of_process().workers.add(count - threads)
        threads = count
        for name, (function, arguments) in work.items():
            result[name][count] = [digest(function(*arguments)) for _ in range(REPEATS)]
    print(json.dumps(result))


if __name__ == "__main__":
    main()
