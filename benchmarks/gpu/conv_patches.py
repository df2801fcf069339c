"""Checks and times of convolutions by patches, by several schedules."""

from __future__ import annotations

import statistics
import sys
import time

import numpy as np

import volta_fn as vf
import volta_fn.numpy as vnp
from benchmarks.gpu import peers
from benchmarks.gpu.chains import _runner, repeated, steps_of
from benchmarks.gpu.conv_units import CHECKS, PASSES, REPEATED, Layer
from benchmarks.gpu.conv_breakdown import FLOAT32, ONE, TWO
from benchmarks.gpu.device import opened_gpu
from volta_fn.targets.nvidia import patches as P
from volta_fn.targets.wgsl.target import RoutineCache

L = Layer
TIMED = [
    L(64, 64, 32, 32, 64), L(64, 128, 16, 16, 128), L(64, 256, 8, 8, 256), L(64, 512, 4, 4, 512), L(32, 64, 56, 56, 64),
    L(32, 128, 28, 28, 128), L(32, 256, 14, 14, 256), L(32, 512, 7, 7, 512), L(8, 128, 128, 128, 64), L(8, 1024, 16, 16, 512),
    L(64, 64, 32, 32, 128, **TWO), L(32, 512, 14, 14, 512, **TWO), L(32, 128, 56, 56, 128, **TWO), L(128, 32, 28, 28, 64),
]
TIMED = [l._replace(last=True) for l in TIMED]
TF32 = [l._replace(dtype=FLOAT32) for l in (TIMED[0], TIMED[1], TIMED[3], TIMED[7], TIMED[5])]
FIRST = [l._replace(last=False) for l in (TIMED[0], TIMED[5], TIMED[6], TIMED[7])]
estimated, cost = P.estimated, P.cost
most = 5


MORE = [
    L(4, 64, 56, 56, 256, **ONE), L(32, 256, 14, 14, 1024, **ONE), L(8, 512, 7, 7, 256, **ONE), L(8, 128, 28, 28, 512, **ONE),
    L(8, 256, 56, 56, 512, **TWO, **ONE), L(16, 32, 28, 28, 64), L(16, 16, 15, 13, 40), L(16, 64, 28, 28, 3), L(16, 3, 32, 32, 64),
    L(4, 3, 64, 64, 64, taps=(7, 7), padding=((3, 3), (3, 3)), **TWO), L(16, 128, 8, 8, 128, groups=2, **ONE),
]  # fmt: skip
MORE = [l._replace(last=last, dtype=dtype) for l in MORE for last in (True, False) for dtype in (L(1, 1, 1, 1, 1).dtype, FLOAT32)]


def jobs():
    if "more" in sys.argv:
        for layer in MORE:
            yield layer, None
        return
    for layer in [*CHECKS, *TIMED[:8], *TF32, *FIRST]:
        yield layer, None
    for layer in [*TIMED, *TF32, *FIRST]:
        for choice in range(-1, most):
            yield layer, choice


used = []


def force(choice):
    opened_gpu().routines = RoutineCache()
    used.clear()

    def chosen(problem, device, splits):
        options = sorted(P.schedules(problem, device.block_memory, splits), key=lambda s: cost(problem, s, device.processors))
        picked, shapes = [], set()
        for s in options:
            key = (s.tile.period == 8, s.tile.columns, s.splits)
            if key not in shapes:
                shapes.add(key)
                picked.append(s)
        if choice == -1 or choice >= len(picked):
            return None
        used.append((picked[choice], cost(problem, picked[choice], device.processors) / 32 / 1755))
        return picked[choice]

    P.estimated = chosen
    P.cost = lambda *a: 0.0


def check(layer):
    torch = peers.torch()
    arrays = layer.arrays()
    t = [torch.tensor(np.asarray(x.astype(np.float64)), device="cuda") for x in arrays]
    if layer.last:
        t = [t[0].permute(0, 3, 1, 2), t[1].permute(3, 2, 0, 1), t[2].permute(0, 3, 1, 2)]
    lo, hi = zip(*layer.padding)
    x = torch.nn.functional.pad(t[0], (lo[1], hi[1], lo[0], hi[0])).requires_grad_()
    w = t[1].requires_grad_()
    y = torch.nn.functional.conv2d(x, w, None, list(layer.stride), 0, list(layer.dilation), layer.groups)
    gx, gw = torch.autograd.grad(y, (x, w), t[2])
    gx = gx[:, :, lo[0] : gx.shape[2] - hi[0], lo[1] : gx.shape[3] - hi[1]]
    texts = []
    for number, expected in enumerate((y, gx, gw)):
        expected = expected.detach()
        if layer.last:
            expected = expected.permute(2, 3, 1, 0) if number == 2 else expected.permute(0, 2, 3, 1)
        e = expected.cpu().numpy()
        for choice in (0, 1, 2):
            force(choice)
            f = vf.jit(layer.function(number))
            a, b = [np.asarray(f(*[vnp.asarray(x) for x in arrays])).astype(np.float64) for _ in range(2)]
            error = np.linalg.norm(a - e) / np.linalg.norm(e)
            bad = "" if error < (4e-4 if layer.dtype == FLOAT32 else 4e-3) else " WRONG"
            bad += "" if np.array_equal(a, b) else " NOT SAME"
            texts.append(f"{error:.1e}{bad}{'p' if used else ''}{used if bad else ''}")
            if not used:
                break
    print("CHECK", layer.name, *texts, flush=True)


def main():
    start = time.time()
    limit, part = float(sys.argv[1]), sys.argv[2]
    todo = [*jobs()]
    if part != "all":
        k, n = map(int, part.split("/"))
        for layer, choice in todo[k::n]:
            if time.time() - start > limit:
                print("LIMIT")
                return
            try:
                if choice is None:
                    check(layer)
                else:
                    force(choice)
                    vf.block_until_ready(vf.jit(layer.function(0))(*[vnp.asarray(x) for x in layer.arrays()]))
            except Exception as error:
                print("FAILED", layer.name, choice, type(error).__name__, str(error)[:300], flush=True)
        return
    for layer, choice in todo:
        if choice is None or time.time() - start > limit:
            continue
        force(choice)
        arrays = [vnp.asarray(x) for x in layer.arrays()]
        program = vf.jit(layer.function(0))
        steps, kept = steps_of(lambda: program(*arrays))
        if choice >= 0 and not used:
            continue
        ours = statistics.median(_runner(steps, REPEATED)() for _ in range(3))
        each = [repeated([step], REPEATED) for step in steps]
        s = used[0][0] if used else None
        name = f"{'strip' if s.tile.period == 8 else 'flat'} {s.tile.images}x{s.tile.height}x{s.tile.width} n{s.tile.columns} st{s.stages} sp{s.splits} est {used[0][1]:.1f}" if s else "im2col"
        print(f"{layer.name:48s} {ours * 1e6:7.1f} us {layer.operations / ours / 1e12:4.0f} TF | {' + '.join(f'{t * 1e6:.1f}' for t in each)} | {name}", flush=True)


if __name__ == "__main__":
    main()
