"""Neural networks: layers as immutable pytrees, and the functions of `jax.nn`.

`module` defines the base of layers. `layers` and `recurrent` hold the layers; `activations` and `attention` are functions of
arrays, `quantization` stores weights in 8 or 4 bits, as a `quantized_array` each, and `initializers` makes initial weights. `losses` and
`metrics` compare predictions with targets. `filtering` transforms functions of trees that hold other things than arrays, and
`model_summary` tabulates a model.

Each module's ``__all__`` is public, under ``volta_fn.nn``. Examples use ``import volta_fn as vf`` and ``from volta_fn import nn``.
"""

from volta_fn import lazy_imports as _lazy_imports

__getattr__, __dir__ = _lazy_imports.attach(__name__)
