"""Probability distributions and statistics with the names of `jax.scipy.stats`.

Each distribution is a module. `loc` moves it and `scale` stretches it; functions are NaN for parameters outside their domain, where the
density is 0 elsewhere. float16 and bfloat16 are computed in float32.

`declarations` tells how distributions are declared: by the formulas of their functions in standard form. `continuous`, `discrete` and
`multivariate` have the distributions, `kernel_density` estimates one from data, and `summaries` has ranks and other statistics.

>>> vf.scipy.stats.norm.logpdf(vf.numpy.array([0.0, 1.0])).round(4)
Array([-0.9189, -1.4189], dtype=float32)
"""

from volta_fn import lazy_imports as _lazy_imports

__getattr__, __dir__ = _lazy_imports.attach(__name__)
