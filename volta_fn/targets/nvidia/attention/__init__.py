"""Attention on the matrix units of NVIDIA GPUs, forward and backward.

In the order in which to read: `tiles` (rows in shared memory, their products, the loop over tiles), `queries` and `keys` (what kernels by
queries and by keys share), `forward`, `statistics` (numbers of each query that gradients need), `backward`, then the same by `wgmma`:
`groups` (copies, stages and products), `group_forward` and `group_backward`; and `contract` (which problems are computed here, and by which
schedules).
"""

from volta_fn.targets.nvidia.attention.contract import ROUTINES as ROUTINES
from volta_fn.targets.nvidia.attention.contract import worthwhile as worthwhile
