"""Convolutions as machine code.

All take correlations, the canonical form of `compiler.correlations`. In the order in which to read: `emission` (how operands are read,
groups of narrow numbers, indices in generated code, loops around register tiles, tiles of x that are contiguous in memory), `blocking`
(block sizes, several correlations in one routine, results from registers); then the algorithms: `igemm` (implicit GEMM), `direct`,
`winograd` and `winograd_weight_gradient`; and `choice`, which selects among them and computes windows of one tap as matrix products.
"""

from volta_fn.compiler.target import RoutineMaker
from volta_fn.lazy_imports import deferred

_CHOICE = deferred("volta_fn.targets.cpu.convolution.choice")

#: The makers of routines for primitives, by name.
ROUTINES: dict[str, RoutineMaker] = {"conv_general_dilated": lambda avals, params: _CHOICE.conv_general_dilated(avals, params)}
