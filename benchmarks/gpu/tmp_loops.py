"""Time the LSTM's steps, long scans and while loops."""
import resource, sys, time
import numpy as np
import volta_fn as vf
import volta_fn.numpy as jnp
from benchmarks.workloads import large
from benchmarks.workloads.case import library
def rss(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
def lstm(name):
    work = {w.name: w for w in [*large.TRAINING, *large.PRECISIONS]}[name]
    c = work.case(); step = vf.jit(c.functional(library("volta_fn")), donate_argnums=0)
    state, *batch = c.inputs
    state = vf.tree.map(jnp.asarray, state); batch = [jnp.asarray(b) for b in batch]
    losses = []
    for _ in range(5):
        state, l = step(state, *batch); losses.append(float(l))
    for _ in range(100): state, l = step(state, *batch)
    vf.block_until_ready(l)
    ts = []
    for _ in range(9):
        t = time.perf_counter()
        for _ in range(50): state, l = step(state, *batch)
        vf.block_until_ready((state, l)); ts.append((time.perf_counter() - t) / 50)
    print(f"{name}: {min(ts)*1e6:.0f} us least, {sorted(ts)[4]*1e6:.0f} median; losses", losses, flush=True)
def timed(name, f, *args):
    t = time.perf_counter(); r0 = rss(); vf.block_until_ready(f(*args)); t1 = time.perf_counter() - t
    out = []
    for _ in range(4):
        t = time.perf_counter(); vf.block_until_ready(f(*args)); out.append(time.perf_counter() - t)
    print(f"{name}: first {t1:.3f} s, then", " ".join(f"{x*1e3:.3f}" for x in out), f"ms; host memory {r0:.0f} -> {rss():.0f} MB", flush=True)
if "lstm" in sys.argv:
    for p in ("@bfloat16", "@tensorfloat32", ""): lstm("gpu train/lstm" + p)
if "loops" in sys.argv:
    x = jnp.asarray(np.random.default_rng(0).standard_normal((64, 64), np.float32) * 0.1)
    for n in (1000, 4000, 10000):
        timed(f"scan of {n}", vf.jit(lambda x, n=n: vf.lax.scan(lambda c, _: (jnp.sin(c @ c), None), x, None, length=n)[0]), x)
    h = jnp.asarray(np.float32(0.3))
    f = vf.jit(lambda x: vf.lax.while_loop(lambda c: c[0] * c[0] < x, lambda c: (c[0] + 1, c[1] + vf.lax.while_loop(lambda d: d[0] < c[0], lambda d: (d[0] + 1, d[1] + 1), (x * 0, x * 0))[1]), (x * 0, x * 0)))
    for v in (0, 1, 17, 400): print("nested", v, [int(r) for r in f(jnp.asarray(np.int32(v)))], flush=True)
    for n in (10, 1000, 10000):
        timed(f"while of {n}", vf.jit(lambda x, n=n: vf.lax.while_loop(lambda c: c[0] < n, lambda c: (c[0] + 1, jnp.sin(c[1] @ c[1])), (0, x))[1]), x)
    import volta_fn.scipy.sparse.linalg as sl
    A = np.random.default_rng(1).standard_normal((256, 256)).astype(np.float32); A = A @ A.T / 256 + np.eye(256, dtype=np.float32); b = jnp.ones(256)
    cg = vf.jit(lambda A, b: sl.cg(lambda v: A @ v, b, tol=1e-6)[0]); y = np.asarray(cg(jnp.asarray(A), b)); print("cg residual", np.abs(A @ y - 1).max())
    timed("cg", cg, jnp.asarray(A), b)
    k = jnp.asarray(1)
    timed("cond", vf.jit(lambda k, x: vf.lax.cond(k > 0, lambda x: jnp.sin(x @ x), lambda x: x, x)), k, x)
    parts = [x + i for i in range(100)]
    timed("concatenate of 100", vf.jit(lambda *a: jnp.concatenate(a)), *parts)
