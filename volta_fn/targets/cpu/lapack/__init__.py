"""Linear algebra as calls of SciPy's LAPACK and BLAS.

A routine computes the matrices of a stack one by one: it brings a matrix into the order of LAPACK, calls a few functions, and stores what they
return. In the order in which to read: `stacks` (a routine as a function of one matrix), `calls` (calls of LAPACK), `copies` (matrices in
memory), and the factorisations: `triangular`, `lu`, `orthogonal` and `spectral`.
"""

from __future__ import annotations

from volta_fn.targets.cpu.lapack.lu import lu
from volta_fn.targets.cpu.lapack.orthogonal import qr
from volta_fn.targets.cpu.lapack.spectral import eig, eigh, svd
from volta_fn.targets.cpu.lapack.stacks import RoutineMaker, if_available
from volta_fn.targets.cpu.lapack.triangular import cholesky, triangular_solve

#: By a primitive's name what makes its routine; without SciPy there are none, and NumPy computes the equations.
ROUTINES: dict[str, RoutineMaker] = {
    maker.__name__: if_available(maker) for maker in (cholesky, eig, eigh, lu, qr, svd, triangular_solve)
}
