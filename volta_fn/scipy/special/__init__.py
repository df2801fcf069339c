"""Special functions with the names of `jax.scipy.special`.

Integers become floats; all functions but those of `exponential` and `scipy_softmax` (sums of exponentials) are elementwise, or give a
table for each element (`legendre`, `bernoulli_numbers`). `stirling` has quotients of gamma functions without cancellation, for the
incomplete functions. The error of float64 is below 4e-12, relatively, where a function is well-conditioned. The examples use
`import volta_fn as vf`.

>>> import volta_fn as vf
>>> vf.vmap(vf.grad(vf.scipy.special.gammaln))(vf.numpy.array([3.0])).round(4)
Array([0.9228], dtype=float32)
"""

from volta_fn import lazy_imports as _lazy_imports

__getattr__, __dir__ = _lazy_imports.attach(__name__)
