"""Generate shaders for kernels: `routine`.

`codegen.loops` has what it shares with other targets.

In the order in which to read: `emit_values` (a dispatch of a kernel, and code for the values of nodes), `reductions` (accumulators, and
communication between invocations), `rows` (a step's code), `transposes` (that of steps whose loads cross their stores), `split_rows` (the
steps of reductions of a few long rows), `schedule` (how a step is divided), and `routine` (a kernel's steps, and small kernels as one
dispatch).
"""

from volta_fn.targets.wgsl.loops.routine import options_of as options_of
from volta_fn.targets.wgsl.loops.routine import routine as routine
