"""Metrics: how good predictions are. All run under `jit` and `vmap`, and NaN marks what no number can say.

*Predictions* are class numbers, of the shape of the labels, or scores with one axis more, of which the greatest is the prediction. A
row of scores that holds NaN predicts nothing and counts as wrong. The axis of classes is that of `cross_entropy`: as given, else 1, or
0 where there is no other.
"""

from volta_fn.nn.metrics.accuracy import accuracy as accuracy
from volta_fn.nn.metrics.accuracy import perplexity as perplexity
from volta_fn.nn.metrics.accuracy import top_k_accuracy as top_k_accuracy
from volta_fn.nn.metrics.confusion import ClassificationScores as ClassificationScores
from volta_fn.nn.metrics.confusion import classification_scores as classification_scores
from volta_fn.nn.metrics.confusion import confusion_matrix as confusion_matrix
from volta_fn.nn.metrics.confusion import f1_score as f1_score
from volta_fn.nn.metrics.confusion import precision as precision
from volta_fn.nn.metrics.confusion import recall as recall
from volta_fn.nn.metrics.ranking import roc_auc as roc_auc
from volta_fn.nn.metrics.running import Mean as Mean
