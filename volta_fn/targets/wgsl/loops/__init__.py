"""Generate shaders for kernels: `routine`.

`codegen.loops` has what it shares with other targets.

In the order in which to read: `widening` (narrow reductions made wide), `kernel_step` (one dispatch of a kernel), `linear_index` (several
axes walked as one), `emit_values` (code for the values of nodes), `accumulate` (reductions), `subgroups` and `workgroup_reduce`
(communication between invocations), `rows` (a step's code), `tiles` (transposes), `schedule` (how a step is divided), `split` (few long
rows), `plan` (a kernel's steps), `routine`, and `horizontal` (small kernels as one dispatch).
"""

from volta_fn.targets.wgsl.loops.routine import options_of as options_of
from volta_fn.targets.wgsl.loops.routine import routine as routine
