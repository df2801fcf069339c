"""Integration of samples: names of `scipy.integrate`.

>>> import volta_fn as vf
>>> vf.scipy.integrate.trapezoid(vf.numpy.array([1.0, 2.0, 3.0]))
Array(4., dtype=float32)
"""

from volta_fn import lazy_imports as _lazy_imports

__getattr__, __dir__ = _lazy_imports.attach(__name__)
