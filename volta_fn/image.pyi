"""Resampling of images, and of arrays of any number of dimensions, as in `jax.image`."""

from volta_fn.scipy.interpolation import ResizeMethod as ResizeMethod
from volta_fn.scipy.interpolation import resize as resize
from volta_fn.scipy.interpolation import scale_and_translate as scale_and_translate
