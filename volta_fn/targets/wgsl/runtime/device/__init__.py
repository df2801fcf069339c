"""A GPU: selected, tested, its memory and its compiled shaders.

In the order in which to read: `driver` (wgpu's C interface), `memory` (blocks and buffers, and a warning when memory grows), `pipelines`
(compiled shaders, faster ones in the background, and tests of the driver), `gpu` (a device selected and opened, with all of that, and
opened again after a loss), `recovery` (arrays computed again after a loss), and `tuning` (schedules timed on a device).
"""
