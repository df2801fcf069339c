"""Linear algebra with SciPy's signatures, as in `jax.scipy.linalg`.

All functions take stacks of matrices. `factorizations` to keep and the systems they solve, `decompositions`, `eigenvalues`, `systems`,
`condensed_forms` (Schur, Hessenberg, polar), `matrix_functions`, `matrix_exponential`, `structured_matrices` made of blocks and vectors,
and `constant_matrices`. `overwrite_*`, `check_finite` and LAPACK's options are accepted and have no effect, as in JAX: arrays are
immutable, and infinities and NaN spread to the result. The examples use `import volta_fn as vf`.

>>> import volta_fn as vf
>>> factor = vf.scipy.linalg.cho_factor(vf.numpy.array([[4.0, 2.0], [2.0, 5.0]]))
>>> vf.scipy.linalg.cho_solve(factor, vf.numpy.array([8.0, 12.0]))
Array([1., 2.], dtype=float32)
"""

from volta_fn import lazy_imports as _lazy_imports

__getattr__, __dir__ = _lazy_imports.attach(__name__)
