import time, numpy as np
import volta_fn as vf, volta_fn.numpy as jnp
from benchmarks.gpu.chains import chain
def rate(name, f, *a):
    g = vf.jit(f); vf.block_until_ready(g(*a)); s = chain(lambda: g(*a), 10); t = min(s() for _ in range(5))
    nbytes = sum(x.size * x.dtype.itemsize for x in a) * 2
    print(f"{name}: {t*1e6:.1f} us, {nbytes/t/1e9:.0f} GB/s", flush=True)
for dt in ("float32", "bfloat16"):
    for n, axis in ((1, 0), (2, 0), (3, 0), (4, 0), (4, 1), (8, 0), (8, 1), (16, 0), (23, 0), (30, 0), (30, 1)):
        a = [jnp.ones((2048, 1024), dt) * i for i in range(n)]
        rate(f"concatenate {n} of 2048x1024 {dt} axis {axis}", (lambda x: x + 0) if n == 1 else (lambda *x, axis=axis: jnp.concatenate(x, axis)), *a)
