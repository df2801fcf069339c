"""Cosine transforms: SciPy's values for all types and norms, derivatives, errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.fft

import volta_fn as vf
from tests.narrow_devices import where_the_device_has_the_dtypes
from tests.numpy.oracle import BF16, assert_close, sample, widened
from volta_fn.errors import ArgumentError, ShapeError
from volta_fn.scipy import fft

DTYPES = [np.dtype(t) for t in (np.float16, BF16, np.float32, np.float64, np.int32, np.complex64, np.complex128)]
NORMS = [None, "backward", "ortho", "forward"]


def wide(x: np.ndarray) -> Any:
    """Return numbers for SciPy: of double precision, integers as well."""
    return x.astype(np.float64) if x.dtype.kind == "i" else widened(x)


@pytest.mark.wide
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("type_", [1, 2, 3, 4])
@pytest.mark.parametrize("name", ["dct", "idct"])
def test_one_axis(name: str, type_: int, dtype: np.dtype) -> None:
    x = sample((2, 7, 3), dtype)
    for norm in NORMS:
        for n, axis in ((None, 1), (5, -2), (8, 1), (2, -1), (1 + (type_ == 1), 0)):
            got = getattr(fft, name)(x, type_, n, axis, norm)
            assert_close(got, getattr(scipy.fft, name)(wide(x), type_, n, axis, norm), None, (norm, n, axis))
            assert got.dtype == (dtype if dtype.itemsize > 4 or dtype.kind == "c" else np.float32)


@pytest.mark.parametrize("type_", [1, 2, 3, 4])
@pytest.mark.parametrize("name", ["dctn", "idctn"])
def test_several_axes(name: str, type_: int) -> None:
    for dtype in (np.float32, np.float64):
        x = sample((2, 5, 4), dtype)
        for s, axes in ((None, None), ((3, 4), None), (6, None), (None, (0, -1)), ((5, 2), (0, 1)), (None, 1), (None, ())):
            for norm in NORMS if s is None else NORMS[:1]:
                with where_the_device_has_the_dtypes():
                    got = getattr(fft, name)(x, type_, s, axes, norm)
                    wanted = getattr(scipy.fft, name)(x.astype(float), type_, s, axes, norm) if axes != () else x
                    assert_close(got, wanted, None, (s, axes, norm))


@pytest.mark.wide
@pytest.mark.parametrize("type_", [1, 2, 3, 4])
def test_derivatives_batches_and_jit(type_: int) -> None:
    x = sample((3, 5), np.float64)
    for function in (fft.dct, fft.idct, fft.dctn, fft.idctn):
        one = lambda x, f=function: f(x, type_, norm="ortho")
        vf.test_util.check_grads(vf.jit(one), (x,), 2)
    np.testing.assert_allclose(vf.vmap(lambda row: fft.dct(row, type_))(x), fft.dct(x, type_), rtol=1e-12)


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda x: fft.dct(x, 5), ArgumentError), (lambda x: fft.dct(x, norm="unit"), ArgumentError),
        (lambda x: fft.idct(x, n=0), ArgumentError),
        (lambda x: fft.dct(x[:, :1], 1), ShapeError), (lambda x: fft.dct(x[:, :0]), ShapeError), (lambda x: fft.dct(x, axis=2), ShapeError),
        (lambda x: fft.dctn(x, s=(1, 2, 3)), ShapeError), (lambda x: fft.idctn(x, s=(1, 2), axes=(0,)), ArgumentError),
    ],
)  # fmt: skip
def test_errors(call: Callable[[Any], Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        call(np.ones((2, 2), np.float32))
