"""Samples of Fourier transforms: one axis, several, even, odd, prime lengths."""

from __future__ import annotations

import numpy as np

from tests.samples.sample import COMPLEX, Arg, Sample
from volta_fn import lax
from volta_fn.dtypes import complex_dtype, real_dtype

REAL = ("float32", "float64")

SAMPLES = [
    Sample("fft", lambda x: lax.fft(x, "FFT", (6,)), (Arg((2, 6)),), np.fft.fft, dtypes=COMPLEX, linear=(0,)),
    Sample("fft", lambda x: lax.fft(x, lax.FftType.FFT, (4, 3)), (Arg((4, 3)),), np.fft.fft2, dtypes=COMPLEX, linear=(0,), label="plane"),
    Sample("fft", lambda x: lax.fft(x, "FFT", (67,)), (Arg((67,)),), np.fft.fft, dtypes=COMPLEX, linear=(0,), label="long prime"),
    Sample("fft", lambda x: lax.fft(x, "FFT", (3,)), (Arg((0, 3)),), np.fft.fft, dtypes=COMPLEX, label="no lines"),
    Sample("fft", lambda x: lax.fft(x, "IFFT", (5,)), (Arg((5,)),), np.fft.ifft, dtypes=COMPLEX, linear=(0,), label="inverse"),
    *[
        sample
        for n in (5, 6)
        for sample in (
            Sample(
                "fft", lambda x, n=n: lax.fft(x, "RFFT", (3, n)), (Arg((2, 3, n)),), lambda x, n=n: np.fft.rfft2(x),
                dtypes=REAL, result_dtype=complex_dtype, linear=(0,), label=f"half of {n}",
            ),
            Sample(
                "fft", lambda x, n=n: lax.fft(x, "IRFFT", (3, n)), (Arg((2, 3, n // 2 + 1)),), lambda x, n=n: np.fft.irfft2(x, (3, n)),
                dtypes=COMPLEX, result_dtype=real_dtype, linear=(0,), label=f"from half of {n}",
            ),
        )
    ],
]  # fmt: skip
