"""Collectives: operations across the positions of named axes.

An axis of a `vmap` is resolved by it: it rewrites the operation as one along the stacked dimension, after which the result is the same for
every example of that axis, or belongs to it again. An axis of processes (`shard_map` over a mesh of several) stays in the program; the
equation runs on the host, which talks to the other processes (`on_host`).

`groups` has what all have in common, `reductions`, `gathers` and `exchanges` have the functions, `casts` the border of a program on several
processes, `varying` what programs say of it.

Each primitive's ``axis_names`` says which named axes it speaks of, and ``axis_index_groups`` which positions communicate.
"""
