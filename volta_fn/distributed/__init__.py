"""One program on several processes, which talk through MPI.

`python -m volta_fn.launch -n 4 train.py` starts them on this machine, and a cluster's `srun` or `mpiexec` on many. Each runs the same
script, which calls `initialize` first; a mesh of all processes (`make_mesh`), `shard_map` and the collectives of `lax` do the rest.
docs/scaling.md compares the ways to use them. In the order in which to read: `world` (the processes, from beginning to end, their
collectives, and the comparison of their programs) and `watch` (the detection of failed processes).

>>> import volta_fn as vf
>>> vf.distributed.initialize()  # one process, unless MPI started several
>>> vf.process_index(), vf.process_count()
(0, 1)
"""

from volta_fn import lazy_imports as _lazy_imports

__getattr__, __dir__ = _lazy_imports.attach(__name__)
