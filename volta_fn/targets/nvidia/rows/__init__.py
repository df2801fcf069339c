"""Products of few rows by matrices, as decoders multiply.

They are bound by the bytes of the matrices.

In the order in which to read: `kernel` (how matrices lie in memory, the conversion of codes in registers, and kernels in LLVM IR),
`contract` (the choice for an equation of a program; products with the same row, and kernels that compute the row), and `attention`
(attention of one query).
"""

from volta_fn.targets.nvidia.rows.attention import attends_by_one_query as attends_by_one_query
from volta_fn.targets.nvidia.rows.attention import attention as attention
from volta_fn.targets.nvidia.rows.contract import ROUTINES as ROUTINES
from volta_fn.targets.nvidia.rows.contract import computes_product as computes_product
from volta_fn.targets.nvidia.rows.contract import fuse_products_of_rows as fuse_products_of_rows
from volta_fn.targets.nvidia.rows.contract import products_of_row as products_of_row
from volta_fn.targets.nvidia.rows.contract import quantized_product as quantized_product
