"""Boxes and regions of images, with the names of `torchvision.ops`.

`boxes` converts and compares boxes, makes those that a detector starts from and encodes others relative to them, and drops boxes that
overlap with better ones; `regions` pools what lies within boxes. The focal loss is `nn.sigmoid_focal_loss`.
"""

from volta_fn.vision.boxes import *
from volta_fn.vision.regions import *
