"""Linear algebra: all of `volta_fn.numpy.linalg`, and more of `jax.scipy.linalg`.

`factorizations` and the systems they solve, `structured_matrices` (block diagonal, Toeplitz), and `matrix_exponential`.

>>> import volta_fn as vf
>>> factor = vf.linalg.cho_factor(vf.numpy.array([[4.0, 2.0], [2.0, 5.0]]))
>>> vf.linalg.cho_solve(factor, vf.numpy.array([8.0, 12.0]))
Array([1., 2.], dtype=float32)
"""

from volta_fn.linalg.factorizations import cho_factor as cho_factor
from volta_fn.linalg.factorizations import cho_solve as cho_solve
from volta_fn.linalg.factorizations import lu as lu
from volta_fn.linalg.factorizations import lu_factor as lu_factor
from volta_fn.linalg.factorizations import lu_solve as lu_solve
from volta_fn.linalg.factorizations import solve_triangular as solve_triangular
from volta_fn.linalg.matrix_exponential import expm as expm
from volta_fn.linalg.structured_matrices import block_diag as block_diag
from volta_fn.linalg.structured_matrices import toeplitz as toeplitz
from volta_fn.numpy.linalg import EighResult as EighResult
from volta_fn.numpy.linalg import EigResult as EigResult
from volta_fn.numpy.linalg import QRResult as QRResult
from volta_fn.numpy.linalg import SlogdetResult as SlogdetResult
from volta_fn.numpy.linalg import SVDResult as SVDResult
from volta_fn.numpy.linalg import cholesky as cholesky
from volta_fn.numpy.linalg import cond as cond
from volta_fn.numpy.linalg import cross as cross
from volta_fn.numpy.linalg import det as det
from volta_fn.numpy.linalg import diagonal as diagonal
from volta_fn.numpy.linalg import eig as eig
from volta_fn.numpy.linalg import eigh as eigh
from volta_fn.numpy.linalg import eigvals as eigvals
from volta_fn.numpy.linalg import eigvalsh as eigvalsh
from volta_fn.numpy.linalg import inv as inv
from volta_fn.numpy.linalg import lstsq as lstsq
from volta_fn.numpy.linalg import matmul as matmul
from volta_fn.numpy.linalg import matrix_norm as matrix_norm
from volta_fn.numpy.linalg import matrix_power as matrix_power
from volta_fn.numpy.linalg import matrix_rank as matrix_rank
from volta_fn.numpy.linalg import matrix_transpose as matrix_transpose
from volta_fn.numpy.linalg import multi_dot as multi_dot
from volta_fn.numpy.linalg import norm as norm
from volta_fn.numpy.linalg import outer as outer
from volta_fn.numpy.linalg import pinv as pinv
from volta_fn.numpy.linalg import qr as qr
from volta_fn.numpy.linalg import slogdet as slogdet
from volta_fn.numpy.linalg import solve as solve
from volta_fn.numpy.linalg import svd as svd
from volta_fn.numpy.linalg import svdvals as svdvals
from volta_fn.numpy.linalg import tensordot as tensordot
from volta_fn.numpy.linalg import tensorinv as tensorinv
from volta_fn.numpy.linalg import tensorsolve as tensorsolve
from volta_fn.numpy.linalg import trace as trace
from volta_fn.numpy.linalg import vecdot as vecdot
from volta_fn.numpy.linalg import vector_norm as vector_norm
