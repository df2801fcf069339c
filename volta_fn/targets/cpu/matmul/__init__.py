"""Matrix products as machine code, in the manner of GotoBLAS and BLIS.

In the order in which to read: `micro_kernel` (the dtype of sums, and the innermost loop, over a register tile), `groups` (pairs of
bfloat16 and quadruples of bytes, which instructions multiply), `blocking` (register tiles, cache blocks, tasks, and indices in generated
code), `packing` (how operands are read and packed into panels), `epilogues` (from sums to results, and a tile with its epilogue), `gemm`
(the loops around tiles); without packing, `gemv` (products of few rows); and `choice`, which selects among them for equations and for
kernels.
"""

from volta_fn.targets.cpu.matmul.choice import computes_product as computes_product
from volta_fn.targets.cpu.matmul.choice import contraction as contraction
from volta_fn.targets.cpu.matmul.choice import contraction_options as contraction_options
from volta_fn.targets.cpu.matmul.choice import dot_general as dot_general

#: Makers of routines by the name of the primitive.
ROUTINES = {"dot_general": dot_general}
