"""Functions as files: save a jitted function, load and call it without its source.

The names are those of `jax.export`. Read `exported` first. What a file holds, in JSON, is written and read by `programs` (programs, and the
file itself) and by `values` (types, parameters and pytrees). `symbolic` makes programs for all sizes of some axes.

>>> import volta_fn as vf
>>> exported = vf.export.export(vf.jit(lambda x: 2.0 * x))(vf.ShapeDtypeStruct((3,), "float32"))
>>> loaded = vf.export.deserialize(exported.serialize())
>>> loaded.call(vf.numpy.arange(3.0))
Array([0., 2., 4.], dtype=float32)
"""

from volta_fn import lazy_imports as _lazy_imports

__getattr__, __dir__ = _lazy_imports.attach(__name__)
