"""Convolutions as machine code.

All take correlations, the canonical form of `compiler/contractions/correlation`. In the order in which to read: `emit_utils` (indices in
generated code), `loop_nest` (register tiles, and the loops around them), `input_tile` and `weight_panels` (packing operands), `sum_tile`
(results from registers), `blocking` (block sizes), `stages` (several correlations in one routine); then the algorithms: `igemm` with
`igemm_plan` (implicit GEMM), `direct`, `winograd` with `winograd_plan` and `winograd_transforms`, and `winograd_weight_gradient`; and
`choice`, which selects among them and computes windows of one tap as matrix products.
"""

from volta_fn.targets.cpu.convolution.choice import conv_general_dilated

#: The makers of routines for primitives, by name.
ROUTINES = {"conv_general_dilated": conv_general_dilated}
