"""Attention on the matrix units of NVIDIA GPUs, forward and backward.

In the order in which to read: `tiles` (rows in shared memory, their products, the loop over tiles), `queries` (kernels by queries: what
forward and backward share), `forward`, `groups` (forward by `wgmma`), `backward`, and `contract` (which problems are computed here, and by
which schedules).
"""

from volta_fn.targets.nvidia.attention.contract import ROUTINES as ROUTINES
from volta_fn.targets.nvidia.attention.contract import worthwhile as worthwhile
