"""Transformations of updates: the components that optimizers chain.

`scale_by_adam`, `scale_by_adam_variants`, `scale_by_rms`, `scale_by_factored_rms`, `momentum` and `signs` keep statistics of gradients.
`scaling` multiplies updates by numbers, schedules and norms, `plateau` by a scale that follows the loss, `clipping` bounds them,
`weight_decay_and_noise` adds to them. `per_example` aggregates gradients of single examples, `newton_schulz` orthogonalises matrices.
"""

from volta_fn import lazy_imports as _lazy_imports

__getattr__, __dir__ = _lazy_imports.attach(__name__)
