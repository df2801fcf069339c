"""Convolutions in WGSL, and both of their gradients.

In the order in which to read: `narrow` (few outputs), `winograd` (windows of three or five taps), and `choice` (the algorithm for an
equation).
"""

from volta_fn.targets.wgsl.convolution.choice import contractions as contractions
from volta_fn.targets.wgsl.convolution.choice import conv_general_dilated as conv_general_dilated
from volta_fn.targets.wgsl.convolution.choice import products_at_points as products_at_points

#: Makers of routines by the name of the primitive.
ROUTINES = {"conv_general_dilated": conv_general_dilated}
