"""Running programs of routines on a GPU.

In the order in which to read:

- the device: `wgpu_ffi` (wgpu's C interface), `settings` (numbers in the environment), `adapter` (which GPU, and what it can do), `memory`
  (blocks and buffers), `interrupts` (Ctrl-C at the right time), `queue` (batches of commands, waiting), `readback` (copies to the host),
  `pipelines` (compiled shaders), `tiered` (faster ones, compiled in the background), `replay` (dispatches written to the queue),
  `selftest` (what drivers do wrong), `gpu` (all of that together), `autotune` (schedules tried on it);
- compiling programs: `commands` (what a program is to the runtime), `copying`, `limits` (what is too much for one dispatch), `merge_small`
  (small kernels in one dispatch), `writer` and `control_flow` (bodies as commands), `horizontal_fusion` (independent dispatches in one);
- running them: `command_lists` (commands recorded and replayed), `call`, `results`, `leak_detector` (memory that grows), `program`,
  and `backend`.
"""
