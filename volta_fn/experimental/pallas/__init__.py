"""Kernels over blocks of arrays, with the names of `jax.experimental.pallas`.

A kernel is a function of references to blocks. `call` has `pallas_call`, which makes a program of one and runs it for each step of a grid;
`specs` what describes grids, blocks and memory; `kernels` what kernels are written with. `grid` finds axes along which a kernel's steps are
independent, and makes loops of it. `tpu` and `triton` have names of kernels for such hardware.

>>> import volta_fn as vf
>>> from volta_fn.experimental import pallas as pl
>>> def double(x_ref, o_ref):
...     o_ref[...] = 2 * x_ref[...]
>>> pl.pallas_call(double, vf.ShapeDtypeStruct((3,), "int32"))(vf.numpy.arange(3))
Array([0, 2, 4], dtype=int32)
"""

from volta_fn import lazy_imports as _lazy_imports

__getattr__, __dir__ = _lazy_imports.attach(__name__)
