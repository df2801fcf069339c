"""Times of convolutions beside cuDNN's in both layouts, with those of each dispatch."""

from __future__ import annotations

import statistics
import sys
import time

import numpy as np

import volta_fn as vf
import volta_fn.numpy as vnp
from benchmarks.gpu import peers
from benchmarks.gpu.chains import repeated, steps_of, _runner
from benchmarks.gpu.conv_units import PASSES, REPEATED, Layer
from benchmarks.gpu.products import BFLOAT16, FLOAT32

ONE = {"taps": (1, 1), "padding": ((0, 0), (0, 0))}
TWO = {"stride": (2, 2)}
RESNET18 = [
    Layer(64, 64, 32, 32, 64),
    Layer(64, 128, 16, 16, 128),
    Layer(64, 256, 8, 8, 256),
    Layer(64, 512, 4, 4, 512),
    Layer(64, 64, 32, 32, 128, **TWO),
    Layer(64, 128, 16, 16, 256, **TWO),
    Layer(64, 256, 8, 8, 512, **TWO),
    Layer(64, 64, 32, 32, 128, **TWO, **ONE),
]
RESNET50 = [
    Layer(32, 64, 56, 56, 64),
    Layer(32, 128, 28, 28, 128),
    Layer(32, 256, 14, 14, 256),
    Layer(32, 512, 7, 7, 512),
    Layer(32, 64, 56, 56, 256, **ONE),
    Layer(32, 256, 56, 56, 64, **ONE),
    Layer(32, 512, 28, 28, 128, **ONE),
    Layer(32, 128, 28, 28, 512, **ONE),
    Layer(32, 1024, 14, 14, 256, **ONE),
    Layer(32, 256, 14, 14, 1024, **ONE),
    Layer(32, 2048, 7, 7, 512, **ONE),
    Layer(32, 512, 7, 7, 2048, **ONE),
    Layer(32, 256, 56, 56, 512, **TWO, **ONE),
    Layer(32, 1024, 14, 14, 2048, **TWO, **ONE),
    Layer(32, 128, 56, 56, 128, **TWO),
    Layer(32, 512, 14, 14, 512, **TWO),
    Layer(32, 3, 224, 224, 64, taps=(7, 7), padding=((3, 3), (3, 3)), **TWO),
]
OTHERS = [
    Layer(64, 3, 32, 32, 64),
    Layer(8, 64, 128, 128, 64),
    Layer(8, 128, 128, 128, 64),
    Layer(8, 256, 32, 32, 256),
    Layer(8, 1024, 16, 16, 512),
    Layer(128, 32, 28, 28, 64),
    Layer(128, 1, 28, 28, 32),
]
KEY = [*[l for l in RESNET50 if l.taps == (1, 1)], *RESNET18[:4], *RESNET50[:4], *RESNET50[14:16], *OTHERS[1:6]]
FIRST = [RESNET50[-1], OTHERS[0], OTHERS[-1]]
ONES = [l for l in RESNET50 if l.taps == (1, 1)]
SETS = {"first": FIRST, "ones": ONES, "three": [*RESNET18[:7], *RESNET50[:4], *RESNET50[14:16], *OTHERS[1:6]], "key": KEY, "resnet18": RESNET18, "resnet50": RESNET50, "others": OTHERS}


def peer(layer, number, last):
    torch = peers.torch()
    shape = layer._replace(last=False).shapes
    torch.backends.cudnn.allow_tf32 = layer.dtype == FLOAT32
    dtype = torch.float32 if layer.dtype == FLOAT32 else torch.bfloat16
    layout = torch.channels_last if last else torch.contiguous_format
    x, w, ct = (torch.randn(s, device="cuda").to(dtype).contiguous(memory_format=layout) for s in shape)
    padding = [low for low, _ in layer.padding]
    stride, dilation = [list(each) for each in (layer.stride, layer.dilation)]
    if number == 0:
        return peers.timer(lambda: torch.nn.functional.conv2d(x, w, None, stride, padding, dilation, layer.groups))
    mask = [number == 1, number == 2, False]
    backward = torch.ops.aten.convolution_backward
    return peers.timer(lambda: backward(ct, x, w, None, stride, padding, dilation, False, [0, 0], layer.groups, mask))


def rows(names, dtypes, lasts):
    for dtype in dtypes:
        for last in lasts:
            for name in names:
                for layer in SETS[name]:
                    yield layer._replace(dtype=dtype, last=last)


def main():
    names, dtypes, lasts, limit, part = sys.argv[1:6]
    start = time.time()
    table = [*rows(names.split(","), [{"bf16": BFLOAT16, "tf32": FLOAT32}[d] for d in dtypes.split(",")], [l == "nhwc" for l in lasts.split(",")])]
    jobs = [(layer, number) for layer in table for number in range(3)]
    if part != "all":
        k, n = map(int, part.split("/"))
        for layer, number in jobs[k::n]:
            if time.time() - start > float(limit):
                return
            try:
                vf.block_until_ready(vf.jit(layer.function(number))(*[vnp.asarray(x) for x in layer.arrays()]))
            except Exception as error:
                print("COMPILE", layer.name, number, str(error)[:200], flush=True)
        return
    theirs = {}
    data = {}
    for layer, number in jobs:
        if time.time() - start > float(limit):
            print("out of time before", layer.name, number)
            return
        if layer not in data:
            data.clear()
            data[layer] = [vnp.asarray(x) for x in layer.arrays()]
        program, arrays = vf.jit(layer.function(number)), data[layer]
        steps, kept = steps_of(lambda: program(*arrays))
        run = _runner(steps, REPEATED)
        key = (layer._replace(last=False), number)
        if key not in theirs and peers.torch() is not None:
            cl = peer(layer, number, True)
            cf = peer(layer, number, False) if "nchw" in lasts else cl
            theirs[key] = statistics.median(cl() for _ in range(2)), statistics.median(cf() for _ in range(2))
        ours = statistics.median(run() for _ in range(3))
        each = [repeated([step], REPEATED) for step in steps] if len(steps) > 1 else [ours]
        cl, cf = theirs.get(key, (float("nan"),) * 2)
        print(
            f"{layer.name:48s} {PASSES[number]:10s} {ours * 1e6:7.1f} us {layer.operations / ours / 1e12:4.0f} TF"
            f" | cl {cl * 1e6:7.1f} {cl / ours:5.2f} cf {cf * 1e6:7.1f} {cf / ours:5.2f} | "
            + " + ".join(f"{t * 1e6:.1f}" for t in each),
            flush=True,
        )


if __name__ == "__main__":
    main()
