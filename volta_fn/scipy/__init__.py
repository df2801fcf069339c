"""The modules of SciPy that `jax.scipy` has.

`special` has functions, `linalg` factorisations, `sparse` iterative solvers (`sparse.linalg`), `stats` distributions and statistics,
`signal` convolutions and spectra, `fft` cosine transforms, `ndimage` and `interpolate` interpolation, `optimize` minimisation, `integrate`
the trapezoidal rule, `spatial` rotations (`spatial.transform`), and `cluster` vector quantisation (`cluster.vq`).

>>> import volta_fn as vf
>>> vf.scipy.special.expit(vf.numpy.array([0.0, 2.0])).round(4)
Array([0.5   , 0.8808], dtype=float32)
"""

from volta_fn import lazy_imports as _lazy_imports

__getattr__, __dir__ = _lazy_imports.attach(__name__)
