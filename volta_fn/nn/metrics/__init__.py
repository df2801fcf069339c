"""Metrics: how good predictions are. All run under `jit` and `vmap`, and NaN marks what no number can say.

*Predictions* are class numbers, of the shape of the labels, or scores with one axis more, of which the greatest is the prediction. A
row of scores that holds NaN predicts nothing and counts as wrong. The axis of classes is that of `cross_entropy`: as given, else 1, or
0 where there is no other.
"""

from volta_fn.nn.metrics.classification import *
from volta_fn.nn.metrics.confusion import *
from volta_fn.nn.metrics.mean import *
