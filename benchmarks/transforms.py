"""Compare eager transforms of jitted functions with `jit` around them.

`python -m benchmarks.transforms` prints the milliseconds of both and their ratio for each transform, and returns 1 if one is slower than
1.2 times the other. Both are called alternately, and medians count. `--quick` only checks that everything runs.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import volta_fn as vf
import volta_fn.numpy as vnp
from volta_fn import lax, random

LIMIT = 1.2
Pair = tuple[Callable[[], Any], Callable[[], Any]]


def log_density(q: vf.Array) -> vf.Array:
    """Return the log density that the chains sample."""
    return -0.5 * (q**2).sum() - (vnp.sin(q) ** 2).sum()


def chain(key: vf.Array, position: vf.Array) -> vf.Array:
    """Return 100 samples of Hamiltonian Monte Carlo, of 10 leapfrog steps each."""
    force = vf.grad(log_density)

    def leapfrog(state: Any, _: None) -> Any:
        q, p = state
        p = p + 0.05 * force(q)
        q = q + 0.1 * p
        return (q, p + 0.05 * force(q)), None

    def sample(q: vf.Array, key: vf.Array) -> Any:
        (proposal, _), _ = lax.scan(leapfrog, (q, random.normal(key, q.shape)), None, length=10)
        accepted = vnp.log(random.uniform(key)) < log_density(proposal) - log_density(q)
        q = vnp.where(accepted, proposal, q)
        return q, q

    return lax.scan(sample, position, random.split(key, 100))[1]


def network(weights: list[vf.Array], x: vf.Array) -> vf.Array:
    """Apply a network of tanh layers."""
    for weight in weights:
        x = vnp.tanh(x @ weight)
    return x


def loss(weights: list[vf.Array], x: vf.Array) -> vf.Array:
    """Return the mean square of the network's results."""
    return (network(weights, x) ** 2).mean()


def pulled_back(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make a function of the value of `function` and its vector-Jacobian product."""

    def run(weights: list[vf.Array], x: vf.Array) -> Any:
        value, pull_back = vf.vjp(function, weights, x)
        return value, pull_back(value)

    return run


def pushed_forward(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make the function from primals and tangents to value and tangent."""
    return lambda weights, x, *tangents: vf.jvp(function, (weights, x), tangents)


def pairs() -> dict[str, Pair]:
    """Return for each transform that of a jitted function, and the jitted one."""
    keys = random.split(random.key(0), 8)
    start = random.normal(keys[0], (8, 20))
    weights, x = [random.normal(k, (128, 128)) * 0.1 for k in keys[:3]], random.normal(keys[4], (256, 128))
    small = [random.normal(k, (16, 16)) * 0.3 for k in keys[:2]], random.normal(keys[5], (16,))
    cases: dict[str, tuple[Callable[..., Any], Callable[..., Any], Sequence[Any]]] = {
        "vmap": (vf.vmap, chain, (keys, start)),
        "grad": (vf.grad, loss, (weights, x)),
        "value_and_grad": (vf.value_and_grad, loss, (weights, x)),
        "jvp": (pushed_forward, network, (weights, x, [0.5 * w for w in weights], 0.5 * x)),
        "vjp": (pulled_back, network, (weights, x)),
        "jacfwd": (lambda f: vf.jacfwd(f, 1), network, small),
        "jacrev": (lambda f: vf.jacrev(f, 1), network, small),
        "hessian": (lambda f: vf.hessian(f, 1), loss, small),
    }
    return {name: (_call(t(vf.jit(f)), args), _call(vf.jit(t(f)), args)) for name, (t, f, args) in cases.items()}


def _call(function: Callable[..., Any], args: Sequence[Any]) -> Callable[[], Any]:
    return lambda: vf.block_until_ready(function(*args))


def milliseconds(call: Callable[[], Any], repeats: int) -> float:
    """Return the milliseconds of a call, averaged over some."""
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - start) / repeats * 1e3


def compare(pair: Pair, rounds: int) -> tuple[float, float]:
    """Return the median milliseconds of both calls."""
    repeats = max(1, round(5 / min(milliseconds(call, 3) for call in pair for _ in range(3))))
    taken = [[milliseconds(call, repeats) for call in pair] for _ in range(rounds)]
    eager, jitted = (statistics.median(column) for column in zip(*taken, strict=True))
    return eager, jitted


def main(arguments: Sequence[str]) -> int:
    """Print the comparison; return 1 if a transform takes too long."""
    quick = "--quick" in arguments
    slow = 0
    print(f"{'transform':16}{'of jit':>10}{'in jit':>10}  ratio")
    for name, pair in pairs().items():
        eager, jitted = compare(pair, 1 if quick else 41)
        slow += eager > LIMIT * jitted
        print(f"{name:16}{eager:10.3f}{jitted:10.3f}  {eager / jitted:.2f}")
    return int(bool(slow) and not quick)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
