"""Factorisations of stacks of matrices, one workgroup a matrix.

`rotations.LARGEST` and `triangular.LARGEST` limit their sizes, since larger ones keep a workgroup busy for too long. In the order in which
to read: `shader_templates` (what all are written with, for real and complex numbers), `triangular` (Cholesky, LU, solves), `orthogonal`
(QR), `rotations` (Jacobi's method), `sweeps` (how often it is repeated), and by those `eigh` and `svd`; `iteration_budget` bounds how long
dispatches take, which is too long for some devices.
"""

from volta_fn.targets.wgsl.library.linalg.eigh import eigh as eigh
from volta_fn.targets.wgsl.library.linalg.orthogonal import qr as qr
from volta_fn.targets.wgsl.library.linalg.svd import svd as svd
from volta_fn.targets.wgsl.library.linalg.triangular import cholesky as cholesky
from volta_fn.targets.wgsl.library.linalg.triangular import lu as lu
from volta_fn.targets.wgsl.library.linalg.triangular import triangular_solve as triangular_solve
