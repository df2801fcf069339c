"""Spectra of segments: SciPy's values, derivatives, errors and warnings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import scipy.signal

import volta_fn as vf
from tests.numpy.oracle import assert_close, sample
from volta_fn import lazy_imports
from volta_fn.errors import ArgumentError, MissingDependencyError, ShapeError
from volta_fn.scipy import signal

DTYPES = ["float32", "float64", "complex128"]
SEGMENTS: list[dict[str, Any]] = [
    {"nperseg": 16}, {"nperseg": 15, "noverlap": 3}, {"nperseg": 16, "nfft": 24}, {"nperseg": 15, "nfft": 17}, {"window": np.hanning(10)},
    {"nperseg": 12, "window": "hamming", "return_onesided": False}, {"nperseg": 12, "window": ("kaiser", 3.0), "noverlap": 0},
    {"nperseg": 8, "detrend": "linear"}, {"nperseg": 8, "detrend": False}, {"nperseg": 1},
]  # fmt: skip


def agree(got: Sequence[Any], wanted: Sequence[Any], where: Any) -> None:
    """Compare all arrays."""
    assert len(got) == len(wanted)
    for mine, theirs in zip(got, wanted, strict=True):
        assert mine.shape == theirs.shape, where
        assert_close(mine, theirs, 2e-5 if mine.dtype.itemsize < 16 and mine.dtype != np.float64 else 1e-11, where)


def signals(dtype: str, axis: int) -> tuple[np.ndarray, np.ndarray]:
    """Return two signals along an axis."""
    return np.moveaxis(sample((2, 3, 64), dtype, 1), -1, axis), np.moveaxis(sample((2, 3, 64), dtype, 2), -1, axis)


@pytest.mark.filterwarnings("ignore:Input data is complex")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("options", SEGMENTS, ids=str)
def test_powers(options: dict[str, Any], dtype: str) -> None:
    for axis, more in ((-1, {}), (0, {"scaling": "spectrum"}), (1, {"average": "median"})):
        x, y = signals(dtype, axis)
        settings = {"fs": 2.5, "axis": axis, **options, **more}
        agree(signal.welch(x, **settings), scipy.signal.welch(x, **settings), more)
        agree(signal.csd(x, y, **settings), scipy.signal.csd(x, y, **settings), more)


@pytest.mark.wide
def test_signals_of_several_lengths() -> None:
    x, y = sample((2, 40), np.float64, 1), sample((2, 33), np.float64, 2)
    agree(signal.csd(x, y, nperseg=8), scipy.signal.csd(x, y, nperseg=8), "zeros")
    agree(signal.csd(x, None, nperseg=8), scipy.signal.csd(x, x, nperseg=8), "one signal")
    agree(signal.welch(x), scipy.signal.welch(x, nperseg=40), "nperseg is 256, or the length")


@pytest.mark.filterwarnings("ignore:Input data is complex")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("options", SEGMENTS[:-1], ids=str)
def test_short_time_transforms(options: dict[str, Any], dtype: str) -> None:
    options = {"nperseg": 10} | options
    for axis, boundary, padded in ((-1, "zeros", True), (0, "even", False), (1, "odd", True), (-1, "constant", True), (1, None, True)):
        x, _ = signals(dtype, axis)
        settings = {"fs": 2.5, "axis": axis, "boundary": boundary, "padded": padded, **options}
        agree(signal.stft(x, **settings), scipy.signal.stft(x, **settings), (axis, boundary))


@pytest.mark.filterwarnings("ignore:NOLA")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("options", SEGMENTS[:6], ids=str)
def test_inverses(options: dict[str, Any], dtype: str) -> None:
    options = {"nperseg": 10} | options
    onesided = options.pop("return_onesided", True) and not dtype.startswith("complex")
    for axis, boundary in ((2, "zeros"), (0, None)):
        x, _ = signals(dtype, axis)
        spectra = scipy.signal.stft(x, boundary=boundary, return_onesided=onesided, axis=axis, **options)[2].astype(
            np.complex64 if dtype == "float32" else np.complex128
        )
        settings = {"input_onesided": onesided, "boundary": boundary is not None, "freq_axis": axis, **options}
        times, got = signal.istft(spectra, 2.5, **settings)
        wanted = scipy.signal.istft(spectra, 2.5, **settings)[1]
        agree([got], [wanted], axis)
        assert_close(times, np.arange(got.shape[-1]) / 2.5, 1e-6)


@pytest.mark.wide
def test_axes_of_inverses() -> None:
    spectra = scipy.signal.stft(sample((2, 40), np.float64), nperseg=8)[2]
    wanted = scipy.signal.istft(spectra)[1]
    for axes in ((0, 2, 1), (1, 2, 0), (2, 1, 0)):
        arguments = np.transpose(spectra, axes)
        where = {"freq_axis": axes.index(1), "time_axis": axes.index(2)}
        theirs = scipy.signal.istft(arguments, **where)[1]
        assert_close(signal.istft(arguments, **where)[1], theirs)
        assert sorted(theirs.shape) == sorted(wanted.shape)


@pytest.mark.wide
def test_derivatives_batches_and_jit() -> None:
    x = sample((2, 24), np.float64)
    for call in (
        lambda x: signal.welch(x, nperseg=8)[1],
        lambda x: signal.csd(x, x[::-1] ** 2, nperseg=8, average="median")[1].real,
        lambda x: abs(signal.stft(x, nperseg=8)[2]),
        lambda x: signal.istft(signal.stft(x, nperseg=8)[2] * 2)[1],
        lambda x: signal.welch(x, fs=x[0, 0], window=x[0, :6] ** 2)[1],
    ):
        vf.test_util.check_grads(vf.jit(call), (x,), 1)
        stack = np.stack([x, x + 1])
        np.testing.assert_allclose(vf.vmap(call)(stack)[1], call(x + 1), rtol=1e-9, atol=1e-12)


def test_narrow_floats() -> None:
    assert signal.stft(np.ones(8, np.float16), nperseg=4)[2].dtype == np.complex64
    assert signal.welch(np.ones(8, np.int32), nperseg=4)[1].dtype == np.float32
    assert signal.welch(np.ones(8, np.float32), nperseg=4, detrend=lambda x: 0 * x)[1].sum() == 0


def test_long_segments_warn() -> None:
    with pytest.warns(UserWarning, match="longer than the signal"):
        frequencies, _ = signal.welch(np.ones(8, np.float32), nperseg=16)
    assert frequencies.shape == (5,)


def test_windows_of_scipy_need_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lazy_imports, "is_installed", lambda package: False)
    signal.welch(np.ones(8, np.float32), nperseg=4)
    with pytest.raises(MissingDependencyError):
        signal.welch(np.ones(8, np.float32), nperseg=4, window="hamming")


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda x: signal.welch(x, nperseg=4, noverlap=4), ArgumentError), (lambda x: signal.welch(x, nperseg=4, nfft=3), ArgumentError),
        (lambda x: signal.welch(x, nperseg=0), ArgumentError), (lambda x: signal.welch(x, scaling="power"), ArgumentError),
        (lambda x: signal.csd(x, x, average="mode"), ArgumentError), (lambda x: signal.welch(x[:0]), ShapeError),
        (lambda x: signal.csd(x, x[:0]), ShapeError), (lambda x: signal.csd(x[:0], x), ShapeError),
        (lambda x: signal.welch(x, window=np.ones(9)), ShapeError), (lambda x: signal.welch(x, window=np.ones(3), nperseg=4), ShapeError),
        (lambda x: signal.stft(x, nperseg=4, boundary="wrap"), ArgumentError), (lambda x: signal.istft(x), ShapeError),
        (lambda x: signal.istft(x.reshape(2, 4), freq_axis=1), ArgumentError),
        (lambda x: signal.istft(x.reshape(2, 4), nfft=1), ArgumentError),
    ],
)  # fmt: skip
def test_errors(call: Callable[[Any], Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        call(np.ones(8, np.float32))


@pytest.mark.wide
def test_python_floats_keep_their_digits() -> None:
    x = sample((40,), np.float64)
    agree(signal.welch(x, fs=0.1, nperseg=8), scipy.signal.welch(x, fs=0.1, nperseg=8), "welch")
    agree(signal.stft(x, fs=0.1, nperseg=8), scipy.signal.stft(x, fs=0.1, nperseg=8), "stft")
    assert_close(signal.istft(signal.stft(x, nperseg=8)[2], 0.1)[0], np.arange(40) / 0.1)


def test_one_signal_beside_many() -> None:
    x, y = sample((64,), np.float64, 1), sample((2, 64), np.float64, 2)
    agree(signal.csd(x, y, nperseg=16), scipy.signal.csd(x, y, nperseg=16), "one and many")
    agree(signal.csd(y, x, nperseg=16), scipy.signal.csd(y, x, nperseg=16), "many and one")
