"""Optimizers and wrappers from the literature, as in `optax.contrib`.

`optimizers` has Adam with other moments, and other preconditioners, `learning_rate_free` optimizers that estimate their own learning rate,
and `wrappers` transformations around optimizers. Each module's ``__all__`` is public, under ``volta_fn.optim.contrib``.
"""

from volta_fn.optim.base import check_all as _check_all
from volta_fn.optim.contrib.learning_rate_free import *
from volta_fn.optim.contrib.optimizers import *
from volta_fn.optim.contrib.wrappers import *
from volta_fn.optim.optimizers import MuonState as MuonState
from volta_fn.optim.optimizers import dpsgd as dpsgd
from volta_fn.optim.optimizers import muon as muon
from volta_fn.optim.optimizers import scale_by_muon as scale_by_muon
from volta_fn.optim.transforms.momentum import MuonDimensionNumbers as MuonDimensionNumbers
from volta_fn.optim.transforms.scaling import DifferentiallyPrivateAggregateState as DifferentiallyPrivateAggregateState
from volta_fn.optim.transforms.scaling import ReduceLROnPlateauState as ReduceLROnPlateauState
from volta_fn.optim.transforms.scaling import differentially_private_aggregate as differentially_private_aggregate
from volta_fn.optim.transforms.scaling import reduce_on_plateau as reduce_on_plateau

_check_all(globals())
