"""Temporary: products of one-tap layers by schedules, with clusters and without, beside cuBLAS."""

from __future__ import annotations

import sys
from dataclasses import replace
from itertools import product as every

import numpy as np

import volta_fn as vf
import volta_fn.numpy as vnp
from benchmarks.gpu import peers
from benchmarks.gpu.chains import chain
from benchmarks.gpu.device import opened_gpu
from benchmarks.gpu.products import BFLOAT16, alternate, laid_out, relative_error, shapes_of
from volta_fn.targets.nvidia import matmul
from volta_fn.targets.nvidia.matmul import problem as p
from volta_fn.targets.nvidia.matmul.problem import Schedule
from volta_fn.targets.wgsl import program_plan
from volta_fn.targets.wgsl.target import RoutineCache

program_plan.cache_dir = lambda: None

PROBLEMS = [
    ("NN", 1568, 2048, 512), ("NT", 1568, 512, 2048), ("TN", 512, 2048, 1568), ("NN", 1568, 512, 2048), ("NT", 1568, 2048, 512),
    ("TN", 2048, 512, 1568), ("NN", 6272, 256, 1024), ("NT", 6272, 1024, 256), ("TN", 1024, 256, 6272), ("NN", 6272, 1024, 256),
    ("NT", 6272, 256, 1024), ("NN", 25088, 128, 512), ("NT", 25088, 128, 512), ("NN", 25088, 512, 128), ("TN", 768, 3072, 4096),
    ("NN", 1024, 1024, 1024), ("NN", 4096, 4096, 4096), ("NT", 512, 896, 4864),
]  # fmt: skip


def options(product, device):
    result = []
    for columns, (groups, blocks, turns), cluster in every(
        (64, 80, 96, 112, 128, 144, 160, 176, 192, 208, 224, 256),
        ((2, 1, False), (1, 1, False), (2, 1, True), (2, 2, True), (2, 2, False)),
        (1, 2, 4),
    ):
        if columns > (256 if blocks == 1 and groups == 2 else 128 if groups == 1 or turns else 160):
            continue
        s = Schedule(columns, groups, blocks, 3, turns, 1, cluster)
        wide = p._copied_columns(product, s)
        room = (113 << 10 if groups == 1 else p._BLOCK_MEMORY) - groups * 4 * p.STAGING
        stages = min(8, room // ((s.rows + wide) * p.ROW + 16))
        if stages < 3 or not p.is_legal(product, replace(s, stages=stages)):
            continue
        for n in p._splits(product, s, device.processors):
            s = replace(s, stages=stages, splits=n)
            row = p._ROW_COST * (s.rows + wide / (1 if cluster == 1 else cluster))
            fits = p.cost(product, s, device.processors)
            down, across = p.tiles(product, s)
            blocks_ = -(-down * across * product.batch * n // (device.processors if cluster < 4 else 120))
            rounds, residents = -(-blocks_ // s.residents), min(blocks_, s.residents)
            each = max(s.rows * columns, row)
            cost = rounds * ((each * residents + 4000) * p.chunk(product, n) + s.rows * columns * residents)
            cost += fits - fits if n == 1 else p._DISPATCH_COST + p._PARTIAL_COST * (n + 1) * product.m * product.n / 132
            result.append((cost, s))
    result.sort(key=lambda pair: pair[0])
    alone, clusters = [[s for _, s in result if (s.cluster > 1) == flag] for flag in (False, True)]
    return alone[:8] + clusters[:9]


def main() -> None:
    turn, of = int(sys.argv[1]), int(sys.argv[2])
    device, choose, torch = opened_gpu().capabilities, matmul.choose, peers.torch()
    number = 0
    for layout, m, n, k in PROBLEMS if len(sys.argv) < 4 else [PROBLEMS[int(i)] for i in sys.argv[3].split(",")]:
        rng = np.random.default_rng(0)
        shapes = shapes_of(layout, m, n, k)
        arrays = [(rng.standard_normal(s, np.float32) * k**-0.5).astype(BFLOAT16) for s in shapes]
        operands = [vnp.asarray(x) for x in arrays]
        x, y = [torch.tensor(a.astype(np.float32), device="cuda").bfloat16() for a in arrays]
        f = laid_out(layout)
        exact = f(x.float(), y.float()).cpu().numpy() if of == 1 else None
        listed = []

        def chosen(q, d, most=64):
            listed.extend(options(q, d))
            return choose(q, d, most)

        samplers, notes = {}, {}

        def add(name, function):
            matmul.choose = function
            opened_gpu().routines = RoutineCache()
            program = vf.jit(lambda x, y: f(x, y))
            try:
                result = np.asarray(program(*operands)).astype(np.float32)
                if of == 1:
                    error = relative_error(result, exact)
                    notes[name] = "" if error < 8e-3 else f" WRONG {error:.1e}"
                    samplers[name] = chain(lambda: program(*operands), 20)
            except Exception as error:
                print(name, type(error).__name__, str(error)[:300], flush=True)

        add("chosen", chosen)
        for s in list(dict.fromkeys(listed)):
            number += 1
            if number % of == turn or of == 1:
                name = f"{'t' if s.turns else ''}{s.rows}x{s.columns}{'g1' if s.groups == 1 else ''}s{s.stages}k{s.splits}c{s.cluster}"
                add(name, lambda *a, s=s: s)
        if of > 1:
            continue
        samplers["cuBLAS"] = peers.timer(lambda: f(x, y))
        times = sorted(alternate(samplers).items(), key=lambda pair: pair[1])
        print(f"{layout} {m}x{n}x{k} " + " ".join(f"{name} {t * 1e6:.2f}{notes.get(name, '')}" for name, t in times), flush=True)


if __name__ == "__main__":
    main()
