"""Attention in WGSL, forward and backward, without a matrix of all weights in memory.

In the order in which to read: `problem` (what is asked for), `blocks` (what it is made of), `forward`, `backward`.
"""

from volta_fn.backends.wgsl.attention.backward import backward as backward
from volta_fn.backends.wgsl.attention.forward import forward as forward
from volta_fn.backends.wgsl.attention.problem import Attention as Attention
from volta_fn.backends.wgsl.attention.problem import attention_of as attention_of
