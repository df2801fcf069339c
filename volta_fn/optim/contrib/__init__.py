"""Optimizers and wrappers from the literature, as in `optax.contrib`.

Each module's ``__all__`` is public, under ``volta_fn.optim.contrib``. Those that estimate their own learning rate are in `dog`,
`learning_rate_free`, `mechanic` and `momo`.
"""

from volta_fn.optim import hyperparameters as _hyperparameters
from volta_fn.optim.contrib.acprop import *
from volta_fn.optim.contrib.ademamix import *
from volta_fn.optim.contrib.adopt import *
from volta_fn.optim.contrib.cocob import *
from volta_fn.optim.contrib.complex_valued import *
from volta_fn.optim.contrib.dog import *
from volta_fn.optim.contrib.galore import *
from volta_fn.optim.contrib.learning_rate_free import *
from volta_fn.optim.contrib.madgrad import *
from volta_fn.optim.contrib.mechanic import *
from volta_fn.optim.contrib.momo import *
from volta_fn.optim.contrib.sam import *
from volta_fn.optim.contrib.schedule_free import *
from volta_fn.optim.contrib.sophia import *
from volta_fn.optim.optimizers.muon import MuonState as MuonState
from volta_fn.optim.optimizers.muon import muon as muon
from volta_fn.optim.optimizers.muon import scale_by_muon as scale_by_muon
from volta_fn.optim.optimizers.sgd import dpsgd as dpsgd
from volta_fn.optim.transforms.newton_schulz import MuonDimensionNumbers as MuonDimensionNumbers
from volta_fn.optim.transforms.per_example import DifferentiallyPrivateAggregateState as DifferentiallyPrivateAggregateState
from volta_fn.optim.transforms.per_example import differentially_private_aggregate as differentially_private_aggregate
from volta_fn.optim.transforms.plateau import ReduceLROnPlateauState as ReduceLROnPlateauState
from volta_fn.optim.transforms.plateau import reduce_on_plateau as reduce_on_plateau

_hyperparameters.check_all(globals())
