"""Native machine code for the CPU, generated as LLVM IR.

It needs llvmlite, which is imported on first use. From a jaxpr to its results:

1. `targets.cpu.runtime.program.Program.of` looks for the compiled program on disk (`targets.cpu.runtime.artifact`); if there is none,
2. `targets.cpu.runtime.compile.build` has `compiler.pipeline.lower` simplify the jaxpr and fuse it into kernels (`compiler.fusion`). A
   kernel or an equation is an `Item`, with the `RoutineKey` of its routine; control flow is one with lowered programs.
3. `CodeCache.load` (`targets.cpu.runtime.compile`) looks for routines by their keys, in the process and on disk. It has the keys of others
   make them: a kernel's by `CpuTarget.kernel_routine` (`target`), which is `matmul.contraction` or `loops.routine`, an equation's by
   `ROUTINES`. It compiles (`runtime.llvm.machine.compile_object`) and loads them.
4. `assemble` (the same module) lays out the memory (`compiler.emission`, `compiler.buffers`) and writes the program as commands. What has
   no routine becomes a call of NumPy (`CommandWriter.item`).
5. A call enters machine code in `@apply`, with arrays of this package, or from `Program` in `@enter`, with NumPy's (`runtime.fastcall`).
   `@execute` (`targets.cpu.runtime.executor`) walks over the commands, and shares the tasks of a launch among threads.

To follow a program, read by these numbers; to write a generator, in this order: `routine` (what is generated for a kernel or an equation,
entry points, and loops over contiguous elements), what routines are made of — `scalars` (operations on vectors of numbers), `loops`
(kernels), `matmul`, `quantized` (products with weights of few bits), `convolution`, `attention`, `library` (sorts, scans, gathers, …),
`lapack` (linear algebra) and `fourier` — `target` (all of them by name, and what the compiler needs to know of them), and `runtime`
(complete programs: memory, threads, the code cache).
"""
