"""Machine code of Fourier transforms beside NumPy's, in double precision."""

from __future__ import annotations

import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as vnp
from tests.targets.cpu.running import run_routine
from volta_fn.core.aval import ShapedArray
from volta_fn.primitives.fourier import fft_p
from volta_fn.runtime.llvm.host import host, vector_widths
from volta_fn.targets.cpu import fourier as routines
from volta_fn.targets.cpu import fourier as signals_in_memory
from volta_fn.targets.cpu import routine as writers
from volta_fn.targets.cpu.fourier import factors_of
from volta_fn.targets.cpu.target import ROUTINES

KINDS = {"FFT": np.fft.fft, "IFFT": np.fft.ifft, "RFFT": np.fft.rfft, "IRFFT": np.fft.irfft}
#: Shapes in time, and the axis: lengths of all factors, long and odd ones, rows and columns, full groups of signals and a rest, blocks,
#: and signals of too many numbers for a group, or too few for the lanes.
SHAPES = [
    *[((35, 4), 1), ((33, 16), 1), ((64, 1000), 1), ((40, 2 * 3 * 5 * 7), 0), ((3, 12, 37), 1), ((2, 50, 32), 1), ((32, 256), 1)],
    *[((31, 31), 0), ((31, 31), 1), ((17, 2 * 127), 1), ((18, 13 * 11), 1), ((20, 3), 1), ((16, 9, 18), 1)],
    *[((1, 1 << 13), 1), ((3, 1200), 1), ((2, 2 * 30 * 31), 1), ((1, 4 * 17 * 257 + 4 * 17), 1), ((1, 1, 5000, 1), 2)],
]


def signals(kind: str, shape: tuple[int, ...], axis: int, wide: bool) -> np.ndarray:
    rng = np.random.default_rng(3)
    if kind == "IRFFT":
        shape = (*shape[:axis], shape[axis] // 2 + 1, *shape[axis + 1 :])
    x = rng.normal(size=shape)
    if kind != "RFFT":
        x = x + 1j * rng.normal(size=shape)
    return x if wide else x.astype(np.float32 if kind == "RFFT" else np.complex64)


def check(kind: str, shape: tuple[int, ...], axis: int, wide: bool) -> bool:
    """Check that the routine, if there is one, gives the numbers in one piece and in three; return True if there is one."""
    x = signals(kind, shape, axis, wide)
    params = {"kind": kind, "length": shape[axis], "axis": axis}
    avals = (ShapedArray(x.shape, x.dtype),)
    routine, result = ROUTINES["fft"](avals, params), fft_p.result_avals(avals, params)
    if routine is None:
        return False
    (actual,) = run_routine(routine, [x], [(result.shape, result.dtype)])
    (again,) = run_routine(routine, [x], [(result.shape, result.dtype)], chunks=3)
    assert actual.tobytes() == again.tobytes()
    wanted = KINDS[kind](x.astype(np.longdouble if kind == "RFFT" else np.clongdouble), shape[axis], axis)
    eps = np.finfo(x.dtype).eps
    # an eps for each pass, of which the lengths have five at most
    assert np.abs(actual - wanted).max() <= 5 * eps * np.abs(wanted).max(), (shape, axis)
    return True


@pytest.mark.parametrize("wide", [False, True], ids=["single", "double"])
@pytest.mark.parametrize("kind", KINDS)
def test_transforms_are_numpys(kind: str, wide: bool) -> None:
    for shape, axis in SHAPES:
        assert check(kind, shape, axis, wide), (shape, axis)


@pytest.mark.parametrize("width", [width for width in vector_widths() if width <= host().vector_bytes])
@pytest.mark.parametrize("kind", KINDS)
def test_one_signal_by_vectors_of_every_width(kind: str, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The shortest signals that are a matrix, which has no fewer rows and columns than a vector has lanes."""
    narrow = host()._replace(vector_bytes=width)
    for module in (routines, signals_in_memory, writers):
        monkeypatch.setattr(module, "host", lambda: narrow)
    lanes = width // 8
    sides = [(lanes, lanes), (lanes, lanes + 1), (lanes + 1, lanes + 1)]
    lengths = [rows * columns * (2 if kind in ("RFFT", "IRFFT") else 1) for rows, columns in sides]
    routines_of_lengths = [check(kind, (1, length), 1, True) for length in lengths]
    assert routines_of_lengths == [lanes > 2 or kind in ("FFT", "IFFT"), True, True]


@pytest.mark.parametrize("kind", KINDS)
def test_no_signal_meets_another(kind: str) -> None:
    x = signals(kind, (33, 20), 1, False)
    x[5, 3] = np.nan
    result = np.asarray(vf.jit(lambda v: vf.lax.fft(v, kind, (20,)))(x))
    assert np.isnan(result[5]).all()
    assert np.isfinite(np.delete(result, 5, 0)).all()


def test_what_is_left_to_the_host() -> None:
    def routine(shape: tuple[int, ...], kind: str = "FFT") -> object:
        avals = (ShapedArray(shape, np.dtype(np.float32 if kind == "RFFT" else np.complex64)),)
        return ROUTINES["fft"](avals, {"kind": kind, "length": shape[1], "axis": 1})

    few = host().lanes(4) - 1
    assert factors_of(2 * 131) is None
    assert [routine(s) for s in ((100, 2 * 131), (few, 8), (3, 4096, few), (3, 8, few), (1, 2 * 4099))] == [None] * 5
    assert routine((1, 6561), "RFFT") is None  # one signal of an odd length
    assert routine((100, 0)) is not None


def test_gradients_and_eager_calls() -> None:
    x = vnp.asarray(signals("FFT", (33, 20), 1, False))
    for _ in range(4):
        eager = vnp.fft.fft(x)
    np.testing.assert_array_equal(np.asarray(eager), np.asarray(vf.jit(vnp.fft.fft)(x)))
    real = vnp.real(x)
    gradient = vf.jit(vf.grad(lambda v: vnp.sum(abs(vnp.fft.rfft(v)) ** 2)))(real)
    spectrum = np.fft.rfft(np.asarray(real, np.float64))
    ends = spectrum.copy()
    ends[:, 1:-1] = 0  # a full spectrum has the ends once, as half a one, and all others twice
    wanted = np.fft.irfft(spectrum + ends, 20) * 20
    np.testing.assert_allclose(np.asarray(gradient), wanted, rtol=1e-4, atol=1e-3)
