"""Kernels as vectorised machine code: `routine`.

In the order in which to read: `passes` (what each pass over a row does), `scope` (writing the values of nodes), `accumulate` (reductions),
`rows` (passes as loops), `tiles` (transposes), `schedule` (what is decided before), `emit` (a schedule as one phase), `split` (as two),
`routine`.
"""

from volta_fn.backends.native.loops.routine import routine as routine
