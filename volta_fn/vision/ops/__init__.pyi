from volta_fn.vision.ops.anchors import *
from volta_fn.vision.ops.boxes import *
from volta_fn.vision.ops.regions import *
from volta_fn.vision.ops.suppression import *
