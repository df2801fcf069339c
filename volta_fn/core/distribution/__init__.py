"""Arrays on several devices or processes.

`sharding` (meshes, and how arrays lie on them), `placement` (arrays that are split between devices of one memory), `placed_types` (the
types that show it), `propagation` (how results are split), `world` (the processes), `sharded_arrays` (arrays made of shards) and
`same_program` (the check that all processes compile the same program).
"""
