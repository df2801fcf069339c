"""Better shaders take the place of those that a program began with, once it is called again, and give the same bits."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import volta_fn as vf
from volta_fn.errors import DeviceError, OutOfMemoryError
from volta_fn.targets.gpu.pipelines import Pipelines
from volta_fn.targets.gpu.program import Call
from volta_fn.targets.wgsl.matmul import contract, tiles

GPU = vf.devices("gpu")[0]
#: Of sums of 40 products of normal numbers in float32, each rounded to 6e-8 of some 10 at most.
ROUNDED = 1e-5


@pytest.fixture
def shaders(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The shaders that are compiled from now on; those of all products by matrices are long."""
    monkeypatch.setattr(contract, "LITTLE", 0)
    monkeypatch.setattr(tiles, "_LONG", 1)
    results: list[str] = []
    assert GPU.backend.gpu, "the device is open, for which some are compiled, too"
    compiled = Pipelines._compiled

    def watched(self: Pipelines, source: str, *rest: Any) -> Any:
        results.append(source)
        return compiled(self, source, *rest)

    monkeypatch.setattr(Pipelines, "_compiled", watched)
    return results


def product(rows: int) -> tuple[Callable[[], np.ndarray], np.ndarray]:
    """Return a call of a jitted product on the GPU, with something done to the sums, and its result. Every size has a shader of its own."""
    rng = np.random.default_rng(rows)
    x, y = rng.standard_normal((rows, 40), np.float32), rng.standard_normal((40, 36), np.float32)
    jitted, placed = vf.jit(lambda x, y: (x @ y) * 0.5 + 1), vf.device_put((x, y), GPU)
    return lambda: np.asarray(jitted(*placed)), x.astype(np.float64) @ y * 0.5 + 1


def test_a_faster_shader_takes_the_place_of_the_first_one(shaders: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[Any] = []
    step = Call.step
    monkeypatch.setattr(Call, "step", lambda call, run: used.append(step(call, run)) or used[-1])
    call, wanted = product(44)
    first = call()
    np.testing.assert_allclose(first, wanted, atol=ROUNDED)
    assert len(shaders) == 1, "who calls it once does not wait for more"
    results = [call()]
    GPU.backend.gpu.pipelines.upgrades.settle()
    short, long = shaders
    assert long.count("fma(") > short.count("fma(") > 0
    results += [call(), call()]
    assert used[-1].pipeline != used[0].pipeline
    for x in results:
        assert x.tobytes() == first.tobytes()
    assert len(shaders) == 2, "it is asked for once"


def test_equal_products_ask_for_it_once(shaders: list[str]) -> None:
    calls = [product(52)[0] for _ in range(2)]
    for call in (*calls, *calls):
        call()
        GPU.backend.gpu.pipelines.upgrades.settle()
    assert len(shaders) == len({*shaders}) == 2


@pytest.mark.parametrize(("rows", "error"), [(60, DeviceError("this shader is too long")), (61, OutOfMemoryError("no room for it"))])
def test_the_first_one_stays_where_there_is_no_faster_one(
    shaders: list[str], monkeypatch: pytest.MonkeyPatch, rows: int, error: Exception
) -> None:
    def refused(self: Pipelines, key: Any, source: str) -> None:
        raise error

    monkeypatch.setattr(Pipelines, "replace", refused)
    call, wanted = product(rows)
    for _ in range(3):
        np.testing.assert_allclose(call(), wanted, atol=ROUNDED)
        GPU.backend.gpu.pipelines.upgrades.settle()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_nobody_waits_for_a_thread_that_failed(shaders: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(self: Pipelines, key: Any, source: str) -> None:
        raise RuntimeError("a fault of the compiler")

    monkeypatch.setattr(Pipelines, "replace", fails)
    call, wanted = product(68)
    for _ in range(3):
        np.testing.assert_allclose(call(), wanted, atol=ROUNDED)
    waiter = threading.Thread(target=GPU.backend.gpu.pipelines.upgrades.settle, daemon=True)
    waiter.start()
    waiter.join(30)
    assert not waiter.is_alive()
    for thread in threading.enumerate():
        if thread.name == "volta_fn compiles":  # its error is reported as it ends, which must not be in the next test
            thread.join(30)


def test_without_another_thread_the_first_one_stays(shaders: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    call, wanted = product(48)
    np.testing.assert_allclose(call(), wanted, atol=ROUNDED)

    def refused(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refused)
        np.testing.assert_allclose(call(), wanted, atol=ROUNDED)
        GPU.backend.gpu.pipelines.upgrades.settle()
    assert len(shaders) == 1
    other, wanted = product(49)
    for _ in range(2):
        np.testing.assert_allclose(other(), wanted, atol=ROUNDED)
    GPU.backend.gpu.pipelines.upgrades.settle()
    assert len(shaders) == 4, "the next request has those before it compiled, too"
