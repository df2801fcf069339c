"""Kernels as vectorised machine code: `routine`.

In the order in which to read: `facts` (what follows from a kernel), `passes` (what each pass over a row does), `scope` (writing the values
of nodes), `accumulate` (reductions), `rows` (passes as loops), `schedule` (what is decided before), `emit` and `routine`.
"""

from volta_fn.backends.native.loops.routine import routine as routine
