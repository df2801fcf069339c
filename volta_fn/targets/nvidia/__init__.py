"""Run shaders on NVIDIA's GPUs, through their driver alone.

In the order in which to read: `translation` (WGSL to LLVM IR), `kernel` (kernels that are no WGSL, and their launches), `function`,
`pipeline`, `swizzled` and `warp_groups` (such kernels in LLVM IR), `matmul`, `rows`, `attention`, `convolution` and `recurrence` (on matrix
units), `float8` (conversions) and `target`, which prefers them, `peers` (collectives between processes), `library` (the driver's
functions), `ptx` (without what the driver's compiler gets wrong), `compilation` (LLVM IR to machine code, by processes that compile, kept
on disk), `graphs` (recorded dispatches as CUDA graphs), `readbacks` (copies to the host), `driver`, which implements the interface to
drivers in `targets/gpu/device/driver.py`, and `adapters`, which lists the machine's GPUs.
"""
