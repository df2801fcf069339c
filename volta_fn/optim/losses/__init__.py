"""Losses with Optax's names and signatures, one value for each example.

`classification` has losses of classes, rankings and label sequences, `regression` errors, divergences, overlaps and losses of embeddings.

They do not reduce over the batch: ``jnp.mean(optim.losses.softmax_cross_entropy(logits, labels))`` is the usual loss. Those that
`volta_fn.nn.losses` has under PyTorch's signature are computed there. float16 and bfloat16 are computed in float32; results have the dtype
in which the arguments combine.
"""

from volta_fn.optim.losses.classification import *
from volta_fn.optim.losses.regression import *
