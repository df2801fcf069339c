"""Counterparts of the modules of `jax.experimental`.

`array_serialization` (arrays in TensorStore), `checkify` (checks in traced functions), `io_callback`, `jax2tf` (functions of
TensorFlow, and for it), `jet` (derivatives of high order),
`mesh_utils` and `multihost_utils` (for one process), `ode`, `pallas` (kernels over blocks of arrays), `random` (a generator with a state),
`sparse` (arrays).

`colocated_python` runs functions where devices are, and `xla_metadata` accepts attributes that have no effect.

>>> import volta_fn as vf
>>> vf.experimental.ode.odeint(lambda y, t: -y, 1.0, vf.numpy.array([0.0, 1.0])).round(3)
Array([1.   , 0.368], dtype=float32)
"""

from volta_fn import lazy_imports as _lazy_imports

__getattr__, __dir__ = _lazy_imports.attach(__name__)
