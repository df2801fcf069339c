"""Run programs on a GPU.

In the order in which to read:

- the device: `wgpu_ffi` (wgpu's C interface), `adapter` (a GPU and its capabilities), `memory`
  (blocks and buffers), `interrupts` (deferring Ctrl-C), `queue` (batches of commands, waiting), `readback` (copies to the host),
  `pipelines` (compiled shaders), `tiered` (faster ones, compiled in the background), `replay` (dispatches written to the queue),
  `selftest` (which properties and defects a driver has), `gpu` (all of that together), `autotune` (schedules timed on the device);
- compiling programs: `commands` (a compiled program), `copying`, `limits` (dispatches that exceed a limit of the device), `merge_small`
  (small kernels in one dispatch), `writer` and `control_flow` (items to commands), `horizontal_fusion` (independent dispatches in one),
  `program_plan` (all of that, from a device's capabilities alone);
- running them: `command_lists` (commands recorded and replayed), `call`, `results`, `leak_detector` (memory that grows from call to call),
  `program`, `timed` (programs that note the time of each dispatch), `recovery` (arrays of a lost device made again), and `backend`.
"""
