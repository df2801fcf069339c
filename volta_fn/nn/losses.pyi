"""Losses of predictions and targets, with PyTorch's names and reductions.

`classification_losses` has cross entropies, focal losses, divergences and CTC, `regression_losses` squared and absolute errors, margins
and similarities.

Each takes ``reduction="mean"``, "sum" or "none". All compute float16 and bfloat16 through float32 and return the dtype in which the
arguments combine; they have first and second derivatives, and NaN in gives NaN out. The mean of an empty batch is NaN, its sum 0.
"""

from volta_fn.nn.classification_losses import *
from volta_fn.nn.regression_losses import *
