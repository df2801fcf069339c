"""Arrays on several devices or processes.

`sharding` (meshes, and how arrays lie on them), `world` (the processes), `sharded_arrays` (one shard in each process) and `same_program`
(the check that all processes compile the same program).
"""
