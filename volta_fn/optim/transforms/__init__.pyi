from volta_fn.optim.base import NonNegativeParamsState as NonNegativeParamsState
from volta_fn.optim.transforms.clipping import *
from volta_fn.optim.transforms.momentum import *
from volta_fn.optim.transforms.scaling import *
from volta_fn.optim.wrappers.accumulation import *
from volta_fn.optim.wrappers.composition import *
