"""Factorisations of stacks of matrices.

Small matrices have a workgroup each; `rotations.LARGEST` and `triangular.LARGEST` limit the sizes of all. In the order in which to read:

- `shader_templates` (what all are written with, for real and complex numbers), `triangular` (Cholesky, LU, solves), `orthogonal` (QR),
  `rotations` (Jacobi's method), `sweeps` (how often it is repeated), and by those `eigh`, `svd` and `singular_vectors`;
- matrices that fit in workgroup memory: `small_lu`, `small_eigh`, `small_svd`;
- larger matrices, which many workgroups share: `blocks` (counters, loops, copies), `blocked_cholesky`, `blocked_lu`, `blocked_qr` with
  `block_reflections`; `block_rotations` (Jacobi's method by blocks) with `block_scaling`, and by it `block_eigh` and `block_svd`;
- `iteration_budget` bounds how long dispatches take, which is too long for some devices.
"""

from volta_fn.targets.wgsl.library.linalg.eigh import eigh as eigh
from volta_fn.targets.wgsl.library.linalg.qr import qr as qr
from volta_fn.targets.wgsl.library.linalg.svd import svd as svd
from volta_fn.targets.wgsl.library.linalg.triangular import cholesky as cholesky
from volta_fn.targets.wgsl.library.linalg.triangular import lu as lu
from volta_fn.targets.wgsl.library.linalg.triangular import triangular_solve as triangular_solve
