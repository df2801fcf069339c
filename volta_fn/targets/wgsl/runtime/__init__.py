"""Run programs on a GPU.

In the order in which to read:

- `device`: a GPU, its memory and its compiled shaders;
- `queue` (batches of commands, and copies to the host) and `command_lists` (their replay);
- compiling programs: `commands` (a compiled program, with dispatches split, merged and fused, and its verification), `writer` (items to
  commands), `program_plan` (all of that, from a device's capabilities alone);
- running them: `program` (which can note the time of each dispatch) and `backend`.
"""
