"""Compute matrix products in WGSL, and other contractions over index maps.

In the order in which to read: `indices` (writing code with indices), `compute_dtype` (the dtype of sums), `schedule` (how work is divided),
`slices` (staging operands in workgroup memory), `subgroup_patches` (which sums an invocation has), `epilogues` and `results` (storing
them), `split_k_combine` (adding up split sums), `tiles` (the shader), `elements`, `direct` and `thin` (contractions without tiles),
`tuned_schedules` and `choice` (of schedules), `tuning`, `contract` (choosing the algorithm), `dot` (equations), and `fused` (kernels).
"""

from volta_fn.targets.wgsl.matmul.contract import contraction as contraction
from volta_fn.targets.wgsl.matmul.contract import contraction_options as contraction_options
from volta_fn.targets.wgsl.matmul.contract import contracts as contracts
from volta_fn.targets.wgsl.matmul.contract import dot_general as dot_general
from volta_fn.targets.wgsl.matmul.contract import is_little as is_little
from volta_fn.targets.wgsl.matmul.contract import split_k as split_k

#: Makers of routines by the name of the primitive.
ROUTINES = {"dot_general": dot_general}
