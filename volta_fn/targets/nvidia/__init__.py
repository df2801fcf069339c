"""Run shaders on NVIDIA's GPUs, through their driver alone.

In the order in which to read: `translation` (WGSL to LLVM IR), `kernel` (kernels that are no WGSL, in LLVM IR, and their launches),
`matrix_units` (rows and stages in shared memory, and products of warp groups), `matmul`, `rows`, `attention`, `convolution` and
`recurrence` (on matrix units), `float8` (conversions) and `target`, which prefers them, `peers` (collectives between processes), `library`
(the driver's functions), `compilation` (LLVM IR to machine code, by processes that compile, kept on disk), `stream` (recorded dispatches as
CUDA graphs, and copies to the host), and `driver`, which implements the interface to drivers in `targets/gpu/driver.py` and lists
the machine's GPUs.
"""
