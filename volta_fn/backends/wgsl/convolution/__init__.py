"""Convolutions in WGSL, and both of their gradients: as matrix products over index maps, by `winograd`, or, with few outputs, by `narrow`.

`choice` decides; `cutting` says how Winograd's cuts a convolution up, and how long it takes.
"""

from volta_fn.backends.wgsl.convolution.choice import conv_general_dilated as conv_general_dilated

#: Makers of routines by the name of the primitive.
ROUTINES = {"conv_general_dilated": conv_general_dilated}
