from volta_fn.numpy.linalg import *
from volta_fn.scipy.linalg.condensed_forms import hessenberg as hessenberg
from volta_fn.scipy.linalg.condensed_forms import polar as polar
from volta_fn.scipy.linalg.condensed_forms import rsf2csf as rsf2csf
from volta_fn.scipy.linalg.condensed_forms import schur as schur
from volta_fn.scipy.linalg.factorizations import cho_factor as cho_factor
from volta_fn.scipy.linalg.factorizations import cho_solve as cho_solve
from volta_fn.scipy.linalg.factorizations import lu as lu
from volta_fn.scipy.linalg.factorizations import lu_factor as lu_factor
from volta_fn.scipy.linalg.factorizations import lu_solve as lu_solve
from volta_fn.scipy.linalg.factorizations import solve_triangular as solve_triangular
from volta_fn.scipy.linalg.matrix_exponential import expm as expm
from volta_fn.scipy.linalg.matrix_functions import funm as funm
from volta_fn.scipy.linalg.matrix_functions import sqrtm as sqrtm
from volta_fn.scipy.linalg.structured_matrices import block_diag as block_diag
from volta_fn.scipy.linalg.structured_matrices import toeplitz as toeplitz
