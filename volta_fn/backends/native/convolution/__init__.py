"""Convolutions as machine code.

All take correlations, the canonical form of `compiler/contractions/geometry`. In the order in which to read: `emit` (writing code with
indices), `nest` (register tiles, and the loops around them), `gather` and `panels` (packing operands), `storing` (results from
registers), `blocks` (block sizes), `pieces` (several correlations in one routine); then the algorithms: `igemm` with `igemm_plan`,
`im2col`, `direct`, `winograd` with its `algebra`, `winograd_shape`, `winograd_taps`, `winograd_places` and `winograd_sums`,
`product` for 1×1 kernels, and `zeros` for empty sums; and `choice`, which selects among them.
"""

from volta_fn.backends.native.convolution.choice import conv_general_dilated

#: The makers of routines for primitives, by name.
ROUTINES = {"conv_general_dilated": conv_general_dilated}
