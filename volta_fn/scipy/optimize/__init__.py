"""Minimisation of functions: names of `scipy.optimize`.

`minimization` has the interface, `quasi_newton` BFGS and L-BFGS, `line_search` the search that both use.

>>> import volta_fn as vf
>>> result = vf.scipy.optimize.minimize(lambda x: ((x - 1) ** 2).sum(), vf.numpy.zeros(2), method="BFGS")
>>> result.x.round(4)
Array([1., 1.], dtype=float32)
"""

from volta_fn import lazy_imports as _lazy_imports

__getattr__, __dir__ = _lazy_imports.attach(__name__)
