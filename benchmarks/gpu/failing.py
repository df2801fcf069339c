"""Temporary."""
import os, signal, sys, time
import numpy as np
import volta_fn as vf
from benchmarks.machine import use_gpu
from tests.targets.nvidia.on_device import FAULT, array, step
from volta_fn import P, lax
mode = sys.argv[1]
use_gpu()
if mode != "one": vf.distributed.initialize()
n = len(vf.devices("gpu")) if mode == "one" else vf.process_count()
mesh = vf.make_mesh({"i": n})
f = vf.jit(vf.shard_map(lambda x: lax.psum(x * 2, "i"), mesh=mesh, in_specs=P("i"), out_specs=P()))
x = vf.device_put(np.arange(4096.0, dtype="float32"), vf.NamedSharding(mesh, P("i"))) if mode == "one" else np.ones(1024, "float32")
for _ in range(5): y = f(x)
vf.block_until_ready(y)
last = n - 1
if mode == "one" or vf.process_index() == last:
    print("failing at", time.time() % 1000, flush=True)
    if mode == "killed": os.kill(os.getpid(), signal.SIGKILL)
    device = vf.devices("gpu")[last if mode == "one" else 0].backend.gpu.queue.driver
    a = array(device, [1]); device.play([step(device, FAULT, a, a, 1)])
try:
    for _ in range(3): y = f(x)
    np.asarray(y)
except BaseException as error:
    print("at", time.time() % 1000, type(error).__name__, str(error)[:300], getattr(error, "__notes__", ""), flush=True)
    raise SystemExit(1)
print("no error", flush=True)
