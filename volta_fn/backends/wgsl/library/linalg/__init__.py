"""Factorisations of stacks of matrices, one workgroup a matrix.

In the order in which to read: `fields` (what all are written with, for real and complex numbers), `triangular` (Cholesky, LU, solves),
`orthogonal` (QR), `rotations` (Jacobi's method), and by those `eigh` and `svd`; `turns` says where a device ends loops too soon for them.
"""

from volta_fn.backends.wgsl.library.linalg.eigh import eigh as eigh
from volta_fn.backends.wgsl.library.linalg.orthogonal import qr as qr
from volta_fn.backends.wgsl.library.linalg.svd import svd as svd
from volta_fn.backends.wgsl.library.linalg.triangular import cholesky as cholesky
from volta_fn.backends.wgsl.library.linalg.triangular import lu as lu
from volta_fn.backends.wgsl.library.linalg.triangular import triangular_solve as triangular_solve
