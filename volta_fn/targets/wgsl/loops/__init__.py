"""Shaders for kernels, which `routine` generates.

A kernel becomes one *step* or several, each a kernel that is one dispatch. `codegen.loops` has what is shared with other targets.

In the order in which to read: `emit_values` (steps, and code for the values of nodes), `reductions` (accumulators, and communication
between invocations), `schedule` (how a step is divided), `rows` (a step's code, that of steps whose loads cross their stores, and the
steps of reductions of a few long rows), and `routine` (a kernel's steps, and small kernels as one dispatch).
"""

from volta_fn.targets.wgsl.loops.routine import options_of as options_of
from volta_fn.targets.wgsl.loops.routine import routine as routine
