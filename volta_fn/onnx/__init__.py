"""ONNX models: load them as differentiable functions, save functions as models.

It needs the package onnx, ``pip install 'volta-fn[onnx]'``. `loading` reads a model's graphs, whose nodes are `operators`; `saving`
writes the program of a function, by `rules` for its primitives. `nodes` declares operators, and converts tensors and dtypes from and to
NumPy's.
"""

from volta_fn import lazy_imports as _lazy_imports

__getattr__, __dir__ = _lazy_imports.attach(__name__)
