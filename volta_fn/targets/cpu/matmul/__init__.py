"""Products of matrices as machine code: `dot_general`, and the tiles, packing and epilogues that other contractions share.

In the order in which to read: `schedule` (how a product is blocked), `compute_dtype` (the dtype of sums), `cursor`, `loops` and `tasks`
(helpers for writing code), `sources` (how operands are read), by `packing`, `pack_rows` and `transpose`; `tile` (the innermost loop),
`tiles` and `shared` (functions that all products have in common), `partial_sums` and `epilogues` (what is done with sums), `gemm` (the
loops around them); products of vectors, `dots` and `gemv`; `dot` (equations), `fused` and `contract` (kernels).
"""

from volta_fn.targets.cpu.matmul.contract import contraction as contraction
from volta_fn.targets.cpu.matmul.contract import contracts as contracts
from volta_fn.targets.cpu.matmul.dot import dot_general as dot_general

#: Makers of routines by the name of the primitive.
ROUTINES = {"dot_general": dot_general}
