"""Any GPU that Vulkan, Metal or DirectX 12 reaches, through WGSL and wgpu.

A program that the compiler has made ready is a list of kernels and equations. For each, a *routine* is written: shaders, with the buffers
and grids that they are run with. The runtime makes commands of routines, and does them, time and again, without the host in between.

In the order in which to read: `facts` (what code generators must know of a GPU), `routine` (what they write), `text` and `form` (writing
shaders); what routines are made of: `scalars` (operations on numbers), `loops` (kernels), `matmul`, `convolution`, `attention`, `library`
(sorts, scans, gathers, factorisations, …), and `routines` (all of them by name); `rewriting` (shaders made of shaders); and `runtime`
(devices, memory, whole programs).
"""
