"""Running programs of routines on a GPU.

In the order in which to read:

- the device: `raw` (wgpu's C interface), `settings` (numbers in the environment), `adapter` (which GPU, and what it can do), `memory`
  (blocks and buffers), `interrupts` (Ctrl-C at the right time), `queue` (batches of commands, waiting) and `mail` (reading arrays back),
  `pipelines` (compiled shaders) and `later` (better ones), `replay` (dispatches written to the queue), `selftest` (what drivers do
  wrong), `gpu` (all of that together), `trials` (schedules tried on it);
- programs written down: `commands` (what a program is to the runtime), `copying`, `limits` (what is too much for one dispatch), `small`
  (kernels done together), `writer` and `control_flow` (bodies as commands), `abreast` (commands that need not wait);
- programs done: `stretches` (commands done again), `call`, `results`, `trend` (memory that grows), `program`, and `backend`.
"""
