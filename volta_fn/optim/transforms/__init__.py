"""Transformations of updates: the components that optimizers chain.

`second_moments` and `momentum` keep statistics of gradients; `momentum` also has weight decay, noise and orthogonalised updates. `scaling`
multiplies updates by numbers, schedules, norms and signs, bounds them, and aggregates the gradients of single examples.
"""

from volta_fn import lazy_imports as _lazy_imports

__getattr__, __dir__ = _lazy_imports.attach(__name__)
