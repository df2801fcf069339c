"""Products of matrices in WGSL, and whatever else is a contraction over index maps.

In the order in which to read: `indices` (writing code with indices), `working` (the dtype of sums), `schedule` (how work is divided),
`slices` (staging operands in workgroup memory), `patches` (which sums an invocation has), `epilogues` and `results` (storing them),
`combine` (adding up split sums), `tiles` (the shader), `elements`, `direct` and `thin` (contractions without tiles), `remembered` and
`choice` (of schedules), `tuning`, `contract` (choosing the algorithm), `dot` (equations), and `fused` (kernels).
"""

from volta_fn.backends.wgsl.matmul.dot import dot_general as dot_general
from volta_fn.backends.wgsl.matmul.fused import contraction as contraction
from volta_fn.backends.wgsl.matmul.fused import contracts as contracts
from volta_fn.backends.wgsl.matmul.fused import is_little as is_little
from volta_fn.backends.wgsl.matmul.fused import parts as parts

#: Makers of routines by the name of the primitive.
ROUTINES = {"dot_general": dot_general}
