from volta_fn.vision.ops.boxes import *
from volta_fn.vision.ops.regions import *
