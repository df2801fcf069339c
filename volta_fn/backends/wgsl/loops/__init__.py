"""Kernels as shaders: `routine`.

In the order in which to read: `widening` and `parts` (kernels rewritten), `step` (what becomes one dispatch), `span` (axes walked by
lanes), `place` (writing the values of nodes), `accumulate` (reductions), `subgroups` and `together` (what invocations do with one
another), `passes` and `rows` (a step as a dispatch), `flat` (large arrays), `tiles` (transposes), `schedule` (what is decided before),
`split` (few long rows), `plan` (which steps a kernel becomes), `routine`, and `several` (small kernels as one dispatch).
"""

from volta_fn.backends.wgsl.loops.routine import routine as routine
