"""Fourier transforms written as products, as GPUs have them, against NumPy's."""

from __future__ import annotations

import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as vnp
from tests.numpy.oracle import sample
from volta_fn.compiler.passes.expansions import expand_fourier_transforms
from volta_fn.core.arrays.array import from_host
from volta_fn.core.staging import eval_jaxpr

CPU = vf.devices("cpu")[0]


@pytest.mark.parametrize("n", [1, 2, 3, 8, 61, 64, 65, 66, 67, 100, 134, 257, 1000, 1024])
def test_lengths(n: int) -> None:
    """Small ones, products of small and of large factors, a prime that is a factor, primes that are convolved, and a power of two."""
    whole = sample((2, n), np.complex128, n)
    half = whole[:, : n // 2 + 1]
    for name, x, options in (("fft", whole, {}), ("ifft", whole, {}), ("rfft", whole.real.copy(), {}), ("irfft", half, {"n": n})):
        with vf.default_device(CPU):
            program = vf.jit(lambda x, name=name, options=options: getattr(vnp.fft, name)(x, **options)).lower(x).jaxpr
            written = expand_fourier_transforms(program)
            (got,) = eval_jaxpr(written, from_host(x))
        assert all(eqn.primitive.name != "fft" for eqn in written.eqns)
        wanted = getattr(np.fft, name)(x, **options)
        assert got.dtype == wanted.dtype
        np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-14 * max(np.abs(wanted).max(), 1), err_msg=name)  # seen: 2e-15


def test_other_axes_and_programs_without_transforms() -> None:
    x = sample((3, 5, 2), np.complex128, 1)
    with vf.default_device(CPU):
        program = vf.jit(lambda x: vnp.fft.fft(x, axis=1)).lower(x).jaxpr
        (got,) = eval_jaxpr(expand_fourier_transforms(program), from_host(x))
        np.testing.assert_allclose(got, np.fft.fft(x, axis=1), atol=1e-14)
        other = vf.jit(lambda x: x + 1).lower(x).jaxpr
    assert expand_fourier_transforms(other) is other
