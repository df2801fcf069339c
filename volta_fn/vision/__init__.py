"""Pieces of detectors, and augmentation of images, with torchvision's names.

`ops` has boxes, their overlaps, the suppression of boxes that overlap, and the pooling of regions. `transforms` changes images and batches
of images. All are functions of arrays that can be jitted and batched, and that run on the arrays' device.

>>> import volta_fn as vf
>>> boxes = vf.numpy.array([[0.0, 0.0, 10.0, 10.0], [1.0, 1.0, 10.0, 10.0], [20.0, 20.0, 30.0, 30.0]])
>>> vf.vision.ops.nms(boxes, vf.numpy.array([0.8, 0.9, 0.7]), 0.5)
Array([1, 2], dtype=int32)
"""

from volta_fn import lazy_imports as _lazy_imports

__getattr__, __dir__ = _lazy_imports.attach(__name__)
