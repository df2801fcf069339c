"""Products of matrices on the matrix units of NVIDIA GPUs.

In the order in which to read: `problem` (which products, and how their operands lie in memory), `schedule` (tiles), `results` (what is
done with sums), `wgmma` and `mma` (the kernels), and `contract` (the choice for a kernel of a program).
"""

from volta_fn.targets.nvidia.matmul.contract import computes_product as computes_product
from volta_fn.targets.nvidia.matmul.contract import contraction as contraction
from volta_fn.targets.nvidia.matmul.contract import multiplies_dequantized as multiplies_dequantized
