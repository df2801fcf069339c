"""Linear systems given by functions: `linalg`.

>>> import volta_fn as vf
>>> vf.scipy.sparse.linalg.cg(lambda x: 2 * x, vf.numpy.ones(2))[0]
Array([0.5, 0.5], dtype=float32)
"""

from volta_fn import lazy_imports as _lazy_imports

__getattr__, __dir__ = _lazy_imports.attach(__name__)
