"""Convolutions as machine code.

All take correlations, the canonical form of `compiler/contractions/correlation`. In the order in which to read: `emit_utils` (writing code
with indices), `loop_nest` (register tiles, and the loops around them), `gather` and `panels` (packing operands), `epilogue` (results from
registers), `blocks` (block sizes), `stages` (several correlations in one routine); then the algorithms: `igemm` with `igemm_plan`,
`im2col`, `direct`, `winograd` with its `algebra`, `winograd_schedule`, `winograd_weights`, `winograd_output` and
`winograd_weight_gradient`, `product` for 1×1 kernels, and `zero_fill` for empty sums; and `choice`, which selects among them.
"""

from volta_fn.targets.cpu.convolution.choice import conv_general_dilated

#: The makers of routines for primitives, by name.
ROUTINES = {"conv_general_dilated": conv_general_dilated}
