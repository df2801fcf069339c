"""Temporary."""
import sys, time, torch
n = torch.cuda.device_count()
D = [torch.device("cuda", i) for i in range(n)]
a = [torch.randn(4096, 768, device=d, dtype=torch.bfloat16) for d in D]
b = [torch.randn(768, 3072, device=d, dtype=torch.bfloat16) for d in D]
o = [torch.empty(4096, 3072, device=d, dtype=torch.bfloat16) for d in D]
side = [[torch.cuda.Stream(device=d) for _ in range(3)] for d in D]
def sync():
    for d in D: torch.cuda.synchronize(d)
def run(mb, products, peers):
    count = mb << 19
    src = [torch.ones(count, device=d, dtype=torch.bfloat16) for d in D]
    dst = [[torch.empty(count, device=D[j], dtype=torch.bfloat16) for j in range(n) if j != i][:peers] for i in range(n)]
    best = 1e9
    for _ in range(6):
        sync(); t = time.perf_counter()
        for i, d in enumerate(D):
            with torch.cuda.device(d):
                for k in range(peers):
                    with torch.cuda.stream(side[i][k]):
                        for _ in range(10): dst[i][k].copy_(src[i], non_blocking=True)
                for _ in range(products): torch.mm(a[i], b[i], out=o[i])
        sync(); best = min(best, time.perf_counter() - t)
    return best
for mb in (4, 16, 64):
    for peers in range(1, n):
        t = run(mb, 0, peers)
        print(f"{mb} MiB to {peers} peers by copy engines: {10*peers*mb/1024/t*1.0737:.0f} GB/s out of each GPU, {t/10*1e6:.1f} µs", flush=True)
p = run(1, 200, 0)
print(f"200 products alone {p*1e6:.0f} µs")
for peers in range(1, n):
    print(f"with 10 copies of 64 MiB to {peers}: {run(64, 200, peers)*1e6:.0f} µs; copies alone {run(64, 0, peers)*1e6:.0f}")
