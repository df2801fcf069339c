"""Recognise attention: softmax(QKᵀ)V becomes one equation.

Targets with routines for these equations (`compiler/ir/attention.py`) never store the matrix of weights, which has an element for each
pair of a query and a key. Hand-written attention is recognised by its pattern; that of `nn` is a call of a primitive.

In the order in which to read: `patterns` (softmax, logits and products), `match` (attention), and `replace`;
`calls` (calls of attention's primitives).
"""

from volta_fn.compiler.passes.attention.replace import Profitability as Profitability
from volta_fn.compiler.passes.attention.replace import replace_attention as replace_attention
