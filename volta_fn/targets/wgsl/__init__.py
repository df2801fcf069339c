"""The target of every GPU: routines in WGSL, and plans for `targets.gpu`.

From an equation to the GPU, each level has a class that knows more than the one before:

- an `Equation` of a jaxpr knows shapes and dtypes;
- a `Kernel` (`compiler.ir.kernel`, made by `compiler.fusion`) is a loop nest of the scalar operations of several equations;
- an `Item` (`compiler.target`, made by `compiler.pipeline`) is a kernel or an equation of a `LoweredProgram`, with its routine's key;
- a `Dispatch` of the routine has a shader, a grid, and the numbers of the buffers that it binds (`routine`);
- a `Run` is a dispatch of a plan, which binds ranges of *slots* (`commands`, made by `writer`, joined by `fuse_horizontally`);
- a `BoundDispatch` is that dispatch in a call, with the driver's objects and *blocks* of memory (`gpu.driver`, made by `gpu.program`);
- a row of the replay's table (`wgpu`), or a node of a CUDA graph (`nvidia.stream`), is a step of a recording.

Plans end with runs and need no device; blocks and steps belong to one.

In the order in which to read: `shader` (a shader as an object, and how its text is written), `scalars` (operations on numbers) and
`routine` (arrays in buffers, and dispatches); what makes routines: `loops` (kernels), `matmul`, `quantized` (products with weights of few
bits), `convolution`, `attention` and `library` (sorts, scans, gathers, factorisations, …); `target` (limits, all routines by name, and the
passes that GPUs add); `transforms` (shader modules fused and split); and plans of programs, which need no device: `commands` (what a
program consists of, and the fusion of independent dispatches), `writer` (items, loops and branches to commands), `program_plan` (all of
that, from a device's capabilities alone, its verification, and plans on disk).
"""
