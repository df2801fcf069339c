"""Functions of `jax.lax` whose dtypes differ from those of `volta_fn.lax`."""

from volta_fn.extend.dtypes import conj as conj
from volta_fn.extend.dtypes import convert_element_type as convert_element_type
from volta_fn.extend.dtypes import mul as mul
