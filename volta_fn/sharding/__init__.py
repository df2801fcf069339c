"""Meshes, shardings and maps over devices, for one process; JAX's `jax.sharding`.

An array lies on one device. A mesh names axes to map over, and one device may stand at several positions
of it, so that a program for many devices can be tried on one:

>>> import numpy as np, volta_fn as vf
>>> mesh = vf.sharding.Mesh(np.full(4, vf.devices("cpu")[0]), "data")
>>> mean = vf.shard_map(lambda x: vf.lax.pmean(x, "data"), mesh=mesh, in_specs=vf.P("data"), out_specs=vf.P())
>>> mean(vf.numpy.arange(8.0))
Array([3., 4.], dtype=float32)
"""

from volta_fn import lazy_imports as _lazy_imports

__getattr__, __dir__ = _lazy_imports.attach(__name__)
