"""The target of any GPU with Vulkan, Metal or DirectX 12, through WGSL and wgpu.

A compiled program is a list of kernels and equations. Each becomes a *routine*: dispatches of shaders, with the buffers they bind and their
grids. A plan has commands of these, which run call after call without the host in between (`targets.gpu`).

In the order in which to read: `shader` (a shader as an object, and how its text is written), `scalars` (operations on numbers) and
`routine` (arrays in buffers, and dispatches); what makes routines: `loops` (kernels), `matmul`, `quantized` (products with weights of few
bits), `convolution`, `attention` and `library` (sorts, scans, gathers, factorisations, …); `target` (limits, all routines by name, and the
passes that GPUs add); `transforms` (shader modules fused and split); and plans of programs, which need no device: `commands` (what a
program consists of, and the fusion of independent dispatches), `writer` (items, loops and branches to commands), `program_plan` (all of
that, from a device's capabilities alone, its verification, and plans on disk).
"""
