from volta_fn.scipy.sparse.linalg.generalized_residuals import gmres as gmres
from volta_fn.scipy.sparse.linalg.krylov import bicgstab as bicgstab
from volta_fn.scipy.sparse.linalg.krylov import cg as cg
