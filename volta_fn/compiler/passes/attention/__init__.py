"""Recognise attention: softmax(QKᵀ)V becomes one equation.

Targets with routines for these equations (`compiler/ir/attention.py`) never store the matrix of weights, which has an element for each
pair of a query and a key. Hand-written attention is recognised by pattern; that of `nn` is called by its name.

In the order in which to read: `patterns` (softmax, logits and products), `match` (attention), and `replace`;
`calls` (attention that is called by its name).
"""

from volta_fn.compiler.passes.attention.replace import Profitability as Profitability
from volta_fn.compiler.passes.attention.replace import replace_attention as replace_attention
