"""Products of matrices as machine code: `dot_general`, and the tiles, packing and epilogues that other contractions are made of."""

from volta_fn.backends.native.matmul.contract import contraction as contraction
from volta_fn.backends.native.matmul.contract import contracts as contracts
from volta_fn.backends.native.matmul.dot import dot_general as dot_general

#: Makers of routines by the name of the primitive.
ROUTINES = {"dot_general": dot_general}
