"""Convolution, detrending and spectra of signals: names of `scipy.signal`.

`convolution` (direct and by Fourier transforms), `trends`, `spectra` (of segments of a signal) and `windows`. The examples use
`import volta_fn as vf`.

>>> import volta_fn as vf
>>> vf.scipy.signal.convolve(vf.numpy.array([1.0, 2.0, 3.0]), vf.numpy.array([1.0, -1.0]))
Array([ 1.,  1.,  1., -3.], dtype=float32)
"""

from volta_fn import lazy_imports as _lazy_imports

__getattr__, __dir__ = _lazy_imports.attach(__name__)
