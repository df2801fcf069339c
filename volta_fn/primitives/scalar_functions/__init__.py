"""NumPy functions that are the meaning of elementwise primitives which NumPy itself lacks, or defines otherwise.

Each takes and returns arrays of one dtype; operands broadcast. float16 and bfloat16 compute through float32 or float64.

They are in `arithmetic`, `bits`, `error`, `gamma`, `bessel` and `threefry`; `blocks` runs long formulas in the cache.
"""

from volta_fn import lazy_imports as _lazy_imports

__getattr__, __dir__ = _lazy_imports.attach(__name__)
