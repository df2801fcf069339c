"""Discrete Fourier transforms with `jax.numpy.fft`'s names and meanings.

`transforms` calls the primitive (`primitives.fourier`); `frequencies` has the frequencies of a spectrum's elements.

Of infinite elements, a component of a result may be NaN on one target and a number on another: algorithms multiply them by zeros or not.

>>> import volta_fn.numpy as jnp
>>> jnp.fft.fft(jnp.array([1.0, 2.0, 3.0, 4.0])).round(4)
Array([10.+0.j, -2.+2.j, -2.+0.j, -2.-2.j], dtype=complex64)
"""

from volta_fn import lazy_imports as _lazy_imports

__getattr__, __dir__ = _lazy_imports.attach(__name__)
