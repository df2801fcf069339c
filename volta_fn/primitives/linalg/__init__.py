"""Linear algebra of stacks of matrices, as in `jax.lax.linalg`.

Leading dimensions are a batch. `solvers` has what all are written with, triangular and tridiagonal systems, Cholesky, LU and QR
factors, and updates; `spectral` eigenvalues, singular values, condensed forms and the polar decomposition.
"""

from volta_fn.primitives.linalg.solvers import cholesky as cholesky
from volta_fn.primitives.linalg.solvers import cholesky_update as cholesky_update
from volta_fn.primitives.linalg.solvers import lu as lu
from volta_fn.primitives.linalg.solvers import lu_pivots_to_permutation as lu_pivots_to_permutation
from volta_fn.primitives.linalg.solvers import qr as qr
from volta_fn.primitives.linalg.solvers import symmetric_product as symmetric_product
from volta_fn.primitives.linalg.solvers import triangular_solve as triangular_solve
from volta_fn.primitives.linalg.solvers import tridiagonal_solve as tridiagonal_solve
from volta_fn.primitives.linalg.spectral import SvdAlgorithm as SvdAlgorithm
from volta_fn.primitives.linalg.spectral import eig as eig
from volta_fn.primitives.linalg.spectral import eigh as eigh
from volta_fn.primitives.linalg.spectral import hessenberg as hessenberg
from volta_fn.primitives.linalg.spectral import householder_product as householder_product
from volta_fn.primitives.linalg.spectral import ormqr as ormqr
from volta_fn.primitives.linalg.spectral import qdwh as qdwh
from volta_fn.primitives.linalg.spectral import schur as schur
from volta_fn.primitives.linalg.spectral import svd as svd
from volta_fn.primitives.linalg.spectral import tridiagonal as tridiagonal
