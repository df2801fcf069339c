"""Temporary: TF32 products of matrices across the sums, by schedules, with a copy and without, beside cuBLAS."""

from __future__ import annotations

import sys

import numpy as np

import volta_fn as vf
import volta_fn.numpy as vnp
from benchmarks.gpu import peers
from benchmarks.gpu.chains import chain
from benchmarks.gpu.device import opened_gpu
from benchmarks.gpu.products import alternate, relative_error
from volta_fn.targets.nvidia import matmul
from volta_fn.targets.nvidia.matmul.problem import Schedule as S
from volta_fn.targets.nvidia.matmul.problem import estimated, is_legal
from volta_fn.targets.wgsl import program_plan
from volta_fn.targets.wgsl.target import RoutineCache

program_plan.cache_dir = lambda: None

SCHEDULES = [
    S(64, 1, stages=6),
    S(64, 2, stages=8, turns=True),
    S(64, 2, stages=8),
    S(64, 2, blocks=2, stages=5),
    S(128, 2, stages=6),
    S(128, 2, blocks=2, stages=4),
    S(128, 2, blocks=2, stages=6, turns=True),
]
SIZES = [
    (256, 64, 100352), (64, 256, 100352), (512, 128, 25088), (128, 512, 25088), (1024, 256, 6272), (2048, 512, 1568),
    (1024, 1024, 1024), (2048, 2048, 2048), (256, 1024, 2048), (768, 768, 4096), (768, 3072, 4096),
]  # fmt: skip


def main() -> None:
    turn, of = int(sys.argv[1]), int(sys.argv[2])
    choose, faster, torch = matmul.choose, matmul.faster_transposed, peers.torch()
    torch.backends.cuda.matmul.allow_tf32 = True
    for m, n, k in SIZES[turn::of]:
        rng = np.random.default_rng(0)
        x, y = [rng.standard_normal((k, s), np.float32) * k**-0.5 for s in (m, n)]
        exact = x.astype(np.float64).T @ y.astype(np.float64) if of == 1 else 0
        arrays = [vnp.asarray(x), vnp.asarray(y)]
        samplers, notes = {}, {}
        for s in [None, "copy", *SCHEDULES]:
            matmul.choose, matmul.faster_transposed = choose, faster
            if s == "copy":
                matmul.faster_transposed = lambda ps, c, d: None
            elif s is not None:
                matmul.faster_transposed = lambda ps, c, d: next(p for p in ps if p.m == m)
                matmul.choose = lambda p, d, s=s: estimated(p, d, [s])
            opened_gpu().routines = RoutineCache()
            program = vf.jit(lambda x, y: vnp.matmul(x.T, y, precision="tensorfloat32"))
            name = "chosen" if s is None else s if s == "copy" else f"{'t' if s.turns else ''}{s.rows}x{s.columns}"
            try:
                result = np.asarray(program(*arrays))
                if of > 1:
                    continue
                samplers[name] = chain(lambda program=program: program(*arrays), 20)
            except Exception as error:
                print(m, n, k, name, type(error).__name__, str(error)[:200])
                continue
            error = relative_error(result, exact)
            notes[name] = "" if error < 8e-4 else f" WRONG {error:.1e}"
        if of > 1:
            continue
        a, b = torch.tensor(x, device="cuda"), torch.tensor(y, device="cuda")
        samplers["cuBLAS"] = peers.timer(lambda: a.T @ b)
        times = alternate(samplers)
        print(f"{m}x{n}x{k} " + " ".join(f"{name} {t * 1e6:.2f}{notes.get(name, '')}" for name, t in times.items()), flush=True)


if __name__ == "__main__":
    main()
