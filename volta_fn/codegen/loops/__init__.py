"""What loops over kernels share on all targets: `passes` over a row, `scope` (values emitted once, as far out as they can be),
`accumulate` (reductions under way), `transpose` (loads that cross the stores), `subkernels` (kernels built from nodes of others).
"""
