"""Linear algebra of stacks of matrices, as in `jax.lax.linalg`.

Leading dimensions are a batch.

`triangular` has solves and Cholesky's factors, `factorization` LU and QR, `spectral` eigenvalues and singular values; `matrices` is what
they are written with.
"""

from volta_fn.primitives.linalg.factorization import lu as lu
from volta_fn.primitives.linalg.factorization import qr as qr
from volta_fn.primitives.linalg.spectral import eig as eig
from volta_fn.primitives.linalg.spectral import eigh as eigh
from volta_fn.primitives.linalg.spectral import svd as svd
from volta_fn.primitives.linalg.triangular import cholesky as cholesky
from volta_fn.primitives.linalg.triangular import triangular_solve as triangular_solve
