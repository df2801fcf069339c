"""Linear algebra with SciPy's signatures, as in `jax.scipy.linalg`.

All functions take stacks of matrices. `decompositions` has factorisations with the systems they solve, eigenvalues, and the Schur,
Hessenberg and polar forms; `systems` has matrices of known structure, Sylvester's equation, exponentials, square roots and other functions
of matrices, and `matrices` matrices of constants, or made of blocks and vectors. `overwrite_*`, `check_finite` and LAPACK's options are
accepted and have no effect, as in JAX: arrays are immutable, and infinities and NaN spread to the result. The examples use
`import volta_fn as vf`.

>>> import volta_fn as vf
>>> factor = vf.scipy.linalg.cho_factor(vf.numpy.array([[4.0, 2.0], [2.0, 5.0]]))
>>> vf.scipy.linalg.cho_solve(factor, vf.numpy.array([8.0, 12.0]))
Array([1., 2.], dtype=float32)
"""

from volta_fn import lazy_imports as _lazy_imports

__getattr__, __dir__ = _lazy_imports.attach(__name__)
