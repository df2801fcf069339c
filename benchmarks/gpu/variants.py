"""Temporary."""
import os, statistics, sys, time
import numpy as np
import volta_fn as vf
from benchmarks.gpu.collectives import Gpus, training_call
from benchmarks.machine import use_gpu
from benchmarks.workloads import named
from volta_fn.compiler.passes import dce
from volta_fn.targets.nvidia.peers import kernels
from volta_fn.targets.wgsl import target as wgsl_target
cached = wgsl_target.RoutineCache.__call__
wgsl_target.RoutineCache.__call__ = lambda self, key: key.make() or None if "psum_bucket" in str(key.key)[:200] else cached(self, key)
use_gpu()
name = "gpu train/gpt medium@bfloat16"
if sys.argv[1] == "one":
    gpus = Gpus(1, (0,))
else:
    vf.distributed.initialize()
    gpus = Gpus(vf.process_count(), (vf.process_index(),))
examples = named(name).size["batch"]
def timed(call):
    first = [float(np.asarray(call())) for _ in range(3)]
    for _ in range(20): call()
    samples = []
    for _ in range(7):
        vf.block_until_ready(call()); t = time.perf_counter()
        for _ in range(20): loss = call()
        vf.block_until_ready(loss); samples.append((time.perf_counter() - t) / 20)
    return statistics.median(samples) * 1e3, first
WIDE, BESIDE = kernels.SCHEDULE, kernels.BESIDE
for text in sys.argv[2:]:
    o = dict(part.split("=") for part in text.split(",") if part != "base")
    began = time.perf_counter()
    dce._DEVICE_BUCKET = int(o.pop("bucket", 16)) << 20
    dce._OPERATIONS_BESIDE = int(o.pop("over", 1 << 60))
    kernels.BESIDE = BESIDE._replace(**{k[1:]: int(v) for k, v in o.items() if k[0] == "b"})
    kernels.SCHEDULE = WIDE._replace(**{k[1:]: int(v) for k, v in o.items() if k[0] == "w"})
    try:
        vf.clear_caches() if hasattr(vf, "clear_caches") else None
        ms, losses = timed(training_call(name, gpus, examples))
    except Exception as error:
        ms, losses = 0, [str(error)[:200]]
    if gpus.is_first: print(f"{text:44s} {ms:.3f} ms; {losses[:3]} in {time.perf_counter() - began:.0f} s", flush=True)
