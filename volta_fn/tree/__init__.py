"""Pytrees: nested containers of arrays, with the names of `jax.tree`.

In the order in which to read: `registry` (classes as nodes, and paths), `structures` (the functions on trees, which optree
flattens, or `python_trees` where it is not installed; trees as text).

>>> from volta_fn import tree
>>> tree.map(lambda x: x + 1, {"w": [1, 2], "b": None})
{'w': [2, 3], 'b': None}
"""

from volta_fn import lazy_imports as _lazy_imports

__getattr__, __dir__ = _lazy_imports.attach(__name__)
