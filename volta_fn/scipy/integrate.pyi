"""Integration of samples: names of `scipy.integrate`.

>>> import volta_fn as vf
>>> vf.scipy.integrate.trapezoid(vf.numpy.array([1.0, 2.0, 3.0]))
Array(4., dtype=float32)
"""

from volta_fn.numpy.reductions import trapezoid as trapezoid
