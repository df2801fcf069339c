"""A GPU: selected, tested, its memory and its compiled shaders.

In the order in which to read: `driver` (wgpu's C interface), `memory` (blocks and buffers, and a warning when memory grows), `pipelines`
(compiled shaders, faster ones in the background, and tests of the driver), `gpu` (a device selected and opened, with all of that), and
`recovery` (the device, opened again after a loss, and its arrays computed again).
"""
