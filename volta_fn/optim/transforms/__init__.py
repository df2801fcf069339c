"""Transformations of updates: the components that optimizers chain.

`second_moments` and `momentum` keep statistics of gradients; `momentum` also has weight decay, noise and orthogonalised updates. `scaling`
multiplies updates by numbers, schedules, norms and signs, bounds them, and aggregates the gradients of single examples.

`composition` chains transformations, limits them to some of the parameters, steps or rows of a table, and moves hyper-parameters into the
state. `accumulation` works over several steps or processes: accumulated gradients, averaged parameters, loss scales for float16,
measurements, and states that processes share.
"""

from volta_fn import lazy_imports as _lazy_imports

__getattr__, __dir__ = _lazy_imports.attach(__name__)
