"""Probability distributions and statistics with the names of `jax.scipy.stats`.

Each distribution is a module. `loc` shifts it and `scale` stretches it. Functions are NaN for parameters outside their domain, and the
density is 0 outside the support. float16 and bfloat16 are computed in float32.

`univariate` declares distributions of numbers by formulas in standard form, from which `declarations` derives the public functions; it
has distributions of vectors, too. `summaries` has ranks, modes, standard errors and kernel density estimates.

>>> vf.scipy.stats.norm.logpdf(vf.numpy.array([0.0, 1.0])).round(4)
Array([-0.9189, -1.4189], dtype=float32)
"""

from volta_fn import lazy_imports as _lazy_imports

__getattr__, __dir__ = _lazy_imports.attach(__name__)
