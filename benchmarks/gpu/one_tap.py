"""Temporary: products of one-tap layers by sums of several lengths, beside cuBLAS; names of cuDNN's kernels."""

from __future__ import annotations

import sys
from dataclasses import dataclass

import numpy as np

import volta_fn as vf
import volta_fn.numpy as vnp
from benchmarks.gpu import peers
from benchmarks.gpu.chains import chain
from benchmarks.gpu.conv_units import ONE, PASSES, Layer, peer as conv_peer
from benchmarks.gpu.device import opened_gpu
from benchmarks.gpu.products import BFLOAT16, alternate, laid_out, shapes_of
from volta_fn.targets.nvidia import matmul
from volta_fn.targets.nvidia.matmul.problem import Schedule
from volta_fn.targets.wgsl.target import RoutineCache

S = Schedule
SCHEDULES = {
    "chosen": None,
    "64x256t5": S(256, 2, stages=5, turns=True),
    "128x256": S(256, 2, stages=4),
    "128x192": S(192, 2, stages=5),
    "128x128": S(128, 2, stages=6),
    "64x128t6": S(128, 2, stages=6, turns=True),
    "64x128x1": S(128, 1, stages=4),
    "128x64": S(64, 2, stages=8),
}
SIZES = [(1568, 2048), (1568, 512), (6272, 256), (6272, 1024), (25088, 128)]


def main() -> None:
    choose, turn, of = matmul.choose, int(sys.argv[1]), int(sys.argv[2])
    torch = peers.torch()
    jobs = [(m, n, k) for m, n in SIZES for k in ((64, 512, 1024) if m > 20000 else (64, 512, 2048))][turn::of]
    for m, n, k in jobs:
        rng = np.random.default_rng(0)
        arrays = [vnp.asarray((rng.standard_normal(s, np.float32) * k**-0.5).astype(BFLOAT16)) for s in shapes_of("NN", m, n, k)]
        samplers = {}
        for name, schedule in SCHEDULES.items():
            matmul.choose = choose if schedule is None else lambda *a, s=schedule: s
            opened_gpu().routines = RoutineCache()
            program = vf.jit(lambda x, y: x @ y)
            samplers[name] = chain(lambda program=program: program(*arrays), 20)
        if of > 1:
            continue
        x, y = [torch.randn(s, device="cuda").bfloat16() for s in shapes_of("NN", m, n, k)]
        samplers["cuBLAS"] = peers.timer(lambda: x @ y)
        times = alternate(samplers)
        print(f"{m}x{n}x{k} " + " ".join(f"{name} {t * 1e6:.2f}" for name, t in times.items()), flush=True)
    if of > 1:
        return
    for sizes in ((512, 7, 2048), (2048, 7, 512), (1024, 14, 256), (512, 28, 128), (128, 28, 512), (256, 56, 64)):
        c, size, o = sizes
        layer = Layer(32, c, size, size, o, last=True, **ONE)
        for number, name in enumerate(PASSES):
            sample = conv_peer(layer, number, last=True)
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as p:
                seconds = sample()
                torch.cuda.synchronize()
            names = {e.name: e.device_time for e in p.events() if e.device_time}
            listed = "; ".join(f"{k[:110]} {v:.1f}" for k, v in names.items())
            print(f"{layer.name} {name} {seconds * 1e6:.1f}: {listed}", flush=True)


if __name__ == "__main__":
    main()
