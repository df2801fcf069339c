"""The small libraries of JAX's examples: `stax` (layers) and `optimizers`.

New programs had better use `volta_fn.nn` and `volta_fn.optim`.
"""

from volta_fn import lazy_imports as _lazy_imports

__getattr__, __dir__ = _lazy_imports.attach(__name__)
