"""Convolutions in WGSL, and both of their gradients: as matrix products over index maps, by `winograd`, or, for few outputs, by `narrow`.

`choice` selects one; `winograd_schedule` divides a convolution by Winograd's algorithm into pieces, and estimates their time.
"""

from volta_fn.targets.wgsl.convolution.choice import conv_general_dilated as conv_general_dilated

#: Makers of routines by the name of the primitive.
ROUTINES = {"conv_general_dilated": conv_general_dilated}
