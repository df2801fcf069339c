"""Interpolation of arrays at coordinates: names of `scipy.ndimage`.

>>> import volta_fn as vf
>>> vf.scipy.ndimage.map_coordinates(vf.numpy.array([1.0, 3.0]), [vf.numpy.array([0.5])], order=1)
Array([2.], dtype=float32)
"""

from volta_fn import lazy_imports as _lazy_imports

__getattr__, __dir__ = _lazy_imports.attach(__name__)
