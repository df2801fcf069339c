"""Random numbers from explicit keys, with `jax.random`'s names and values.

Bits come from the counter-based generator Threefry-2x32, element i of an array from counter i, so they depend on neither the device, nor
batching, nor anything else that runs. `keys` makes keys, `continuous` samples bits, uniform numbers and all continuous distributions, and
`discrete` samples counts, categories, permutations and choices. The examples use `import volta_fn as vf`.

>>> import volta_fn as vf
>>> key = vf.random.key(0)
>>> key, subkey = vf.random.split(key)
>>> vf.random.normal(subkey, (2, 3)).shape
(2, 3)
"""

from volta_fn import lazy_imports as _lazy_imports

__getattr__, __dir__ = _lazy_imports.attach(__name__)
