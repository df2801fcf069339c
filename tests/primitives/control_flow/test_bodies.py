"""When a body is traced again, and that nothing grows."""

from __future__ import annotations

import gc
import threading
from typing import Any
from weakref import ref

import numpy as np
import pytest

import volta_fn as vf
from volta_fn import lax
from volta_fn.core.jaxpr import ClosedJaxpr
from volta_fn.primitives.control_flow import bodies

XS = np.arange(3, dtype=np.float32)
traces: list[str] = []
factor: Any = 2.0


def counted(carry: Any, x: Any) -> Any:
    traces.append("scan")
    return carry + x * factor, carry


def run(f: Any, start: Any = 0.0, xs: Any = XS) -> float:
    return float(lax.scan(f, start, xs)[0])


@pytest.mark.wide
def test_a_function_is_traced_once_per_types() -> None:
    traces.clear()
    for _ in range(5):
        assert run(counted) == 6.0
    first = len(traces)
    run(counted, 1.0)
    assert len(traces) == first
    run(counted, 0.0, XS.astype(np.float64))
    assert len(traces) > first


def test_a_changed_global_or_cell_is_seen() -> None:
    global factor
    try:
        assert run(counted) == 6.0
        factor = vf.device_put(3.0)
        assert run(counted) == 9.0
    finally:
        factor = 2.0
    assert run(counted) == 6.0

    scale: Any = 1.0

    def closed(carry: Any, x: Any) -> Any:
        return carry + (lambda: scale * x)(), None

    assert run(closed) == 3.0
    scale = 5.0
    assert run(closed) == 15.0


def test_what_captured_a_tracer_is_not_kept() -> None:
    weight: Any = None

    def step(carry: Any, x: Any) -> Any:
        return carry * weight + x, None

    def value(w: Any) -> Any:
        nonlocal weight
        weight = w
        return lax.scan(step, 1.0, XS)[0]

    slopes = [float(vf.grad(value)(w)) for w in (0.5, 2.0)]
    assert slopes == [3 * 0.5**2 + 1, 3 * 2.0**2 + 1]
    weight = np.float32(2)
    assert run(step, 1.0) == ((1 * 2 + 0) * 2 + 1) * 2 + 2


def test_methods_see_their_object() -> None:
    class Model:
        rate = 1.0

        def step(self, carry: Any, x: Any) -> Any:
            return carry + self.rate * x, None

    model = Model()
    assert run(model.step) == 3.0
    model.rate = 2.0
    assert run(model.step) == 6.0


def test_named_axes_are_part_of_the_key() -> None:
    def step(carry: Any, x: Any) -> Any:
        return carry + x, None

    assert run(step) == 3.0
    assert np.asarray(vf.vmap(lambda c: lax.scan(step, c, XS)[0], axis_name="i")(XS)).tolist() == [3.0, 4.0, 5.0]


@pytest.mark.usefixtures("new_objects_only")
def test_functions_and_their_programs_die() -> None:
    def once(i: int) -> Any:
        big = np.ones(1000)

        def step(carry: Any, x: Any) -> Any:
            return carry + x + float(big[i]), None

        run(step)
        run(lambda c, x: (lax.cond(x > i, lambda v: v, lambda v: -v, c), None))
        lax.while_loop(lambda v: v < 10, lambda v: v + i + 1, 0)
        return ref(step)

    once(0)
    gc.collect()
    functions = len(bodies._cache.by_function)
    programs = sum(type(o) is ClosedJaxpr for o in gc.get_objects())
    steps = [once(i) for i in range(20)]
    gc.collect()
    assert all(step() is None for step in steps)
    assert len(bodies._cache.by_function) <= functions
    assert sum(type(o) is ClosedJaxpr for o in gc.get_objects()) <= programs


@pytest.mark.wide
def test_programs_per_function_are_bounded() -> None:
    def step(carry: Any, x: Any) -> Any:
        return carry, x

    for n in range(bodies._PROGRAMS + 5):
        lax.scan(step, np.zeros(n), XS)
    assert len(bodies._cache.by_function.get(step)) <= bodies._PROGRAMS


def test_functions_are_bounded() -> None:
    alive = []
    for _ in range(bodies._FUNCTIONS + 5):

        def step(carry: Any) -> Any:
            return carry

        bodies.trace_body(step, (0.0,), [vf.device_put(1.0).aval])
        alive.append(step)
    assert len(bodies._cache.by_function) <= bodies._FUNCTIONS


def test_threads_share_bodies() -> None:
    results: list[float] = []

    def work() -> None:
        for _ in range(50):
            results.append(run(counted))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [6.0] * 400
