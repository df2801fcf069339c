"""The CPU's native lane: programs as machine code, generated as LLVM IR. It needs llvmlite, which is imported on first use.

In the order in which to read: `llvm` (writing and compiling LLVM IR), `routine` (a piece of machine code that a program runs), what
routines are made of — `scalars` (operations on vectors of numbers), `loops` (kernels), `matmul`, `convolution`, `library` (sorts, scans,
gathers, …) — and `routines` (all of them by name), `target` (what the compiler is told of them), and `runtime` (whole programs: memory,
threads, the cache of compiled objects).
"""
