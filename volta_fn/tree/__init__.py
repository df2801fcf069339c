"""Pytrees: nested containers with arrays at their leaves, by the names and meanings of `jax.tree` and `jax.tree_util`.

>>> from volta_fn import tree
>>> tree.map(lambda x: x + 1, {"w": [1, 2], "b": None})
{'w': [2, 3], 'b': None}
"""

from volta_fn import lazy_imports as _lazy_imports

__getattr__, __dir__ = _lazy_imports.attach(__name__)
