"""Check and time attention on matrix units.

Run `python -m benchmarks.gpu.attention_units`. First it runs attention and its gradients for several lengths and dtypes, and compares the
results with those in float64. Then it times both beside PyTorch's `scaled_dot_product_attention`, in alternation; with `--schedules` by
other schedules of each kernel, too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

import volta_fn as vf
import volta_fn.numpy as vnp
from benchmarks.gpu import peers
from benchmarks.gpu.chains import chain
from benchmarks.gpu.device import forget_routines
from benchmarks.gpu.products import BFLOAT16, FLOAT16, alternate, on_matrix_units, relative_error
from benchmarks.gpu.suite import Suite, check_and_time
from volta_fn.targets.nvidia.attention import SCHEDULES
from volta_fn.targets.nvidia.attention.groups import GroupSchedule
from volta_fn.targets.nvidia.attention.joint import JointSchedule
from volta_fn.targets.nvidia.attention.tiles import AttentionSchedule

#: The largest error of results and gradients, relative to all of them: weights are rounded, and logits' cotangents are.
TOLERANCES = {BFLOAT16: 1.2e-2, FLOAT16: 2e-3}

#: Layers in a timed chain, at least and at most, and seconds that it takes about.
FEWEST, MOST, CHAIN_SECONDS = 4, 128, 6e-4


class Problem(NamedTuple):
    """Attention of arrays (batch, queries or keys, heads, features)."""

    batch: int
    queries: int
    keys: int
    heads: int
    width: int
    causal: bool = False
    groups: int = 0
    dtype: np.dtype = BFLOAT16

    @property
    def name(self) -> str:
        """Its sizes."""
        shared = f" {self.groups} groups" if self.groups else ""
        kind = "causal" if self.causal else "all"
        return f"{self.dtype.name} {self.batch}x{self.queries}x{self.keys} {self.heads}x{self.width}{shared} {kind}"

    @property
    def operations(self) -> float:
        """Multiplications and additions of the result.

        The gradients have 2.5 times as many.
        """
        return 4 * self.batch * self.heads * self.queries * self.keys * self.width / (2 if self.causal else 1)

    def arrays(self, seed: int = 0) -> list[np.ndarray]:
        """Return random queries, keys, values and cotangents."""
        rng = np.random.default_rng(seed)
        groups = self.groups or self.heads
        q = self.batch, self.queries, self.heads, self.width
        k = self.batch, self.keys, groups, self.width
        return [rng.standard_normal(shape, np.float32).astype(self.dtype) for shape in (q, k, k, q)]

    def attend(self, q: Any, k: Any, v: Any) -> Any:
        """Return the result."""
        return vf.nn.dot_product_attention(q, k, v, is_causal=self.causal)

    def both(self, q: Any, k: Any, v: Any, d: Any) -> Any:
        """Return the result and the gradients."""
        out, back = vf.vjp(self.attend, q, k, v)
        return [out, *back(d)]


CHECKS = [
    Problem(2, 256, 256, 3, 64),
    Problem(2, 256, 256, 3, 64, causal=True),
    Problem(2, 1024, 1024, 12, 64, causal=True),
    Problem(1, 1000, 1000, 4, 64, causal=True),
    Problem(2, 777, 333, 2, 64),
    Problem(2, 777, 333, 2, 64, causal=True),
    Problem(2, 333, 777, 2, 64, causal=True),
    Problem(2, 65, 65, 2, 64, causal=True),
    Problem(2, 512, 512, 8, 64, causal=True, groups=2),
    Problem(2, 300, 500, 8, 64, groups=1),
    Problem(2, 512, 512, 4, 128),
    Problem(2, 1024, 1024, 4, 128, causal=True),
    Problem(1, 999, 601, 4, 128, causal=True, groups=2),
    Problem(2, 512, 512, 4, 64, causal=True, dtype=FLOAT16),
    Problem(2, 500, 700, 4, 128, dtype=FLOAT16),
    Problem(4, 1030, 1100, 6, 64),
    Problem(1, 4100, 4096, 5, 64, causal=True),
    Problem(2, 1024, 1300, 8, 128),
    Problem(1, 4096, 4096, 5, 128, causal=True),
]

TIMED = [
    Problem(4, 1024, 1024, 12, 64, causal=True),
    Problem(4, 1024, 1024, 12, 64),
    Problem(8, 128, 128, 4, 64, causal=True),
    Problem(8, 512, 512, 12, 64, causal=True),
    Problem(1, 512, 512, 14, 64, causal=True, groups=2),
    Problem(4, 4096, 4096, 16, 64, causal=True),
    Problem(1, 16384, 16384, 8, 64),
    Problem(4, 2048, 2048, 16, 128, causal=True),
    Problem(2, 2048, 2048, 16, 128),
    Problem(2, 4096, 4096, 16, 128, causal=True, groups=4),
    Problem(1, 16384, 16384, 8, 128, causal=True),
    Problem(4, 1024, 1024, 12, 64, dtype=FLOAT16),
]

#: Schedules to compare, by the number of features, of the forward pass, the gradient of Q, and those of K and V.
OPTIONS: dict[int, dict[str, list[AttentionSchedule | GroupSchedule]]] = {
    64: {
        "forward": [
            GroupSchedule(1, 128, 3, residents=2),
            GroupSchedule(2, 128, 2),
            GroupSchedule(2, 128, 4),
            GroupSchedule(2, 128, 4, turns=True),
            GroupSchedule(3, 128, 3),
            GroupSchedule(3, 128, 3, turns=True),
            AttentionSchedule(),
            AttentionSchedule(fragments=1, residents=3),
        ],
        "by_queries": [
            GroupSchedule(2, 64, 4),
            GroupSchedule(2, 64, 4, turns=True),
            GroupSchedule(2, 64, 4, retained=True),
            GroupSchedule(2, 128, 3, retained=True),
            GroupSchedule(3, 64, 4),
            GroupSchedule(1, 64, 3, retained=True, residents=2),
            AttentionSchedule(step=32),
        ],
        "by_keys": [
            GroupSchedule(2, 64, 2),
            GroupSchedule(2, 64, 4),
            GroupSchedule(2, 64, 4, turns=True),
            GroupSchedule(1, 64, 3, residents=2),
            GroupSchedule(1, 64, 3, retained=True, residents=2),
            JointSchedule(),
            JointSchedule(stages=4),
            AttentionSchedule(step=16, retained=False),
        ],
    },
    128: {
        "forward": [
            GroupSchedule(2, 128),
            GroupSchedule(2, 128, turns=True),
            GroupSchedule(2, 64, 5),
            GroupSchedule(2, 64, 5, turns=True),
            GroupSchedule(3, 64, 3),
            AttentionSchedule(fragments=1),
        ],
        "by_queries": [
            GroupSchedule(2, 64, 3),
            GroupSchedule(2, 64, 3, turns=True),
            GroupSchedule(2, 64, 3, turns=True, retained=True),
            GroupSchedule(3, 64, 2),
            AttentionSchedule(fragments=1, tile=32, step=32),
        ],
        "by_keys": [
            GroupSchedule(2, 64, 2),
            GroupSchedule(2, 64, 4),
            GroupSchedule(2, 64, 4, turns=True),
            JointSchedule(stages=2, adders=2, retained=False, late=True),
            AttentionSchedule(warps=8, fragments=1, retained=False, residents=1),
        ],
    },
}


def run_check(problem: Problem) -> bool:
    """Run a check and print its errors; return whether it is right."""
    arrays = problem.arrays()
    with vf.default_device("cpu"):
        expected = problem.both(*[vnp.asarray(x.astype(np.float64)) for x in arrays])
    actual = vf.jit(problem.both)(*[vnp.asarray(x) for x in arrays])
    errors = [relative_error(x, y) for x, y in zip(actual, expected, strict=True)]
    again = vf.jit(problem.both)(*[vnp.asarray(x) for x in arrays])
    same = all(np.array_equal(np.asarray(x), np.asarray(y)) for x, y in zip(actual, again, strict=True))
    right = max(errors) <= TOLERANCES[problem.dtype] and same
    count = on_matrix_units(problem.both, arrays)
    listed = " ".join(f"{name} {error:.1e}" for name, error in zip(("result", "q", "k", "v"), errors, strict=True))
    verdict = (
        ("" if right else "  WRONG") + ("" if same else "  NOT THE SAME TWICE") + ("" if count == 4 else f"  {count} of 4 on matrix units")
    )
    print(f"{problem.name:42s} errors: {listed}{verdict}", flush=True)
    return right and count == 4


def timer(problem: Problem, function: Callable[..., Any], count: int) -> Callable[[], float]:
    """Return a function that times a function of `count` operands on the device."""
    operands, program = [vnp.asarray(x) for x in problem.arrays()[:count]], vf.jit(function)
    seconds = problem.operations * count / 1e15 + 3e-6
    return chain(lambda: program(*operands), min(MOST, max(FEWEST, round(CHAIN_SECONDS / seconds))))


def peer_timers(problem: Problem) -> list[Callable[[], float]]:
    """Return PyTorch's timers of the result, and of the result and gradients."""
    torch = peers.torch()
    if torch is None:
        return []
    q, k, v, d = (
        torch.from_numpy(x.astype(np.float32)).cuda().to(getattr(torch, problem.dtype.name)).transpose(1, 2) for x in problem.arrays()
    )
    for x in (q, k, v):
        x.requires_grad_()

    def forward() -> Any:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=problem.causal, enable_gqa=problem.groups > 0)

    def both() -> Any:
        return torch.autograd.grad(forward(), (q, k, v), d)

    with torch.no_grad():
        first = peers.timer(forward)
    return [first, peers.timer(both)]


def run_timed(problem: Problem) -> None:
    """Time a problem and print the result."""
    samplers = {"forward": timer(problem, problem.attend, 3), "both": timer(problem, problem.both, 4)}
    samplers |= dict(zip(("torch forward", "torch both"), peer_timers(problem), strict=False))
    times = alternate(samplers)
    nan = float("nan")
    ours = times["forward"], times["both"] - times["forward"]
    theirs = times.get("torch forward", nan), times.get("torch both", nan) - times.get("torch forward", nan)
    for name, factor, x, y in zip(("forward", "gradient"), (1, 2.5), ours, theirs, strict=True):
        rate = factor * problem.operations / x / 1e12
        print(f"{problem.name:42s} {name:8s} {x * 1e6:8.1f} us {rate:5.0f} TFLOP/s; PyTorch {y * 1e6:8.1f} us, {y / x:5.2f}", flush=True)


def run_schedules(problem: Problem, pattern: str) -> None:
    """Time a problem by the schedules to compare, one kernel's at a time.

    They are those of the kernels whose names match a pattern.
    """
    standard = SCHEDULES[problem.width]
    samplers: dict[str, Callable[[], float]] = {}
    for kernel, schedules in OPTIONS[problem.width].items():
        for schedule in schedules if re.search(pattern, kernel) else []:
            SCHEDULES[problem.width] = standard._replace(**{kernel: (schedule,)})
            forget_routines()
            function, count = (problem.attend, 3) if kernel == "forward" else (problem.both, 4)
            samplers[f"{kernel:10s} {schedule}"] = timer(problem, function, count)
    SCHEDULES[problem.width] = standard
    forget_routines()
    for name, seconds in sorted(alternate(samplers).items(), key=lambda pair: (pair[0][:10], pair[1])):
        print(f"{problem.name:42s} {seconds * 1e6:8.1f} us{'' if name.startswith('forward') else ' with the result'}  {name}", flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all; return 1 if a result is wrong."""
    return check_and_time("attention_units", __doc__, Suite(CHECKS, TIMED, run_check, run_timed, run_schedules), arguments)


if __name__ == "__main__":
    raise SystemExit(main())
