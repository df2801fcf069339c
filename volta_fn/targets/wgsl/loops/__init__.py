"""Kernels as shaders: `routine`.

In the order in which to read: `widening` and `subkernels` (kernels rewritten), `kernel_step` (one dispatch of a kernel), `linear_index`
(axes divided among lanes), `emit_values` (code for the values of nodes), `accumulate` (reductions), `subgroups` and `workgroup_reduce`
(communication between invocations), `passes` and `rows` (a step's code), `pointwise` (large arrays), `tiles` (transposes), `schedule` (how
a step is divided), `split` (few long rows), `plan` (a kernel's steps), `routine`, and `horizontal` (small kernels as one dispatch).
"""

from volta_fn.targets.wgsl.loops.routine import routine as routine
