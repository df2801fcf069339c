"""Generate vectorised machine code for kernels: `routine`.

`codegen.loops` has what it shares with other targets.

In the order in which to read: `emit_values` (code for the values of nodes), `accumulators` (reductions in vectors), `rows` (passes over
rows as loops), `schedule` (how a kernel is divided), `tiles` (transposes in tiles, and results of a short last axis), `emit` (a schedule as
one launch, or copies of long ranges), and `routine` (which of these a kernel gets, and long reductions as two launches).
"""

from volta_fn.targets.cpu.loops.routine import options_of as options_of
from volta_fn.targets.cpu.loops.routine import routine as routine
