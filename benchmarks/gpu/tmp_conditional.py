"""Try a while node whose condition is set by PTX that LLVM makes."""
import ctypes, time, sys
from ctypes import c_void_p, c_uint64, c_uint, c_int, byref, sizeof
import llvmlite.binding as llvm
cu = ctypes.CDLL("libcuda.so.1")
def ck(r, what):
    if r: raise SystemExit(f"{what}: {r}")
IR = '''
target triple = "nvptx64-nvidia-cuda"
declare void @cudaGraphSetConditional(i64, i32)
define ptx_kernel void @step(ptr addrspace(1) %p, i32 %n, i64 %handle) {
  %v = load i32, ptr addrspace(1) %p
  %w = add i32 %v, 1
  store i32 %w, ptr addrspace(1) %p
  %more = icmp ult i32 %w, %n
  %flag = zext i1 %more to i32
  call void @cudaGraphSetConditional(i64 %handle, i32 %flag)
  ret void
}
'''
llvm.initialize_all_targets(); llvm.initialize_all_asmprinters()
m = llvm.parse_assembly(IR)
ptx = llvm.Target.from_triple("nvptx64-nvidia-cuda").create_target_machine(cpu="sm_90", features="+ptx83").emit_assembly(m)
print(ptx)
ck(cu.cuInit(0), "init")
dev, ctx = c_int(), c_void_p()
ck(cu.cuDeviceGet(byref(dev), 0), "dev"); ck(cu.cuDevicePrimaryCtxRetain(byref(ctx), dev), "ctx"); ck(cu.cuCtxSetCurrent(ctx), "cur")
mod = c_void_p()
r = cu.cuModuleLoadData(byref(mod), ptx.encode()); print("cuModuleLoadData of PTX:", r)
# by the linker, as kernels are compiled
state, cubin, size = c_void_p(), c_void_p(), ctypes.c_size_t()
ck(cu.cuLinkCreate_v2(0, None, None, byref(state)), "link create")
r = cu.cuLinkAddData_v2(state, 1, ptx.encode() + b"\0", len(ptx) + 1, b"x", 0, None, None); print("cuLinkAddData:", r)
r2 = cu.cuLinkComplete(state, byref(cubin), byref(size)); print("cuLinkComplete:", r2, size.value)
if not r2:
    code = ctypes.string_at(cubin, size.value); open("/tmp/cond.cubin", "wb").write(code)
    linked = c_void_p(); print("load of the linked:", cu.cuModuleLoadData(byref(linked), code))
    if "linked" in sys.argv: mod = linked
fn = c_void_p(); ck(cu.cuModuleGetFunction(byref(fn), mod, b"step"), "fn")
class Kernel(ctypes.Structure):
    _fields_ = (("f", c_void_p), ("grid", c_uint*3), ("block", c_uint*3), ("shared", c_uint), ("params", c_void_p), ("extra", c_void_p), ("kern", c_void_p), ("ctx", c_void_p))
class Cond(ctypes.Structure):
    _fields_ = (("handle", c_uint64), ("type", c_int), ("size", c_uint), ("out", ctypes.POINTER(c_void_p)), ("ctx", c_void_p))
class U(ctypes.Union):
    _fields_ = (("cond", Cond), ("pad", ctypes.c_longlong*29))
class Node(ctypes.Structure):
    _fields_ = (("type", c_int), ("r", c_int*3), ("u", U), ("r2", ctypes.c_longlong))
assert sizeof(Node) == 256
stream = c_void_p(); ck(cu.cuStreamCreate(byref(stream), 1), "stream")
mem = c_uint64(); ck(cu.cuMemAlloc_v2(byref(mem), 4), "alloc")
def build(n, chain):
    g = c_void_p(); ck(cu.cuGraphCreate(byref(g), 0), "graph")
    h = c_uint64(); ck(cu.cuGraphConditionalHandleCreate(byref(h), g, ctx, 1, 1), "handle")
    p = Node(type=13); p.u.cond.handle, p.u.cond.type, p.u.cond.size, p.u.cond.ctx = h.value, 1, 1, ctx.value
    node = c_void_p(); ck(cu.cuGraphAddNode(byref(node), g, None, 0, byref(p)), "conditional")
    body = c_void_p(p.u.cond.out[0])
    a, b, c = c_uint64(mem.value), c_uint(n), c_uint64(h.value)
    args = (c_void_p*3)(*[ctypes.cast(byref(x), c_void_p) for x in (a, b, c)])
    last = c_void_p()
    for k in range(chain):
        kp = Kernel(fn, (c_uint*3)(1,1,1), (c_uint*3)(1,1,1), 0, ctypes.cast(args, c_void_p), None, None, None)
        new = c_void_p(); ck(cu.cuGraphAddKernelNode_v2(byref(new), body, byref(last) if k else None, 1 if k else 0, byref(kp)), "kernel")
        last = new
    e = c_void_p(); t = time.perf_counter(); ck(cu.cuGraphInstantiateWithFlags(byref(e), g, 0), "instantiate"); print("instantiate s", time.perf_counter()-t)
    return e
for n, chain in ((10, 1), (1000, 1), (10000, 1), (10000, 4)):
    e = build(n, chain)
    for _ in range(3):
        ck(cu.cuMemsetD32_v2(mem, 0, 1), "set"); ck(cu.cuCtxSynchronize(), "sync")
        t = time.perf_counter(); ck(cu.cuGraphLaunch(e, stream), "launch"); ck(cu.cuStreamSynchronize(stream), "sync"); t = time.perf_counter() - t
    v = c_uint(); ck(cu.cuMemcpyDtoH_v2(byref(v), mem, 4), "read")
    its = -(-n//chain)
    print(f"n={n} chain={chain}: counter {v.value}, {t*1e6:.1f} us, {t*1e6/its:.2f} us an iteration")
