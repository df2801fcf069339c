"""Products of matrices as machine code: `dot_general`, and the tiles, packing and epilogues that other contractions are made of.

In the order in which to read: `schedule` (how a product is cut up), `numbers` (what it computes in), `walks`, `loops` and `tasks` (small
words for writing code), `sources` (where operands come from), by `packing`, `lines` and `transpose`; `tile` (the innermost loop), `tiles`
and `shared` (functions that all products have in common), `partial` and `epilogues` (what becomes of sums), `gemm` (the loops around it
all); products of vectors, `dots` and `sweep`; `dot` (equations), `fused` and `contract` (kernels).
"""

from volta_fn.backends.native.matmul.contract import contraction as contraction
from volta_fn.backends.native.matmul.contract import contracts as contracts
from volta_fn.backends.native.matmul.dot import dot_general as dot_general

#: Makers of routines by the name of the primitive.
ROUTINES = {"dot_general": dot_general}
