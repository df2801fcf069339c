"""A GPU: selected, tested, its memory and its compiled shaders.

In the order in which to read: `wgpu_ffi` (wgpu's C interface), `adapter` (a GPU and its capabilities), `memory` (blocks and buffers),
`leak_detector` (memory that grows from call to call), `pipelines` (compiled shaders), `tiered` (faster ones, compiled in the background),
`selftest` (which properties and defects a driver has), `gpu` (all of that together), `autotune` (schedules timed on the device), `handle`
(the device, opened again after a loss) and `recovery` (arrays of a lost device made again).
"""
