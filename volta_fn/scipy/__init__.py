"""The modules of SciPy that `jax.scipy` has.

`special` has functions, `linalg` factorisations, `sparse.linalg` iterative solvers, `stats` distributions and statistics, `signal` filters
and spectra, `fft` cosine transforms, `ndimage` and `interpolate` interpolation, `optimize` and `integrate` what their names say,
`spatial.transform` rotations, and `cluster.vq` vector quantisation.

>>> import volta_fn as vf
>>> vf.scipy.special.expit(vf.numpy.array([0.0, 2.0])).round(4)
Array([0.5   , 0.8808], dtype=float32)
"""

from volta_fn import lazy_imports as _lazy_imports

__getattr__, __dir__ = _lazy_imports.attach(__name__)
