"""Factorisations of stacks of matrices, one workgroup a matrix."""

from volta_fn.backends.wgsl.library.linalg.eigh import eigh as eigh
from volta_fn.backends.wgsl.library.linalg.orthogonal import qr as qr
from volta_fn.backends.wgsl.library.linalg.svd import svd as svd
from volta_fn.backends.wgsl.library.linalg.triangular import cholesky as cholesky
from volta_fn.backends.wgsl.library.linalg.triangular import lu as lu
from volta_fn.backends.wgsl.library.linalg.triangular import triangular_solve as triangular_solve
