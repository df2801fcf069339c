"""Pytrees: nested containers of arrays, with the names of `jax.tree`.

>>> from volta_fn import tree
>>> tree.map(lambda x: x + 1, {"w": [1, 2], "b": None})
{'w': [2, 3], 'b': None}
"""

from volta_fn import lazy_imports as _lazy_imports

__getattr__, __dir__ = _lazy_imports.attach(__name__)
