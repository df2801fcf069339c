"""Any GPU with Vulkan, Metal or DirectX 12, through WGSL and wgpu.

A compiled program is a list of kernels and equations. For each, a *routine* is generated: shaders, with the buffers they bind and the grids
they run on. The runtime turns routines into commands, and runs these, again and again, without the host in between.

In the order in which to read: `routine` (what they generate), `text` and
`shader_layout` (writing shaders); what routines are made of: `scalars` (operations on numbers), `loops` (kernels), `matmul`, `convolution`,
`attention`, `library` (sorts, scans, gathers, factorisations, …), and `routines` (all of them by name); `rewriting` (finished shaders
combined and split); and `runtime` (devices, memory, whole programs).
"""
