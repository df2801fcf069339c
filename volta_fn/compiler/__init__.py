"""Compile jaxprs to programs that a target generates code for.

In the order in which to read: `pipeline` names every pass in order. `target` says what the compiler knows of a target, and what a lowered
program is. `passes` rewrite a jaxpr into a simpler one, `ir` defines kernels (loop nests over scalar operations), `fusion` groups equations
into kernels (`fusion_groups`: kernels under construction, when two of them fit in one loop, and which values are computed again rather than
stored), and `lowering` makes kernels of equations. `node_passes` follow: reshapes share memory; and, where a target wants that, long sums
of matrix products are split into chunks, kernels move next to independent ones, and a value that is several outputs is stored once for
each. `emission` assigns slots to the values of a lowered program and writes it as commands, `buffers` lays values out in one block of
memory, and `plans` makes the programs that NumPy runs. `contractions` describes matrix products and convolutions for all targets,
`attention` problems of attention, and `verification` checks the results of all of these.
"""
