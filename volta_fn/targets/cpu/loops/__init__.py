"""Generate vectorised machine code for kernels: `routine`.

`docs/architecture.md` follows an example, from equations to the loops of their kernel. `codegen.loops` has what other targets share.

In the order in which to read: `emit_values` (code for the values of nodes), `rows` (passes over rows as loops, and reductions in vectors),
`schedule` (how a kernel is divided), and `routine` (a schedule as one launch: transposes in tiles, results of a short last axis, copies of
long ranges; which of these a kernel gets, and long reductions as two launches).
"""

from volta_fn.targets.cpu.loops.routine import options_of as options_of
from volta_fn.targets.cpu.loops.routine import routine as routine
