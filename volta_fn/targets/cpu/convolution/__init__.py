"""Convolutions as machine code.

All take correlations, the canonical form of `compiler/contractions/correlation`. In the order in which to read: `emit_utils` (indices in
generated code), `loop_nest` (register tiles, and the loops around them), `input_tile` and `weight_panels` (packing operands), `sum_tile`
(results from registers), `blocking` (block sizes), `stages` (several correlations in one routine); then the algorithms: `igemm` with
`igemm_plan` (implicit GEMM), `direct`, `winograd` with `winograd_plan` and `winograd_transforms`, and `winograd_weight_gradient`; and
`choice`, which selects among them and computes windows of one tap as matrix products.
"""

from volta_fn.compiler.target import RoutineMaker
from volta_fn.lazy_imports import deferred

_CHOICE = deferred("volta_fn.targets.cpu.convolution.choice")

#: The makers of routines for primitives, by name.
ROUTINES: dict[str, RoutineMaker] = {"conv_general_dilated": lambda avals, params: _CHOICE.conv_general_dilated(avals, params)}
