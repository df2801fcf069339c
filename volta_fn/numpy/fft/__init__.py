"""Discrete Fourier transforms with `jax.numpy.fft`'s names and meanings.

`transforms` calls the primitive (`primitives.fourier`); `frequencies` has the frequencies of a spectrum's elements.

>>> import volta_fn.numpy as jnp
>>> jnp.fft.fft(jnp.array([1.0, 2.0, 3.0, 4.0])).round(4)
Array([10.+0.j, -2.+2.j, -2.+0.j, -2.-2.j], dtype=complex64)
"""

from volta_fn.numpy.fft.frequencies import fftfreq as fftfreq
from volta_fn.numpy.fft.frequencies import fftshift as fftshift
from volta_fn.numpy.fft.frequencies import ifftshift as ifftshift
from volta_fn.numpy.fft.frequencies import rfftfreq as rfftfreq
from volta_fn.numpy.fft.transforms import fft as fft
from volta_fn.numpy.fft.transforms import fft2 as fft2
from volta_fn.numpy.fft.transforms import fftn as fftn
from volta_fn.numpy.fft.transforms import hfft as hfft
from volta_fn.numpy.fft.transforms import ifft as ifft
from volta_fn.numpy.fft.transforms import ifft2 as ifft2
from volta_fn.numpy.fft.transforms import ifftn as ifftn
from volta_fn.numpy.fft.transforms import ihfft as ihfft
from volta_fn.numpy.fft.transforms import irfft as irfft
from volta_fn.numpy.fft.transforms import irfft2 as irfft2
from volta_fn.numpy.fft.transforms import irfftn as irfftn
from volta_fn.numpy.fft.transforms import rfft as rfft
from volta_fn.numpy.fft.transforms import rfft2 as rfft2
from volta_fn.numpy.fft.transforms import rfftn as rfftn
