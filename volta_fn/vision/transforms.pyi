"""Changes of images, and random ones for training, with torchvision's names.

Images are (…, channels, height, width). Floats range from 0 to 1, integers over their dtype: uint8 images stay uint8. `color` (also
filters) and `geometry` are functions of images; their numbers may be traced, so that `vmap` gives each image numbers of its own.
`random_changes` makes random transforms of them, ``transform(key, images)``, as `data.compose` and a loader's `augment` take them, mixes
images with each other, and has the policies of AutoAugment and its successors.
"""

from volta_fn.vision.color import *
from volta_fn.vision.geometry import *
from volta_fn.vision.random_changes import *
