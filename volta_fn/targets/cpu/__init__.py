"""Native machine code for the CPU, generated as LLVM IR.

It needs llvmlite, which is imported on first use. In the order in which to read: `routine` (what is generated for a kernel or an equation,
entry points, and loops over contiguous elements), what routines are made of — `scalars` (operations on vectors of numbers), `loops`
(kernels), `matmul`, `quantized` (products with weights of few bits), `convolution`, `attention`, `library` (sorts, scans, gathers, …),
`lapack` (linear algebra) and `fourier` — `target` (all of them by name, and what the compiler needs to know of them), and `runtime`
(complete programs: memory, threads, the code cache).
"""
