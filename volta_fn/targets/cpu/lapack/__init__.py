"""Linear algebra as calls of SciPy's LAPACK and BLAS.

A routine computes the matrices of a stack one by one: it brings a matrix into the order of LAPACK, calls a few functions, and stores what
they return: `calls` has routines of stacks, calls, copies of matrices and OpenBLAS's threads, `factorizations` every routine.
"""

from __future__ import annotations

from volta_fn.targets.cpu.lapack.calls import RoutineMaker, if_available
from volta_fn.targets.cpu.lapack.factorizations import (
    cholesky,
    eig,
    eigh,
    hessenberg,
    householder_product,
    lu,
    qr,
    schur,
    svd,
    triangular_solve,
    tridiagonal,
    tridiagonal_solve,
)

_MAKERS: tuple[RoutineMaker, ...] = (
    *(cholesky, eig, eigh, hessenberg, householder_product, lu, qr, schur, svd),
    *(triangular_solve, tridiagonal, tridiagonal_solve),
)

#: Makers of routines, by the names of primitives. Without SciPy they return None, and NumPy computes the equations.
ROUTINES: dict[str, RoutineMaker] = {maker.__name__: if_available(maker) for maker in _MAKERS}

#: The operands whose memory the result may be, by the names of primitives.
IN_PLACE: dict[str, int] = {"cholesky": 0, "triangular_solve": 1}
