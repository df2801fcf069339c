"""Matrix products as machine code, in the manner of GotoBLAS and BLIS.

In the order in which to read: `compute_dtype` (the dtype of sums), `task_loops` (loops and indices in generated code), `micro_kernel` (the
innermost loop, over a register tile), `blocking` (register tiles, cache blocking, tasks), `pack_kernels` and `operands` (how operands are
read and packed into panels), `packing` (panels packed before the product), `epilogues` and `fused_epilogue` (what becomes of sums),
`macro_kernel` (a tile with its epilogue), `gemm` (the loops around them); without packing, `dot_products` and `gemv`; and `choice`, which
selects among them for equations and for kernels.
"""

from volta_fn.targets.cpu.matmul.choice import contraction as contraction
from volta_fn.targets.cpu.matmul.choice import contraction_options as contraction_options
from volta_fn.targets.cpu.matmul.choice import contracts as contracts
from volta_fn.targets.cpu.matmul.choice import dot_general as dot_general

#: Makers of routines by the name of the primitive.
ROUTINES = {"dot_general": dot_general}
