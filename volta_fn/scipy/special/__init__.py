"""Special functions with the names of `jax.scipy.special`.

`gamma_family` has the gamma function, its incomplete functions and Bernoulli's numbers; `polynomials` Bessel, Legendre and hypergeometric
functions; `exponential` sums of exponentials, functions of x log y, the error function's family and integrals; and `scipy_softmax` the
softmax with SciPy's default axis. Integers become floats; functions are elementwise, but for sums of exponentials and tables of
polynomials. The error of float64 is below 4e-12, relatively, where a function is well-conditioned. The examples use `import volta_fn as
vf`.

>>> import volta_fn as vf
>>> vf.vmap(vf.grad(vf.scipy.special.gammaln))(vf.numpy.array([3.0])).round(4)
Array([0.9228], dtype=float32)
"""

from volta_fn import lazy_imports as _lazy_imports

__getattr__, __dir__ = _lazy_imports.attach(__name__)
