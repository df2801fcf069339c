"""Rotations of space and their interpolation, as in `jax.scipy.spatial.transform`.

`quaternions` converts unit quaternions from and to other representations; `rotation` and `slerp` are the classes.

>>> vf.scipy.spatial.transform.Rotation.from_euler("z", 90, degrees=True).as_rotvec().round(4)
Array([0.    , 0.    , 1.5708], dtype=float32)
"""

from volta_fn import lazy_imports as _lazy_imports

__getattr__, __dir__ = _lazy_imports.attach(__name__)
