"""Schedules: functions from the number of steps to a learning rate.

The number of steps may be a Python int or a (traced) array. Schedules compute in float32, or in float64 from an int64. `decay` holds
the elementary ones, `piecewise` those given at boundaries, `warmup` those composed of others.
"""

from volta_fn.optim import hyperparameters as _hyperparameters
from volta_fn.optim.base import Schedule as Schedule
from volta_fn.optim.schedules.decay import *
from volta_fn.optim.schedules.piecewise import *
from volta_fn.optim.schedules.warmup import *
from volta_fn.optim.wrappers.inject_hyperparams import *

_hyperparameters.check_all(globals())
