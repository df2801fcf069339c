"""Times of products of 1x1 convolutions by several schedules."""

from __future__ import annotations

import statistics
import sys
import time
from dataclasses import replace

import volta_fn as vf
import volta_fn.numpy as vnp
from benchmarks.gpu.chains import _runner, steps_of
from benchmarks.gpu.conv_units import PASSES, REPEATED, Layer
from benchmarks.gpu.conv_breakdown import ONE
from benchmarks.gpu.device import opened_gpu
from benchmarks.gpu.products import FURTHER
from volta_fn.targets.nvidia import convolution
from volta_fn.targets.nvidia.matmul import problem as M
from volta_fn.targets.wgsl.target import RoutineCache

L = Layer
JOBS = [
    (L(32, 512, 28, 28, 128, **ONE), 2), (L(32, 256, 56, 56, 64, **ONE), 2), (L(32, 1024, 14, 14, 256, **ONE), 2),
    (L(32, 256, 14, 14, 1024, **ONE), 2), (L(32, 512, 7, 7, 2048, **ONE), 2), (L(32, 2048, 7, 7, 512, **ONE), 2),
    (L(32, 512, 7, 7, 2048, **ONE), 1), (L(32, 2048, 7, 7, 512, **ONE), 1), (L(32, 512, 7, 7, 2048, **ONE), 0),
    (L(32, 1024, 14, 14, 256, **ONE), 0), (L(32, 256, 14, 14, 1024, **ONE), 1), (L(32, 512, 28, 28, 128, **ONE), 0),
    (L(32, 64, 56, 56, 256, **ONE), 1), (L(32, 128, 28, 28, 512, **ONE), 1),
]  # fmt: skip
JOBS = [(l._replace(last=True), n) for l, n in JOBS]
MOST = 14
seen = {}


def force(k):
    opened_gpu().routines = RoutineCache()

    def choose(product, device, most=64):
        every = [s for s in (*M.candidates(device), *M._WGMMA_OF_MATRICES, *FURTHER) if M.is_legal(product, s) and s.kind == "wgmma" and s.shared <= device.block_memory]
        every = {replace(s, splits=n) for s in every for n in {*M._splits(product, s, device.processors), 2, 4, 8, 16} if n <= most}
        every = sorted(every, key=lambda s: (M.cost(product, s, device.processors), str(s)))
        shapes, picked = set(), []
        for s in every:
            key = s.rows, s.columns, s.turns, s.splits
            near = [t for t in picked if (t.rows, t.columns, t.turns) == key[:3]]
            if len(near) < 3 and key not in shapes:
                shapes.add(key)
                picked.append(s)
        standard = M.choose(product, device, most)
        picked = [standard, *[s for s in picked if s != standard]]
        if k >= len(picked):
            raise IndexError
        seen["s"] = product.name, picked[k], M.cost(product, picked[k], device.processors) / 32 / 1755
        return picked[k]

    convolution.choose = choose


def main():
    start, limit, part = time.time(), float(sys.argv[1]), sys.argv[2]
    todo = [(layer, number, k) for k in range(MOST) for layer, number in JOBS]
    if part != "all":
        a, b = map(int, part.split("/"))
        todo = todo[a::b]
    times = {}
    data = {}
    for layer, number, k in todo:
        if time.time() - start > limit:
            break
        force(k)
        if layer not in data:
            data[layer] = [vnp.asarray(x) for x in layer.arrays()]
        program = vf.jit(layer.function(number))
        try:
            if part != "all":
                vf.block_until_ready(program(*data[layer]))
                continue
            steps, kept = steps_of(lambda: program(*data[layer]))
        except IndexError:
            continue
        seconds = statistics.median(_runner(steps, REPEATED)() for _ in range(3))
        times.setdefault((layer.name, PASSES[number], seen["s"][0]), []).append((seconds * 1e6, k == 0, *seen["s"][1:]))
    for key, rows in times.items():
        print(*key)
        for us, standard, s, cost in sorted(rows, key=lambda r: r[0])[:5] + [r for r in rows if r[1]]:
            print(f"   {us:6.1f} us est {cost:5.1f} {'CHOSEN' if standard else ''} {s.columns}x{s.groups} b{s.blocks} st{s.stages} {'turns' if s.turns else ''} sp{s.splits}")


if __name__ == "__main__":
    main()
