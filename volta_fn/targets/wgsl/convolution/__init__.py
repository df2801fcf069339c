"""Compute convolutions in WGSL, and both of their gradients.

They become matrix products over index maps, or, by `winograd`, products at points, or, for few outputs, `narrow`. `choice` selects one;
`winograd_schedule` tiles a convolution by Winograd's algorithm and estimates its time.
"""

from volta_fn.targets.wgsl.convolution.choice import conv_general_dilated as conv_general_dilated

#: Makers of routines by the name of the primitive.
ROUTINES = {"conv_general_dilated": conv_general_dilated}
