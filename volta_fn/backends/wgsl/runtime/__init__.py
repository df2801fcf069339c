"""Running programs of routines on a GPU.

In the order in which to read:

- the device: `raw` (wgpu's C interface), `settings` (numbers in the environment), `adapter` (which GPU, and what it can do), `memory`
  (blocks and buffers), `interrupts` (Ctrl-C at the right time), `queue` (batches of commands, waiting), `readback` (copies to the host),
  `pipelines` (compiled shaders), `upgrades` (faster ones, compiled in the background), `replay` (dispatches written to the queue),
  `selftest` (what drivers do wrong), `gpu` (all of that together), `trials` (schedules tried on it);
- compiling programs: `commands` (what a program is to the runtime), `copying`, `limits` (what is too much for one dispatch), `small`
  (small kernels in one dispatch), `writer` and `control_flow` (bodies as commands), `horizontal_fusion` (independent dispatches in one);
- running them: `command_lists` (commands recorded and replayed), `call`, `results`, `trend` (memory that grows), `program`, and `backend`.
"""
