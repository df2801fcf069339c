"""A GPU: selected, tested, its memory and its compiled shaders.

In the order in which to read: `adapter` (wgpu's C interface, a GPU and its capabilities), `memory` (blocks and buffers, and a warning when
memory grows), `pipelines` (compiled shaders, faster ones in the background, and tests of the driver), `gpu` (all of that together), and
`recovery` (the device, opened again after a loss, and its arrays computed again).
"""
