"""Losses: functions of predictions and targets to be minimised, with PyTorch's names and reductions.

Each takes ``reduction="mean"``, "sum" or "none". All compute float16 and bfloat16 through float32 and return the dtype in which the
arguments combine; they have first and second derivatives, and NaN in gives NaN out. The mean of an empty batch is NaN, its sum 0.
"""

from volta_fn.nn.losses.binary import binary_cross_entropy as binary_cross_entropy
from volta_fn.nn.losses.binary import binary_cross_entropy_with_logits as binary_cross_entropy_with_logits
from volta_fn.nn.losses.binary import sigmoid_focal_loss as sigmoid_focal_loss
from volta_fn.nn.losses.classification import cross_entropy as cross_entropy
from volta_fn.nn.losses.classification import nll_loss as nll_loss
from volta_fn.nn.losses.ctc import ctc_loss as ctc_loss
from volta_fn.nn.losses.divergence import kl_div as kl_div
from volta_fn.nn.losses.divergence import kl_divergence_gaussian as kl_divergence_gaussian
from volta_fn.nn.losses.margin import hinge_loss as hinge_loss
from volta_fn.nn.losses.margin import margin_ranking_loss as margin_ranking_loss
from volta_fn.nn.losses.margin import multi_margin_loss as multi_margin_loss
from volta_fn.nn.losses.regression import gaussian_nll_loss as gaussian_nll_loss
from volta_fn.nn.losses.regression import huber_loss as huber_loss
from volta_fn.nn.losses.regression import l1_loss as l1_loss
from volta_fn.nn.losses.regression import mae_loss as mae_loss
from volta_fn.nn.losses.regression import mse_loss as mse_loss
from volta_fn.nn.losses.regression import poisson_nll_loss as poisson_nll_loss
from volta_fn.nn.losses.regression import smooth_l1_loss as smooth_l1_loss
from volta_fn.nn.losses.similarity import cosine_embedding_loss as cosine_embedding_loss
from volta_fn.nn.losses.similarity import cosine_similarity as cosine_similarity
from volta_fn.nn.losses.similarity import pairwise_distance as pairwise_distance
from volta_fn.nn.losses.similarity import triplet_margin_loss as triplet_margin_loss
