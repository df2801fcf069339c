"""Kernels as vectorised machine code: `routine`.

In the order in which to read: `passes` (what each pass over a row computes), `emit_values` (code for the values of nodes), `accumulate`
(reductions), `rows` (passes as loops), `tiles` (transposes), `schedule` (how a kernel is divided), `emit` (a schedule as one phase),
`split` (as two), `routine`.
"""

from volta_fn.targets.cpu.loops.routine import routine as routine
