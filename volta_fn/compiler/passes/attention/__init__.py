"""Recognising attention: products, a softmax and products again become one equation, and so does their gradient.

Lanes with routines for these equations never store the matrix of weights, which has an element for each pair of a query and a key.

In the order in which to read: `instructions` (the equations that are put in), `program` (looking things up in the jaxpr), `softmax`,
`products` and `logits` (recognising parts), `match` (recognising all of it), and `replace`.
"""

from volta_fn.compiler.ir.attention import Axes as Axes
from volta_fn.compiler.ir.attention import Form as Form
from volta_fn.compiler.ir.attention import attention_gradient_p as attention_gradient_p
from volta_fn.compiler.ir.attention import attention_p as attention_p
from volta_fn.compiler.passes.attention.replace import Judge as Judge
from volta_fn.compiler.passes.attention.replace import with_attention as with_attention
