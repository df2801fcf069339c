"""Emit loops over kernels: what all targets share.

In the order in which to read: `passes` over a row, `scope` (values emitted once, as far out as they can be), `accumulate` (the states of
reductions), `transpose` (loads that cross the stores), `subkernels` (kernels built from nodes of others).
"""
