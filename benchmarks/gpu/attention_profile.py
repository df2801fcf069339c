import csv, subprocess, sys, io
def run(which):
    import torch, volta_fn as vf, volta_fn.numpy as vnp
    from benchmarks.gpu.attention_units import Problem
    name, *n = which.split(",")
    p = Problem(*map(int, n[:5]), causal=len(n) > 5)
    x = [vnp.asarray(a) for a in p.arrays()[:3 if name == "f" else 4]]
    f = vf.jit(p.attend if name == "f" else p.both)
    def wait(y): [v.block_until_ready() for v in (y if isinstance(y, list) else [y])]
    for _ in range(2): wait(f(*x))
    torch.zeros(1).cuda(); torch.cuda.synchronize()
    torch.cuda.cudart().cudaProfilerStart(); wait(f(*x)); torch.cuda.cudart().cudaProfilerStop()
def show(path):
    t = subprocess.run(["ncu", "-i", path, "--page", "source", "--csv"], capture_output=True, text=True).stdout
    rows = list(csv.reader(io.StringIO(t)))
    head = None
    blocks = []
    for r in rows:
        if "Source" in r: head = r; blocks.append((head, [])); continue
        if head and len(r) == len(head): blocks[-1][1].append(r)
    for head, body in blocks:
        col = next((i for i, h in enumerate(head) if "Sampling (All" in h or h == "# Samples"), None)
        src = head.index("Source")
        print("COLUMNS", head[:8], "rows", len(body))
        if col is None: continue
        num = lambda s: float(s.replace(",", "") or 0) if s.replace(",", "").replace(".", "").isdigit() else 0
        stalls = [i for i, h in enumerate(head) if h.startswith("stall_") and "not_issued" not in h]
        total = sum(num(r[col]) for r in body) or 1
        print("TOTAL samples", total, {h[6:]: round(sum(num(r[i]) for r in body)/total, 3) for i in stalls for h in [head[i]] if sum(num(r[i]) for r in body) > .01*total})
        for k, r in enumerate(body):
            if num(r[col]) > 0.006 * total or "HGMMA" in r[src] and "gsb0" in r[src] or "DEPBAR" in r[src]:
                top = sorted(((num(r[i]), head[i][6:]) for i in stalls), reverse=True)[:2]
                print(k, f"{100*num(r[col])/total:.1f}%", r[src][:60].strip(), [f"{n} {v:.0f}" for v, n in top if v])
if sys.argv[1] == "show": show(sys.argv[2])
else: run(sys.argv[1])
