"""Metrics of predictions.

All run under `jit` and `vmap`; a metric without a value is NaN. *Predictions* are class numbers, of the shape of the labels, or scores with
one more axis, the greatest of which is the prediction. A row of scores with a NaN counts as a wrong prediction. The axis of classes is that
of `cross_entropy`: as given, else 1, or 0 where there is no other.
"""

from volta_fn.nn.metrics.classification import *
from volta_fn.nn.metrics.confusion import *
from volta_fn.nn.metrics.mean import *
