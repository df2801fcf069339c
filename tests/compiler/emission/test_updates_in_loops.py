"""Arrays that loops update in a few places: each step changes them where they lie, and copies none."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest

import volta_fn as vf
from tests.targets.nvidia.planning import HOPPER
from volta_fn.compiler import pipeline
from volta_fn.compiler.target import TargetCapabilities
from volta_fn.targets.cpu.runtime.compile import build
from volta_fn.targets.numpy import indexing
from volta_fn.targets.nvidia.target import NvidiaTarget
from volta_fn.targets.wgsl.program_plan import plan_program
from volta_fn.targets.wgsl.target import RoutineCache, WgslTarget

EXAMPLES, SIZE, STEPS = 3, 4000, 6
RNG = np.random.default_rng(0)
BUFFER = RNG.standard_normal(SIZE).astype(np.float32)
BUFFERS = RNG.standard_normal((EXAMPLES, SIZE)).astype(np.float32)
STOPS = np.array([3, 6, 2], np.int32)
VALUES = np.array([-0.0, 2.5, -1.0], np.float32)
NUMBERS = np.arange(1, STEPS, dtype=np.int32)
MASK = np.array([True, False, False, True, True, False])

#: A library with JAX's names: this one or JAX.
Library = Any
VOLTA = SimpleNamespace(lax=vf.lax, numpy=vf.numpy, vmap=vf.vmap, grad=vf.grad, jit=vf.jit)

LOOPS: dict[str, tuple[Callable[..., Any], tuple[np.ndarray, ...]]] = {}


def loop(*args: np.ndarray) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        LOOPS[function.__name__] = function, args
        return function

    return register


def _masked(update: Callable[..., Any]) -> Callable[..., Any]:
    """Update a history until each example has made its number of steps."""

    def run(xp: Library, x: Any, stops: Any, values: Any) -> Any:
        def one(x: Any, stop: Any, v: Any) -> Any:
            step = lambda c: (c[0] + 1, update(xp, c[1], c[0], v))
            return xp.lax.while_loop(lambda c: c[0] < stop, step, (np.int32(0), x))[1]

        return xp.vmap(one)(x, stops, values)

    return run


for name, update in {
    "set": lambda xp, x, i, v: x.at[i].set(v),
    "add": lambda xp, x, i, v: x.at[i].add(v),
    "multiply": lambda xp, x, i, v: x.at[i].multiply(v),
    "min": lambda xp, x, i, v: x.at[i].min(v),
    "max": lambda xp, x, i, v: x.at[i].max(v),
    "set twice": lambda xp, x, i, v: x.at[i].set(v).at[i + 1].add(v),
    "set beyond the end": lambda xp, x, i, v: x.at[i + SIZE - 2].set(v, mode="drop").at[i + SIZE - 2].add(v, mode="clip"),
    "update of a slice": lambda xp, x, i, v: xp.lax.dynamic_update_slice(x, xp.numpy.stack([v, v]), (i,)),
    "a conditional": lambda xp, x, i, v: xp.lax.cond(v > 0, lambda x: x.at[i].set(v), lambda x: x, x),
    "a switch": lambda xp, x, i, v: xp.lax.switch(i % 3, [lambda x: x, lambda x: x.at[i].set(v), lambda x: x.at[0].add(v)], x),
}.items():
    LOOPS[f"masked {name}"] = _masked(update), (BUFFERS, STOPS, VALUES)

for name, dtype in {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}.items():
    LOOPS[f"masked add of {name}"] = _masked(lambda xp, x, i, v: x.at[i].add(v)), (BUFFERS.astype(dtype), STOPS, VALUES.astype(dtype))


@loop(BUFFERS, MASK.reshape(2, 3))
def masks_of_a_shared_index(xp: Library, x: Any, masks: Any) -> Any:
    where = lambda p, x, i: xp.numpy.where(p, x.at[i].set(7.0), x)
    step = lambda x, row: (xp.vmap(where, (0, 0, None))(row[1], x, row[0]), None)
    return xp.lax.scan(step, x, (NUMBERS[:2], masks))[0]


@loop(BUFFER, MASK)
def a_scalar_mask(xp: Library, x: Any, mask: Any) -> Any:
    step = lambda x, i: (xp.numpy.where(mask[i], x, x.at[i].set(x[i - 1] * 2)), None)
    return xp.lax.scan(step, x, NUMBERS)[0]


@loop(BUFFER)
def a_conditional(xp: Library, x: Any) -> Any:
    step = lambda i, x: xp.lax.cond(i % 2 == 0, lambda x: x.at[i].set(x[i + 1] * 2), lambda x: x, x)
    return xp.lax.fori_loop(0, STEPS, step, x)


@loop(BUFFER, BUFFER)
def a_switch_between_two_arrays(xp: Library, x: Any, y: Any) -> Any:
    branches = [
        lambda i, x, y: (x.at[i].set(3.0).at[i + 1].add(x[i]), y),
        lambda i, x, y: (x, y.at[i].set(x[i])),
        lambda i, x, y: (x, y),
    ]
    step = lambda c: (c[0] + 1, *xp.lax.switch(c[0] % 3, branches, *c))
    return xp.lax.while_loop(lambda c: c[0] < STEPS, step, (np.int32(0), x, y))[1:]


@loop(BUFFER)
def reads_after_the_update(xp: Library, x: Any) -> Any:
    def step(i: Any, carry: Any) -> Any:
        x, total = carry
        y = x.at[i].set(total)
        return y, total + x[i] * x[i + 1]

    return xp.lax.fori_loop(0, STEPS, step, (x, np.float32(1)))


@loop(BUFFER)
def nested_loops(xp: Library, x: Any) -> Any:
    inner = lambda i, x: xp.lax.fori_loop(0, 2, lambda j, x: x.at[i + j].add(x[j]), x)
    return xp.lax.fori_loop(0, STEPS, inner, x)


# Gradients of loops: cotangents of what steps read are added where they read it.


@loop(BUFFER, VALUES[1])
def gradient_of_a_history(xp: Library, x: Any, v: Any) -> Any:
    step = lambda x, i: (x.at[i].set(xp.numpy.sin(x[i - 1]) * v), x[i + 1])
    total = lambda x, v: sum(y.sum() for y in xp.lax.scan(step, x, NUMBERS))
    return xp.grad(total, (0, 1))(x, v)


@loop(BUFFER, VALUES[1])
def gradient_of_sums(xp: Library, x: Any, v: Any) -> Any:
    step = lambda x, i: (x.at[i].add(xp.numpy.sin(x[2 * i]) * v), None)
    return xp.grad(lambda x, v: (xp.lax.scan(step, x, NUMBERS)[0] ** 2).sum(), (0, 1))(x, v)


@loop(BUFFER, VALUES[1])
def gradient_of_a_table(xp: Library, x: Any, v: Any) -> Any:
    def total(x: Any, v: Any) -> Any:
        return xp.lax.scan(lambda s, i: (s * v + x[i] * x[i // 2], None), v, NUMBERS)[0]

    return xp.grad(total, (0, 1))(x, v)


@loop(BUFFERS, VALUES)
def gradient_of_batched_slices(xp: Library, x: Any, v: Any) -> Any:
    def one(x: Any, v: Any) -> Any:
        read = lambda x, i: xp.lax.dynamic_slice(x, (i,), (2,)).sum()
        step = lambda x, i: (xp.lax.dynamic_update_slice(x, xp.numpy.stack([v * read(x, i + 1), v]), (i,)), read(x, i) ** 2)
        out, reads = xp.lax.scan(step, x, NUMBERS)
        return out.sum() + reads.sum()

    return xp.vmap(xp.grad(one, (0, 1)))(x, v)


def _temporaries(name: str, target: Any) -> float:
    """Return the bytes between arguments and results, in arrays of the loop's."""
    function, args = LOOPS[name]
    lowered = vf.jit(partial(function, VOLTA)).lower(*args)
    if target is None:
        size = lowered.compile().memory_analysis().temp_size_in_bytes
    else:
        size = plan_program(lowered.jaxpr, (False,) * len(args), pipeline, target, RoutineCache()).memory.temporaries
    return size / max(x.nbytes for x in args)


#: None stands for the CPU.
TARGETS = {"cpu": None, "wgsl": WgslTarget(TargetCapabilities(float16=True)), "nvidia": NvidiaTarget(HOPPER)}


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
@pytest.mark.parametrize("name", LOOPS)
def test_steps_need_no_second_array(name: str, target: Any) -> None:
    primal = 1 if name.startswith("gradient") and name != "gradient_of_a_table" else 0
    assert _temporaries(name, target) < primal + 0.5


@pytest.mark.parametrize("name", [name for name in LOOPS if "gradient" not in name])
def test_the_cpu_wakes_no_threads_to_copy_nothing(name: str) -> None:
    function, args = LOOPS[name]
    program = build(vf.jit(partial(function, VOLTA)).lower(*args).jaxpr, (False,) * len(args), pipeline)
    assert program.launches and not any(launch.is_copy for launch in program.launches)


@pytest.mark.parametrize("platform", ["cpu", "gpu"])
@pytest.mark.parametrize("name", LOOPS)
def test_results(name: str, platform: str) -> None:
    function, args = LOOPS[name]
    out = vf.jit(partial(function, VOLTA))(*vf.device_put(args, vf.devices(platform)[0]))
    wanted = jax.jit(partial(function, jax))(*args)
    for one, other in zip(vf.tree.leaves(out), jax.tree.leaves(wanted), strict=True):
        if name.startswith("gradient"):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
        else:
            np.testing.assert_array_equal(one, other)


def test_numpy_copies_the_first_array_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vf.devices("cpu")[0].backend, "native", False)
    copies: list[bool] = []

    def counted(operand: np.ndarray, out: np.ndarray | None, *others: np.ndarray) -> np.ndarray:
        result = own(operand, out, *others)
        copies.append(result is not out)
        return result

    own = indexing._own
    monkeypatch.setattr(indexing, "_own", counted)
    for name, (function, args) in LOOPS.items():
        if name.startswith("masked") and "slice" not in name:
            copies.clear()
            out = vf.jit(partial(function, VOLTA))(*args)
            np.testing.assert_array_equal(out, jax.jit(partial(function, jax))(*args))
            assert copies.count(False) >= STOPS.max() - 1 and copies.count(True) == 1, name
