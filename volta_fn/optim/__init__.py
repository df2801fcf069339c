"""Optimizers with Optax's names: composable pure functions over pytrees.

>>> optimizer = optim.chain(optim.clip_by_global_norm(1.0), optim.adamw(optim.cosine_decay_schedule(0.1, 100)))
>>> params = {"w": vf.numpy.array([1.0, 2.0]), "b": vf.numpy.array(0.5)}
>>> loss = lambda p: vf.numpy.sum(p["w"] ** 2) + p["b"] ** 2
>>> @vf.jit
... def step(params, state):
...     value, grads = vf.value_and_grad(loss)(params)
...     updates, state = optimizer.update(grads, state, params)
...     return optim.apply_updates(params, updates), state, value
>>> state = optimizer.init(params)
>>> for _ in range(100):
...     params, state, value = step(params, state)
>>> bool(value < 0.01)
True

`base` defines transformations and their hyper-parameters, and applies updates to parameters. `optimizers` are chains of `transforms`.
`schedules` compute learning rates, `line_search` step sizes. `numerics` applies rules to the leaves of trees, and has norms, counters and
averages. `losses`, `projections`, `contrib`, `tree_utils`, `second_order`, `perturbations`, `assignment` and `microbatching` are modules of
their own, as in Optax.

Transformations that depend on the parameters raise `ArgumentError` if `update` is called without them. Each module's ``__all__`` is public,
under ``volta_fn.optim``. Examples use ``import volta_fn as vf`` and ``from volta_fn import optim``.
"""

from volta_fn import advice as _advice
from volta_fn import lazy_imports as _lazy_imports
from volta_fn.optim import assignment as assignment
from volta_fn.optim import contrib as contrib
from volta_fn.optim import losses as losses
from volta_fn.optim import microbatching as microbatching
from volta_fn.optim import perturbations as perturbations
from volta_fn.optim import projections as projections
from volta_fn.optim import schedules as schedules
from volta_fn.optim import second_order as second_order
from volta_fn.optim import transforms as transforms
from volta_fn.optim import tree as tree
from volta_fn.optim import tree_utils as tree_utils
from volta_fn.optim.base import *
from volta_fn.optim.base import check_all as _check_all
from volta_fn.optim.line_search import *
from volta_fn.optim.losses import convex_kl_divergence as convex_kl_divergence
from volta_fn.optim.losses import cosine_distance as cosine_distance
from volta_fn.optim.losses import cosine_similarity as cosine_similarity
from volta_fn.optim.losses import ctc_loss as ctc_loss
from volta_fn.optim.losses import ctc_loss_with_forward_probs as ctc_loss_with_forward_probs
from volta_fn.optim.losses import generalized_kl_divergence as generalized_kl_divergence
from volta_fn.optim.losses import hinge_loss as hinge_loss
from volta_fn.optim.losses import huber_loss as huber_loss
from volta_fn.optim.losses import kl_divergence as kl_divergence
from volta_fn.optim.losses import kl_divergence_with_log_targets as kl_divergence_with_log_targets
from volta_fn.optim.losses import l2_loss as l2_loss
from volta_fn.optim.losses import log_cosh as log_cosh
from volta_fn.optim.losses import ntxent as ntxent
from volta_fn.optim.losses import perceptron_loss as perceptron_loss
from volta_fn.optim.losses import poly_loss_cross_entropy as poly_loss_cross_entropy
from volta_fn.optim.losses import safe_softmax_cross_entropy as safe_softmax_cross_entropy
from volta_fn.optim.losses import sigmoid_binary_cross_entropy as sigmoid_binary_cross_entropy
from volta_fn.optim.losses import sigmoid_focal_loss as sigmoid_focal_loss
from volta_fn.optim.losses import smooth_labels as smooth_labels
from volta_fn.optim.losses import softmax_cross_entropy as softmax_cross_entropy
from volta_fn.optim.losses import softmax_cross_entropy_with_integer_labels as softmax_cross_entropy_with_integer_labels
from volta_fn.optim.losses import sparsemax_loss as sparsemax_loss
from volta_fn.optim.losses import squared_error as squared_error
from volta_fn.optim.microbatching import microbatch as microbatch
from volta_fn.optim.numerics import *
from volta_fn.optim.optimizers import *
from volta_fn.optim.schedules import *
from volta_fn.optim.second_order import matrix_inverse_pth_root as matrix_inverse_pth_root
from volta_fn.optim.second_order import nnls as nnls
from volta_fn.optim.second_order import power_iteration as power_iteration
from volta_fn.optim.transforms.accumulation import *
from volta_fn.optim.transforms.composition import *
from volta_fn.optim.transforms.momentum import *
from volta_fn.optim.transforms.scaling import *
from volta_fn.optim.transforms.second_moments import *
from volta_fn.optim.tree_utils import tree_map_params as tree_map_params

_check_all(globals())

__dir__ = _lazy_imports.directory(__name__, ".py")
__getattr__ = _advice.guard(__name__)
