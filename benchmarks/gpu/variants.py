"""Temporary."""
import statistics, sys, time
import numpy as np
import volta_fn as vf
from benchmarks.gpu.collectives import Gpus, training_call
from benchmarks.machine import use_gpu
from benchmarks.workloads import named
from volta_fn.compiler.passes import dce
from volta_fn.targets.nvidia import driver
from volta_fn.targets.nvidia.peers import kernels
import os
from volta_fn.targets.wgsl import target as wgsl_target
cached = wgsl_target.RoutineCache.__call__
wgsl_target.RoutineCache.__call__ = lambda self, key: key.make() or None if "psum_bucket" in str(key.key)[:200] else cached(self, key)
use_gpu(); vf.distributed.initialize()
gpus = Gpus(vf.process_count(), (vf.process_index(),))
name = "gpu train/gpt medium@bfloat16"
examples = named(name).size["batch"]
def timed(call):
    first = [float(np.asarray(call())) for _ in range(3)]
    for _ in range(20): call()
    samples = []
    for _ in range(5):
        vf.block_until_ready(call()); t = time.perf_counter()
        for _ in range(20): loss = call()
        vf.block_until_ready(loss); samples.append((time.perf_counter() - t) / 20)
    return statistics.median(samples) * 1e3, first
began = time.perf_counter()
one, _ = timed(training_call(name, Gpus(1, (0,)), examples))
if gpus.is_first: print(f"one GPU {one:.3f} ms, after {time.perf_counter() - began:.0f} s", flush=True)
base, WIDENS = kernels.SCHEDULE, dce._widens
for text in sys.argv[1:]:
    o = dict(part.split("=") for part in text.split(",") if part != "base")
    if o.pop("noprio", None): os.environ["MULTI_NO_PRIORITY"] = "1"
    else: os.environ.pop("MULTI_NO_PRIORITY", None)
    dce._DEVICE_BUCKET = int(o.pop("bucket", 4)) << 20
    dce._widens = (lambda eqn: False) if o.pop("wide", None) else WIDENS

    kernels.SCHEDULE = base._replace(**{k: int(v) for k, v in o.items()})
    vf.clear_caches() if hasattr(vf, "clear_caches") else None
    ms, losses = timed(training_call(name, gpus, examples))
    if gpus.is_first: print(f"{text:40s} {ms:.3f} ms, {gpus.size * one / ms:.3f} times; {losses}", flush=True)
