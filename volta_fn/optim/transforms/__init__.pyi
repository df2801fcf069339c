from volta_fn.optim.base import NonNegativeParamsState as NonNegativeParamsState
from volta_fn.optim.transforms.clipping import *
from volta_fn.optim.transforms.momentum import *
from volta_fn.optim.transforms.per_example import *
from volta_fn.optim.transforms.scaling import *
from volta_fn.optim.transforms.weight_decay_and_noise import *
from volta_fn.optim.wrappers.chain import *
from volta_fn.optim.wrappers.conditional import *
from volta_fn.optim.wrappers.flatten import *
from volta_fn.optim.wrappers.masking import *
from volta_fn.optim.wrappers.monitoring import *
from volta_fn.optim.wrappers.multi_steps import *
