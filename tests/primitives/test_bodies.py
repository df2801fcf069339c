"""Bodies of control flow.

Their carries, and loops and branches under `disable_jit`.
"""

from __future__ import annotations

import collections
import dataclasses
import gc
import threading
from collections.abc import Callable, Iterator
from typing import Any
from weakref import ref

import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as jnp
from volta_fn import lax
from volta_fn.compat import config
from volta_fn.core.jaxpr import ClosedJaxpr
from volta_fn.errors import DTypeError, ShapeError, TreeError
from volta_fn.primitives import scan

# When a body is traced again, and that nothing grows.

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


def test_callable_objects_are_traced_once_per_state() -> None:
    count, scale = 0, 1.0

    def scaled(x: Any) -> Any:
        nonlocal count
        count += 1  # by tracing itself
        return scale * x

    class Step:
        rate = 1.0

        def __init__(self, function: Any, options: collections.UserDict[str, Any]) -> None:
            self.function, self.options = function, options

        def __call__(self, carry: Any, x: Any) -> Any:
            return carry + self.rate * self.options["weights"][0] * self.function(x), None

    step = Step(scaled, collections.UserDict({"weights": (1.0, 2.0)}))
    assert [run(step), run(step), count] == [3.0, 3.0, 1]
    scale = 2.0
    assert [run(step), run(step), count] == [6.0, 6.0, 2]
    step.options["weights"] = (3.0,)
    assert run(step) == 18.0
    Step.rate = 2.0
    assert run(step) == 36.0
    step.rate = 0.5
    assert run(step) == 9.0
    step.function = lambda x: x
    assert run(step) == 4.5

    step.options["itself"] = step.options
    assert [run(step), run(step)] == [4.5, 4.5]

    state = np.ones(1, np.float32)  # may change unseen
    step.options["weights"] = state
    assert run(step) == 1.5
    state[0] = 4.0
    assert run(step) == 6.0


def test_objects_that_are_equal_or_unhashable_are_traced_for_themselves() -> None:
    @dataclasses.dataclass
    class Step:
        rate: float

        def __call__(self, carry: Any, x: Any) -> Any:
            return carry + self.rate * x, None

        def __hash__(self) -> int:
            return 1

    class Unhashable(Step):
        __hash__: Any = None

    class Slots:
        __slots__ = ("rate",)

        def __call__(self, carry: Any, x: Any) -> Any:
            return carry + self.rate * x, None

    slots = Slots()
    for rate in (1.0, 2.0):
        slots.rate = rate
        assert [run(step) for step in (Step(rate), Unhashable(rate), slots)] == [3.0 * rate] * 3


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
    functions = len(scan._caches)
    programs = sum(type(o) is ClosedJaxpr for o in gc.get_objects())
    steps = [once(i) for i in range(20)]
    gc.collect()
    assert all(step() is None for step in steps)
    assert len(scan._caches) <= functions
    assert sum(type(o) is ClosedJaxpr for o in gc.get_objects()) <= programs


@pytest.mark.wide
def test_other_settings_are_seen() -> None:
    def step(carry: Any, _: Any) -> Any:
        return carry @ carry, jnp.zeros(2)

    functions: list[Any] = [lambda x: lax.scan(step, x, None, length=1), vf.checkpoint(lambda x: step(x, None))]
    x = jnp.eye(2)

    def precision(function: Any) -> Any:
        (call,) = vf.make_jaxpr(function)(x).eqns
        return next(e.params.get("precision") for e in call.params["jaxpr"].eqns if e.primitive.name == "dot_general")

    for function in functions:
        assert precision(function) is None
        with config.default_matmul_precision("tensorfloat32"):
            assert precision(function) == "tensorfloat32"
        assert precision(function) is None
        with config.enable_x64(True):
            assert function(x)[1].dtype == np.float64 == vf.jit(function)(x)[1].dtype


@pytest.mark.wide
def test_programs_per_function_are_bounded() -> None:
    def step(carry: Any, x: Any) -> Any:
        return carry, x

    for n in range(scan._PROGRAMS + 5):
        lax.scan(step, np.zeros(n), XS)
    assert len(scan._caches.get(step).table("bodies")) <= scan._PROGRAMS


def test_functions_are_bounded() -> None:
    alive = []
    for _ in range(scan._FUNCTIONS + 5):

        def step(carry: Any) -> Any:
            return carry

        scan.trace_body(step, (0.0,), [vf.device_put(1.0).aval])
        alive.append(step)
    assert len(scan._caches) <= scan._FUNCTIONS


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


# Under `disable_jit` loops and branches call their functions with values.

#: Functions of an array, and how often the noted function runs for [0, 1, 2].
PROGRAMS: dict[str, tuple[Callable[[Callable[..., Any], Any], Any], int]] = {
    "scan": (lambda note, x: lax.scan(lambda c, v: (note(c + v), {"y": c * v}), 1.0, x), 3),
    "scan from the end": (lambda note, x: lax.scan(lambda c, v: (note(2 * c + v), c), 1.0, x, reverse=True), 3),
    "scan without rows": (lambda note, x: lax.scan(lambda c, _: (note(c * 2), None), x, None, length=4), 4),
    "carry of another dtype": (lambda note, x: lax.scan(lambda c, v: (note(c + v), c), 0, x), 4),  # the first step decides on it
    "fori_loop": (lambda note, x: lax.fori_loop(0, 5, lambda i, c: note(c + i * x), x), 5),
    "while_loop": (lambda note, x: lax.while_loop(lambda c: c.sum() < 50, lambda c: note(c * 2), x), 5),
    "cond": (lambda note, x: lax.cond(x[1] > 0, lambda v: note(v + 1), lambda v: v, x), 1),
    "switch": (lambda note, x: lax.switch(7, [lambda v: v, lambda v: note(v * 3)], x), 1),
    "map": (lambda note, x: lax.map(lambda v: note(v * 2), x), 3),
}


@pytest.fixture
def not_jitted() -> Iterator[None]:
    with vf.disable_jit():
        yield


@pytest.mark.parametrize("name", PROGRAMS)
def test_functions_see_values_and_results_are_those_of_programs(name: str) -> None:
    program, times = PROGRAMS[name]
    seen: list[np.ndarray] = []

    def note(value: Any) -> Any:
        seen.append(np.array(value))  # an error for a traced value
        return value

    x = jnp.arange(3.0)
    wanted = program(lambda value: value, x)
    with vf.disable_jit():
        actual = vf.jit(lambda x: program(note, x))(x)
    assert len(seen) == times
    assert vf.tree.structure(actual) == vf.tree.structure(wanted)
    for one, other in zip(vf.tree.leaves(actual), vf.tree.leaves(wanted), strict=True):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        np.testing.assert_array_equal(one, other)


def test_derivatives_and_maps(not_jitted: None) -> None:
    cube = lambda x: lax.scan(lambda c, _: (c * x, c), 1.0, None, length=3)[0]  # a function of one line
    assert float(vf.grad(cube)(2.0)) == 12
    np.testing.assert_array_equal(vf.vmap(cube)(jnp.arange(3.0)), [0, 1, 8])
    np.testing.assert_array_equal(vf.vmap(lambda n: lax.while_loop(lambda c: c < n, lambda c: c + 1, 0))(jnp.arange(3)), [0, 1, 2])
    np.testing.assert_array_equal(vf.vmap(lambda p: lax.cond(p, lambda: 1, lambda: 2))(jnp.array([True, False])), [1, 2])


def test_a_scan_of_no_steps_has_the_shapes_of_one(not_jitted: None) -> None:
    last, ys = lax.scan(lambda c, x: (c, jnp.stack([x, x])), 1.0, jnp.zeros((0, 3)))
    assert last == 1 and ys.shape == (0, 2, 3)


def test_references_are_written(not_jitted: None) -> None:
    total = vf.new_ref(0.0)

    def step(carry: Any, x: Any) -> Any:
        total[...] += x
        return carry, None

    lax.scan(step, None, jnp.arange(4.0))
    assert float(total[...]) == 6


@pytest.mark.parametrize(
    "call, error",
    [
        (lambda: lax.scan(lambda c, x: c, 0.0, jnp.ones(2)), TreeError),
        (lambda: lax.scan(lambda c, x: (x, None), 0.0, jnp.ones((2, 3))), ShapeError),
        (lambda: lax.scan(lambda c, x: ((c,), None), 0.0, jnp.ones(2)), TreeError),
        (lambda: lax.while_loop(lambda c: c, lambda c: c, 1.0), DTypeError),
        (lambda: lax.fori_loop(0, 2, lambda i, c: c.astype("int32"), jnp.float32(1)), DTypeError),
    ],
)
def test_mistakes_are_those_of_programs(call: Callable[[], Any], error: type[Exception]) -> None:
    with pytest.raises(error) as traced:
        call()
    with vf.disable_jit(), pytest.raises(error) as plain:
        call()
    assert str(plain.value) == str(traced.value)
