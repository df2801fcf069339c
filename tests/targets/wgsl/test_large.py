"""Arrays larger than a binding are bound in parts, and long work is done in portions: the results are what they are without."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.signal

import volta_fn as vf
from volta_fn import lax, nn
from volta_fn import numpy as jnp
from volta_fn.compiler.emission import CommandScope, Slot
from volta_fn.compiler.target import TargetCapabilities
from volta_fn.core.devices.device import Device
from volta_fn.targets.gpu.backend import GpuBackend
from volta_fn.targets.wgsl import writer
from volta_fn.targets.wgsl.commands import put_row, range_of, take_row

GPU = vf.devices("gpu")[0]
RNG = np.random.default_rng(0)


def normal(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


ROWS, CHOSEN = normal(97, 33), RNG.integers(0, 97, 150).astype(np.int32)
IMAGES, TAPS = normal(2, 3, 31, 31), normal(4, 3, 3, 3)


def scattered(t: np.ndarray, i: np.ndarray) -> np.ndarray:
    result = t.copy()
    np.add.at(result, i, t[i])
    return result


def convolved(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    return np.array([[sum(scipy.signal.correlate(a, b, "same") for a, b in zip(xs, ws, strict=True)) for ws in w] for xs in x])


#: A function of each kind of kernel, its arguments, and NumPy's.
CASES: dict[str, tuple[Callable[..., Any], tuple[np.ndarray, ...], Callable[..., Any]]] = {
    "elementwise": (lambda t: (t * 2 + 1, (t > 0).astype("int8")), (ROWS,), lambda t: (t * 2 + 1, (t > 0).astype("int8"))),
    "product": (lambda t: jnp.tanh(t @ t[:24].T), (ROWS,), lambda t: np.tanh(t @ t[:24].T)),
    "columns": (lambda t: (t.sum(0), t.argmax(0), t.sum()), (ROWS,), lambda t: (t.sum(0), t.argmax(0), t.sum())),
    "rows": (lambda t: nn.softmax(t.reshape(-1)), (ROWS,), lambda t: np.exp(t).ravel() / np.exp(t).sum()),
    "movement": (lambda t: jnp.pad(t.T, 1) + 1, (ROWS,), lambda t: np.pad(t.T, 1) + 1),
    "joined": (lambda t: jnp.concatenate([t, t[::-1]]), (ROWS,), lambda t: np.concatenate([t, t[::-1]])),
    "gather": (lambda t, i: t[i], (ROWS, CHOSEN), lambda t, i: t[i]),
    "scatter": (lambda t, i: t.at[i].add(t[i]), (ROWS, CHOSEN), scattered),
    "atomics": (lambda t, i: t.at[i].add(t[i]), ((ROWS * 9).astype(np.int32), CHOSEN), scattered),
    "sort": (lambda t: jnp.sort(t, 0), (ROWS,), lambda t: np.sort(t, 0)),
    "cumulative": (lambda t: jnp.cumsum(t, 0), (ROWS,), lambda t: np.cumsum(t, 0)),
    "halves": (lambda t: t.astype("float16").T.sum(0), (ROWS,), lambda t: t.astype(np.float16).astype(np.float32).sum(1)),
    "convolution": (lambda x, w: lax.conv_general_dilated(x, w, (1, 1), "SAME"), (IMAGES, TAPS), convolved),
    "scan": (lambda t: lax.scan(lambda c, x: (c + x, c * x), t[0], t)[0], (ROWS,), lambda t: t[0] + t.sum(0)),
    "in place": (lambda t: lax.fori_loop(0, 3, lambda i, c: c * 0.5 + 1, t), (ROWS,), lambda t: t / 8 + 1.75),
}


def seeing(size: int) -> Device:
    """Return a device that sees so many bytes through one binding."""
    device = Device("gpu", 0, GPU.device_kind, GpuBackend(GPU.backend.handle.adapter))
    device.backend.gpu.target.capabilities = device.backend.gpu.target.capabilities._replace(binding=size)
    return device


@pytest.fixture(scope="module")
def least() -> Device:
    """A device that sees 8 KiB through one binding."""
    return seeing(1 << 13)


@pytest.mark.parametrize("name", CASES)
def test_arrays_larger_than_a_binding(name: str, least: Device) -> None:
    function, arguments, reference = CASES[name]
    with vf.default_device(least):
        result = vf.tree.leaves(vf.jit(function)(*map(jnp.asarray, arguments)))
    wanted = vf.tree.leaves(reference(*arguments))
    for actual, expected in zip(result, wanted, strict=True):
        # Numbers of 16 bits, rounded to 1 in 2048 after each operation; else float32's sums in another order.
        rtol, atol = (2e-3, 2e-2) if name == "halves" else (1e-5, 1e-4)
        np.testing.assert_allclose(np.asarray(actual), expected, rtol=rtol, atol=atol)
    assert not least.backend.counters.host_steps


def test_long_columns_of_an_array_larger_than_a_binding() -> None:
    """The columns of a piece are cut into chunks, whose sums need memory of their own."""
    x = normal(512, 400, 4)
    with vf.default_device(seeing(1 << 21)):
        result = vf.jit(lambda x: (x.sum(1), x.argmax(1)))(x)
    # 400 numbers are added in another order, and sums may be near 0; seen: 5e-5.
    np.testing.assert_allclose(np.asarray(result[0]), x.sum(1), rtol=1e-5, atol=1e-3)
    np.testing.assert_array_equal(np.asarray(result[1]), x.argmax(1))


def test_arrays_of_more_elements_than_can_be_numbered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of what is in memory count; what a kernel only makes on its way may have more."""
    monkeypatch.setattr(writer, "ELEMENTS", 1000)
    with vf.default_device(GPU):
        x = vf.device_put(np.arange(1001, dtype=np.int32), GPU)
        with pytest.raises(vf.errors.OutOfMemoryError, match=r"1001 elements is more than .* number, 1000; split it"):
            vf.jit(lambda x: x * 3 - 1)(x)
        assert int(vf.jit(lambda x: (x[:, None] * x[None]).max())(jnp.arange(97))) == 96 * 96
        pairs = jnp.ones(600, "complex64")  # 1200 words, which shaders of equations may number
        assert vf.jit(lambda x: x * 2)(pairs)[0] == 2
        with pytest.raises(vf.errors.OutOfMemoryError, match="1200 elements is more than"):
            vf.jit(jnp.sort)(pairs)


@pytest.mark.parametrize("size", [1, 2, 3, 6, 10, 240_004])
def test_rows_of_the_largest_arrays_are_at_offsets_of_32_bits(size: int) -> None:
    """Also where the bytes of an array are more than 32 bits can number."""
    itemsize = math.gcd(size, 4)
    row, rows, index = (range_of(Slot(CommandScope(None)), n) for n in (size, 4 * size, 4))
    for run in (take_row(row, rows, index, size, TargetCapabilities()), put_row(rows, row, index, size, TargetCapabilities())):
        (factor,) = map(int, re.findall(r"index\[0\] \* (\d+)u", run.source))
        assert factor * (writer.ELEMENTS * itemsize // size + 1) < 1 << 32


@pytest.mark.parametrize("groups", [65535, 40])
def test_long_work_is_done_in_portions(groups: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With grids of one and of two dimensions, and in branches, whose grids are read from a buffer."""
    device = Device("gpu", 0, GPU.device_kind, GpuBackend(GPU.backend.handle.adapter))
    gpu = device.backend.gpu
    gpu.target.capabilities = gpu.target.capabilities._replace(groups=groups)
    monkeypatch.setattr(writer, "MOST_WORK", 1 << 16)

    def step(x: Any, w: Any) -> Any:
        y = lax.cond(x[0, 0] < 100, lambda: x @ w, lambda: x * 2)
        return y, lax.conv_general_dilated(y.reshape(1, 4, 40, 100), jnp.ones((4, 4, 3, 3)), (1, 1), "SAME"), (y[:, None] - w[None]).max(-1)

    x, w = normal(160, 100), normal(100, 100)
    with vf.default_device(device):
        before = gpu.counters.submissions
        y, z, d = map(np.asarray, vf.jit(step)(x, w))
        assert gpu.counters.submissions - before > 20
    np.testing.assert_allclose(y, x @ w, rtol=1e-4, atol=1e-4)
    # Sums of 36 of such sums: up to some hundreds, of numbers of both signs.
    np.testing.assert_allclose(z, convolved(y.reshape(1, 4, 40, 100), np.ones((4, 4, 3, 3))), rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(d, (y[:, None] - w[None]).max(-1), rtol=1e-6)
