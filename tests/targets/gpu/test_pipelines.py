"""Pipelines: compiled ahead, on other threads, while a program is still being written, and released with their programs."""

from __future__ import annotations

import gc
import threading
from typing import Any

import numpy as np
import pytest

import volta_fn as vf
from volta_fn import lax
from volta_fn import numpy as jnp
from volta_fn.compiler.target import RoutineKey
from volta_fn.core.caches import LruCache
from volta_fn.errors import DeviceError
from volta_fn.targets.gpu.pipelines import Pipeline, Pipelines
from volta_fn.targets.gpu.program import Call
from volta_fn.targets.wgsl import target
from volta_fn.targets.wgsl.target import RoutineCache

GPU = vf.devices("gpu")[0]

_SHADER = """@group(0) @binding(0) var<storage, read_write> x: array<u32>;
@compute @workgroup_size(1) fn main() {{ x[0] = {value}; }}
"""


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """The shaders that are compiled from now on, each with the thread that does it."""
    results: list[tuple[str, int]] = []
    assert GPU.backend.gpu, "the device is open, for which some are compiled, too"
    make = Pipelines.make

    def watched(self: Pipelines, source: str, *rest: Any, **options: Any) -> Any:
        results.append((source, threading.get_ident()))
        return make(self, source, *rest, **options)

    monkeypatch.setattr(Pipelines, "make", watched)
    return results


def test_what_is_begun_is_there_in_the_end(compilations: list[tuple[str, int]]) -> None:
    pipelines = GPU.backend.gpu.pipelines
    keys = [(_SHADER.format(value=f"{value}u"), 1, frozenset([0])) for value in (71, 72, 71)]
    compiled: list[Pipeline] = []
    with pipelines.compile_ahead(compiled) as begin:
        for key in keys:
            begin(*key)
    assert sorted(source for source, _ in compilations) == sorted({source for source, _, _ in keys})
    assert threading.get_ident() not in [thread for _, thread in compilations]
    first, _, again = [pipelines.find(*key) for key in keys]
    assert first is again and set(compiled) == {first, pipelines.find(*keys[1])}
    assert len(compilations) == 2


def test_a_shader_that_cannot_be_compiled_is_an_error_in_the_end() -> None:
    with pytest.raises(DeviceError, match="cannot be compiled"), GPU.backend.gpu.pipelines.compile_ahead([]) as begin:
        begin(_SHADER.format(value="nothing_like_it"), 1, frozenset([0]))


def test_nothing_is_compiled_in_vain(compilations: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Shaders of convolutions are begun before it is known what else is done by the same dispatches."""

    def loss(w: Any, x: Any) -> Any:
        y = lax.conv_general_dilated(x, w, (1, 1), "SAME")
        return (y * jnp.tanh(y)).sum()

    w, x = [vf.device_put(np.ones(shape, np.float32) / 9, GPU) for shape in ((12, 8, 3, 3), (4, 8, 52, 52))]
    step = vf.jit(lambda w, x: (w - 0.125 * vf.grad(loss)(w, x), x + 1, jnp.exp(w)))
    done: list[str] = []
    one = Call.step
    monkeypatch.setattr(Call, "step", lambda call, run: done.append(run.source) or one(call, run))
    vf.block_until_ready(step(w, x))
    assert {source for source, _ in compilations} <= set(done)


def test_shaders_of_dropped_functions_are_released(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = GPU.backend.gpu
    pipelines = gpu.pipelines
    monkeypatch.setattr(pipelines, "_recent", LruCache(2))
    monkeypatch.setattr(gpu, "routines", RoutineCache())
    x = vf.device_put(np.arange(5, dtype=np.float32), GPU)
    retained = vf.jit(lambda x: x * 1234.5 + 0.25)
    first = np.asarray(retained(x))
    for number in range(10):
        vf.jit(lambda x, number=number: jnp.tanh(x * (number + 0.125)) + 0.0625)(x)
        if number == 4:
            gc.collect()
            pipelines._release_dropped()
            alive = len(pipelines._dropped._references)
    gc.collect()
    pipelines._release_dropped()
    assert len(pipelines._dropped._references) == alive
    np.testing.assert_array_equal(np.asarray(retained(x)), first)  # replayed
    np.testing.assert_array_equal(np.asarray(retained(vf.device_put(x + 0, GPU))), first)


def test_routines_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target, "_MOST_ROUTINES", 4)
    routines, generated = RoutineCache(), list[int]()
    key = lambda number: RoutineKey(number, lambda: generated.append(number))  # type: ignore[arg-type,func-returns-value]
    for number in (0, 0, *range(6), 5, 0):
        assert routines(key(number)) is None
    assert generated == [0, *range(1, 6), 0]
    assert len(routines._recent) == 4
