from volta_fn.vision import ops as ops
from volta_fn.vision import transforms as transforms
