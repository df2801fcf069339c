"""The implementations of random keys, by the names of `jax.extend.random`."""

from volta_fn.extend.key_arrays import Key as Key
from volta_fn.extend.key_arrays import PRNGImpl as PRNGImpl
from volta_fn.extend.key_arrays import random_seed as random_seed
from volta_fn.extend.key_arrays import rbg_prng_impl as rbg_prng_impl
from volta_fn.extend.key_arrays import seed_with_impl as seed_with_impl
from volta_fn.extend.key_arrays import threefry_2x32 as threefry_2x32
from volta_fn.extend.key_arrays import threefry_prng_impl as threefry_prng_impl
from volta_fn.extend.key_arrays import unsafe_rbg_prng_impl as unsafe_rbg_prng_impl
