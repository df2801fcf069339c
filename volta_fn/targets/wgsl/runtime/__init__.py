"""Run programs on a GPU.

In the order in which to read:

- compiling programs, which needs no device: `commands` (a compiled program, with dispatches split, merged and fused), `writer` (items to
  commands), `program_plan` (all of that, from a device's capabilities alone, and its verification);
- `queue` (batches of dispatches, and copies to the host) and `device` (a GPU, its memory, its compiled shaders, and its queue);
- running programs: `program` (calls, recorded and replayed; it can note the time of each dispatch) and `backend`.
"""
