"""Generate vectorised machine code for kernels: `routine`.

`codegen.loops` has what it shares with other targets.

In the order in which to read: `passes` (what each pass over a row keeps), `emit_values` (code for the values of nodes), `accumulate`
(reductions), `rows` (passes as loops), `tiles` (transposes), `interleaved` (short last axes), `copies`, `schedule` (how a kernel is
divided), `emit` (a schedule as one launch), `split` (as two), `routine`.
"""

from volta_fn.targets.cpu.loops.routine import options_of as options_of
from volta_fn.targets.cpu.loops.routine import routine as routine
