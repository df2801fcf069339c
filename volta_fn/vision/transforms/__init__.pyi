from volta_fn.vision.transforms.color import *
from volta_fn.vision.transforms.geometry import *
from volta_fn.vision.transforms.random_changes import *
