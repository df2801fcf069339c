"""Run shaders on NVIDIA's GPUs, through their driver alone.

A shader goes through `driver`, `compilation` and `translation`, a call through `driver` and `stream`: those who read how programs run need
no other module.

In the order in which to read: `translation` (WGSL to LLVM IR), `kernel` (kernels that are not WGSL but LLVM IR, and their launches),
`matrix_units` (rows and stages in shared memory, and products of warp groups), `matmul`, `rows`, `attention`, `patches`, `convolution` and
`recurrence` (on matrix units), `float8` (conversions) and `target`, which prefers them. Where each process has a GPU, processes map each
other's memory (`peers`): a kernel leaves there what the others' kernels read, announces it by flags, and waits for those of others;
`collectives` are such kernels, which combine words as numbers, and CUDA graphs contain them like others. `library` has the driver's
functions, `processes` forks processes that answer requests, `compilation` has them make machine code of LLVM IR, and keeps it on disk,
`stream` has recorded dispatches as CUDA graphs, and copies to the host, and `driver` implements the interface to drivers in
`targets/gpu/driver.py` and lists the machine's GPUs.
"""
