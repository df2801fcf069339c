"""Factorisations of stacks of matrices.

Cholesky factorisations are programs of panels and products. Small matrices of others have a workgroup each, and `rotations.LARGEST` and
`triangular.LARGEST` limit their sizes. In the order in which to read:

- `rotations` (shaders for real and complex numbers, and Jacobi's method), `triangular` (LU, also of larger matrices, which many workgroups
  share; Cholesky factors of panels, solves), `qr`, `eigh` and `svd`;
- `block_rotations` (Jacobi's method by blocks), for larger matrices.
"""

from volta_fn.targets.wgsl.library.linalg.eigh import eigh as eigh
from volta_fn.targets.wgsl.library.linalg.qr import qr as qr
from volta_fn.targets.wgsl.library.linalg.svd import svd as svd
from volta_fn.targets.wgsl.library.linalg.triangular import cholesky_panel as cholesky_panel
from volta_fn.targets.wgsl.library.linalg.triangular import lu as lu
from volta_fn.targets.wgsl.library.linalg.triangular import panel_width as panel_width
from volta_fn.targets.wgsl.library.linalg.triangular import triangular_solve as triangular_solve
