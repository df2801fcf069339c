"""Discrete cosine transforms: names of `scipy.fft`; others are in `numpy.fft`.

>>> import volta_fn as vf
>>> vf.scipy.fft.dct(vf.numpy.array([1.0, 1.0])).round(4)
Array([4., 0.], dtype=float32)
"""

from volta_fn import lazy_imports as _lazy_imports

__getattr__, __dir__ = _lazy_imports.attach(__name__)
