"""Linear algebra: `jax.numpy.linalg`'s names and meanings, on stacks of matrices.

All functions are differentiable.

>>> import volta_fn.numpy as jnp
>>> jnp.linalg.solve(jnp.array([[3.0, 1.0], [1.0, 2.0]]), jnp.array([9.0, 8.0]))
Array([2., 3.], dtype=float32)
"""

from volta_fn.numpy.linalg.decompositions import EighResult as EighResult
from volta_fn.numpy.linalg.decompositions import EigResult as EigResult
from volta_fn.numpy.linalg.decompositions import QRResult as QRResult
from volta_fn.numpy.linalg.decompositions import SVDResult as SVDResult
from volta_fn.numpy.linalg.decompositions import cholesky as cholesky
from volta_fn.numpy.linalg.decompositions import eig as eig
from volta_fn.numpy.linalg.decompositions import eigh as eigh
from volta_fn.numpy.linalg.decompositions import eigvals as eigvals
from volta_fn.numpy.linalg.decompositions import eigvalsh as eigvalsh
from volta_fn.numpy.linalg.decompositions import qr as qr
from volta_fn.numpy.linalg.decompositions import svd as svd
from volta_fn.numpy.linalg.decompositions import svdvals as svdvals
from volta_fn.numpy.linalg.determinants import SlogdetResult as SlogdetResult
from volta_fn.numpy.linalg.determinants import det as det
from volta_fn.numpy.linalg.determinants import slogdet as slogdet
from volta_fn.numpy.linalg.norms import cond as cond
from volta_fn.numpy.linalg.norms import matrix_norm as matrix_norm
from volta_fn.numpy.linalg.norms import norm as norm
from volta_fn.numpy.linalg.norms import vector_norm as vector_norm
from volta_fn.numpy.linalg.products import cross as cross
from volta_fn.numpy.linalg.products import diagonal as diagonal
from volta_fn.numpy.linalg.products import matrix_power as matrix_power
from volta_fn.numpy.linalg.products import multi_dot as multi_dot
from volta_fn.numpy.linalg.products import outer as outer
from volta_fn.numpy.linalg.products import trace as trace
from volta_fn.numpy.linalg.solving import inv as inv
from volta_fn.numpy.linalg.solving import lstsq as lstsq
from volta_fn.numpy.linalg.solving import matrix_rank as matrix_rank
from volta_fn.numpy.linalg.solving import pinv as pinv
from volta_fn.numpy.linalg.solving import solve as solve
from volta_fn.numpy.linalg.solving import tensorinv as tensorinv
from volta_fn.numpy.linalg.solving import tensorsolve as tensorsolve
from volta_fn.numpy.products import matmul as matmul
from volta_fn.numpy.products import tensordot as tensordot
from volta_fn.numpy.products import vecdot as vecdot
from volta_fn.numpy.shapes import matrix_transpose as matrix_transpose
