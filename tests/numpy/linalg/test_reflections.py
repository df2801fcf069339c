"""The packed form of QR: NumPy's, and the same matrices from its reflections."""

from __future__ import annotations

import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as jnp

SHAPES = [(3, 3), (5, 2), (2, 4), (2, 4, 3), (1, 1)]


@pytest.mark.parametrize("dtype", ["float32", "complex64"])
@pytest.mark.parametrize("shape", SHAPES)
def test_packed_form(shape: tuple[int, ...], dtype: str) -> None:
    rng = np.random.default_rng(0)
    a = (rng.normal(size=shape) + (1j * rng.normal(size=shape) if dtype == "complex64" else 0)).astype(dtype)
    a[..., 1:, 0] *= a.shape[-1] > 3  # a column that is reduced already
    h, tau = vf.jit(lambda x: jnp.linalg.qr(x, mode="raw"))(a)
    expected = np.linalg.qr(a, mode="raw")
    np.testing.assert_allclose(h, expected[0], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(tau, expected[1], rtol=1e-4, atol=1e-5)
    packed = jnp.matrix_transpose(h)
    np.testing.assert_allclose(vf.lax.linalg.ormqr(packed, tau, jnp.triu(packed)), a, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", [(0, 2), (2, 0), (0, 0), (3, 0, 2)])
def test_the_packed_form_of_matrices_without_elements(shape: tuple[int, ...]) -> None:
    packed, factors = jnp.linalg.qr(np.ones(shape, np.float32), mode="raw")
    expected = np.linalg.qr(np.ones(shape, np.float32), mode="raw")
    assert (packed.shape, factors.shape) == (expected[0].shape, expected[1].shape)
