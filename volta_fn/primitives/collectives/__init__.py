"""Collectives: operations across the positions of named axes.

An axis of a `vmap` is resolved by it: it rewrites the operation as one along the stacked dimension, after which the result is the same for
every example of that axis, or belongs to it again. An axis of processes (`shard_map` over a mesh of several) stays in the program; the
equation runs on the host, which talks to the other processes.

`groups` has the names, groups and rules that all collectives have, and their NumPy functions. `exchanges` has the collectives themselves:
reductions, gathers and exchanges, with casts of what a type says of named axes.

Each primitive's ``axis_names`` says which named axes it speaks of, and ``axis_index_groups`` which positions communicate.
"""
