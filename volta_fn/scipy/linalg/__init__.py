"""Linear algebra: all of `volta_fn.numpy.linalg`, and more of `jax.scipy.linalg`.

`factorizations` and the systems they solve, `structured_matrices` (block diagonal, Toeplitz), `condensed_forms` (Schur, Hessenberg, polar),
`matrix_functions` and `matrix_exponential`. The examples use `import volta_fn as vf`.

>>> import volta_fn as vf
>>> factor = vf.scipy.linalg.cho_factor(vf.numpy.array([[4.0, 2.0], [2.0, 5.0]]))
>>> vf.scipy.linalg.cho_solve(factor, vf.numpy.array([8.0, 12.0]))
Array([1., 2.], dtype=float32)
"""

from volta_fn import lazy_imports as _lazy_imports

__getattr__, __dir__ = _lazy_imports.attach(__name__)
