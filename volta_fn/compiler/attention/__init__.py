"""Attention found in programs: products, softmax and products again become one equation, and so does its gradient.

Lanes that have routines for these equations need no array of all weights, which has an element for every query and key.

In the order in which to read: `instructions` (what stands in the new program), `program` (looking things up in the old one), `softmax`,
`products` and `logits` (recognising parts), `match` (all of them together), and `replace`.
"""

from volta_fn.compiler.attention.instructions import Axes as Axes
from volta_fn.compiler.attention.instructions import Form as Form
from volta_fn.compiler.attention.instructions import attention_gradient_p as attention_gradient_p
from volta_fn.compiler.attention.instructions import attention_p as attention_p
from volta_fn.compiler.attention.replace import Judge as Judge
from volta_fn.compiler.attention.replace import with_attention as with_attention
