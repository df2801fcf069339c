"""Run programs on a GPU.

In the order in which to read:

- `device`: a GPU, its memory and its compiled shaders;
- `submission`: batches of commands, their replay, and copies to the host;
- compiling programs: `commands` (a compiled program), `limits` (dispatches that exceed a limit of the device), `merge_small` (small kernels
  in one dispatch), `writer` and `control_flow` (items to commands), `horizontal_fusion` (independent dispatches in one), `verification`
  (whether commands keep the rules), `program_plan` (all of that, from a device's capabilities alone);
- running them: `call`, `results`, `program`, `timed` (programs that note the time of each dispatch), and `backend`.
"""
