"""Iterative solvers of ``A x = b``, where A is a matrix or a function.

`krylov` has conjugate gradients and BiCGSTAB, `generalized_residuals` GMRES, `systems` what they share: arguments, and derivatives by
further solutions. The examples use `import volta_fn as vf`.

>>> import volta_fn as vf
>>> matrix = vf.numpy.array([[4.0, 1.0], [1.0, 3.0]])
>>> x, _ = vf.scipy.sparse.linalg.cg(matrix, vf.numpy.array([1.0, 2.0]))
>>> x.round(4)
Array([0.0909, 0.6364], dtype=float32)
"""

from volta_fn import lazy_imports as _lazy_imports

__getattr__, __dir__ = _lazy_imports.attach(__name__)
