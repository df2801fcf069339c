"""Matrix products in WGSL, and other contractions over index maps.

In the order in which to read: `results` (arithmetic of sums and of indices, elements of operands, epilogues, and the partial sums of
split-K), `tiles` (how work is divided, schedules that were measured, and contractions by tiles: slices in workgroup memory, sums in
registers), and `contract` (contractions without tiles, the algorithm for an equation or a kernel, and the timing of schedules).
"""

from volta_fn.targets.wgsl.matmul.contract import computes_product as computes_product
from volta_fn.targets.wgsl.matmul.contract import contraction as contraction
from volta_fn.targets.wgsl.matmul.contract import contraction_options as contraction_options
from volta_fn.targets.wgsl.matmul.contract import dot_general as dot_general
from volta_fn.targets.wgsl.matmul.contract import is_small_product as is_small_product
from volta_fn.targets.wgsl.matmul.contract import split_k as split_k

#: Makers of routines by the name of the primitive.
ROUTINES = {"dot_general": dot_general}
