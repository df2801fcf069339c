"""Kernels as shaders: `routine`.

In the order in which to read: `widening` and `parts` (kernels rewritten), `step` (one dispatch of a kernel), `span` (axes divided among
lanes), `place` (code for the values of nodes), `accumulate` (reductions), `subgroups` and `together` (communication between
invocations), `passes` and `rows` (a step's code), `flat` (large arrays), `tiles` (transposes), `schedule` (how a step is divided),
`split` (few long rows), `plan` (a kernel's steps), `routine`, and `several` (small kernels as one dispatch).
"""

from volta_fn.backends.wgsl.loops.routine import routine as routine
