"""Native machine code for the CPU, generated as LLVM IR.

It needs llvmlite, which is imported on first use. From a jaxpr to its results:

1. `targets.cpu.runtime.program.Program.of` looks for the compiled program on disk (`targets.cpu.runtime.artifact`); if there is none,
2. `targets.cpu.runtime.compile.build` has `compiler.pipeline.lower` simplify the jaxpr and fuse it into kernels (`compiler.fusion`). A
   kernel or an equation with the key of its routine is an `Item`; what has no routine, NumPy computes (`Target.host_reason`).
3. `CpuTarget.kernel_routine` (`target`) makes a kernel's routine, by `matmul.contraction` or `loops.routine`; `ROUTINES` make equations'.
4. `CodeCache` (`targets.cpu.runtime.compile`) compiles routines to objects (`runtime.llvm.machine.compile_object`) and loads them.
5. `assemble` (the same module) lays out the memory (`compiler.emission`, `compiler.buffers`) and writes the program as commands.
6. A call enters machine code in `@apply` (`runtime.fastcall`) and walks over the commands in `@execute` (`targets.cpu.runtime.executor`),
   which shares the tasks of a launch among threads.

In the order in which to read: `routine` (what is generated for a kernel or an equation, entry points, and loops over contiguous elements),
what routines are made of — `scalars` (operations on vectors of numbers), `loops` (kernels), `matmul`,
`quantized` (products with weights of few bits), `convolution`, `attention`, `library` (sorts, scans, gathers, …), `lapack` (linear algebra)
and `fourier` — `target` (all of them by name, and what the compiler needs to know of them), and `runtime` (complete programs: memory,
threads, the code cache).
"""
