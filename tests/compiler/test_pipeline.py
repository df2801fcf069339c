"""All passes together: random programs keep every bit, simplifying is kept and idempotent, and long programs take linear time."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import volta_fn as vf
import volta_fn.numpy as jnp
from tests.compiler.passes.common import names, passed, same_bits, special
from tests.samples import all_samples
from tests.test_random_programs import OPERATIONS, SHAPE, Operation, drawn, programs
from volta_fn import lax
from volta_fn.compiler import pipeline
from volta_fn.compiler.passes.simplify import simplify_equations
from volta_fn.compiler.pipeline import lower, passes_of, simplify
from volta_fn.compiler.target import ProgramPass, Target, TargetCapabilities
from volta_fn.core.jaxpr import ClosedJaxpr, primitives_of
from volta_fn.targets.cpu.target import TARGET as CPU
from volta_fn.targets.wgsl.target import WgslTarget
from volta_fn.transforms.differentiation import eliminate_dead_code

_ZERO, _MINUS_ZERO, _ONE = np.float32(0.0), np.float32(-0.0), np.float32(1.0)


def _scanned(x: Any, y: Any) -> Any:
    def step(carry: Any, row: Any) -> Any:
        total, fixed, dead = carry
        return (total * lax.tanh(fixed) + row, fixed, dead + 1.0), (total, lax.cos(fixed), row, total)

    (total, fixed, _), (first, second, third, fourth) = lax.scan(step, (x[0], y[0], _ZERO), y)
    return total + fixed - first + second * third - fourth


def _looped(x: Any, y: Any) -> Any:
    return lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1] * 0.5 + lax.sin(y), c[2], c[3] + 1), (0, x, y, 0))[1]


def _chosen(x: Any, y: Any) -> Any:
    first, _ = lax.cond(x[0, 0] < y[0, 0], lambda x, y: (x + y, lax.sin(x)), lambda x, y: (x - y, y), x, y)
    return lax.cond(True, lambda v: v * 1.0, lax.neg, first)


#: Beside the operations of the general sweep, those that the passes look for.
EXTRA: list[tuple[Callable[..., Any], int]] = [
    (lambda x: lax.neg(lax.neg(x)), 1),
    (lambda x: x * _ONE + _MINUS_ZERO, 1),
    (lambda x: x + _ZERO, 1),
    (lambda x: _ZERO - x, 1),
    (lambda x: x - _ZERO, 1),
    (lambda x: x / 2.0, 1),
    (lambda x: lax.abs(lax.neg(lax.abs(x))), 1),
    (lambda x: lax.reduce_max(x[None], (0,)), 1),
    (lambda x: lax.reduce_sum(x[None], (0,)), 1),
    (lambda x: lax.pow(x, np.asarray(2, x.dtype)), 1),
    (lambda x: lax.convert_element_type(lax.convert_element_type(x, "float64"), x.dtype), 1),
    (lambda x: lax.transpose(lax.transpose(x, (1, 0)), (1, 0)), 1),
    (lambda x: lax.stop_gradient(lax.rev(lax.rev(x, (0,)), (0,))), 1),
    (lambda x: lax.select_n(x < 0, lax.broadcast_in_dim(np.asarray(-0.0, x.dtype), x.shape, ()), x), 1),
    (lambda x: x * jnp.array([[1.0, -0.0, jnp.inf]], x.dtype), 1),
    (lambda x, y: x + lax.neg(y), 2),
    (lambda x, y: lax.neg(x) * lax.neg(y), 2),
    (lambda x, y: x * lax.broadcast_in_dim(lax.reduce_max(y, (0,)), SHAPE, (1,)), 2),
    (lambda x, y: x - lax.broadcast_in_dim(lax.reduce_min(y, (1,)), SHAPE, (0,)), 2),
    (lambda x, y: y * x + x * y, 2),
    (lambda x, y: lax.min(x, y) - lax.min(y, x), 2),
    (_scanned, 2),
    (_looped, 2),
    (_chosen, 2),
]
ALL = [*OPERATIONS, *[Operation(f"extra {i}", function, function, arity) for i, (function, arity) in enumerate(EXTRA)]]

steps = st.lists(st.tuples(st.integers(0, len(ALL) - 1), st.tuples(st.integers(0, 6), st.integers(0, 6))), min_size=3, max_size=20)


def run(chosen: list[Any], inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return all values of a program whose steps apply operations to earlier values; the last three are its outputs."""
    values = list(inputs)
    for number, sources in chosen:
        operation = ALL[number]
        values.append(operation.ours(*[values[-1 - s % len(values)] for s in sources[: operation.arity]]))
    return tuple(values[-3:])


def edge_values(seed: int, dtype: Any) -> list[np.ndarray]:
    """Return two arrays of which about half the elements are zeros, infinities, NaN and their like."""
    rng = np.random.default_rng(seed)
    plain, mask = drawn(seed, 2, dtype), rng.random((2, *SHAPE)) < 0.5
    return [np.where(m, rng.choice(special(dtype), SHAPE), p) for m, p in zip(mask, plain, strict=True)]


@given(chosen=steps, seed=st.integers(0, 1000), dtype=st.sampled_from([np.float32, np.float64]))
@settings(max_examples=60)
def test_random_programs_keep_every_bit(chosen: list[Any], seed: int, dtype: Any) -> None:
    with np.errstate(all="ignore"):
        inputs = edge_values(seed, dtype)
        passed(simplify, lambda x, y: run(chosen, (x, y)), *inputs)


@given(chosen=steps, seed=st.integers(0, 1000))
@settings(max_examples=30)
def test_random_gradients_keep_every_bit(chosen: list[Any], seed: int) -> None:
    loopless = [(n, s) for n, s in chosen if ALL[n].ours is not _looped]  # reverse mode does not pass a while loop
    loss = lambda x, y: run(loopless, (x, y))[-1].sum()
    with np.errstate(all="ignore"):
        passed(simplify, vf.grad(loss, argnums=(0, 1)), *drawn(seed, 2, np.float32))


@given(chosen=programs, seed=st.integers(0, 100))
@settings(max_examples=20)
def test_simplifying_is_kept_and_done_once(chosen: list[Any], seed: int) -> None:
    closed = vf.make_jaxpr(lambda x, y: run(chosen, (x, y)))(*drawn(seed, 2, np.float32))
    text = str(closed)
    once = simplify(closed)
    assert simplify(closed) is once
    assert simplify(once) is once
    assert str(closed) == text
    once.derived.clear()
    assert names(simplify(once)) == names(once)


def test_one_walk_is_enough() -> None:
    """What is equal only after other rules is merged, what is merged meets further rules, and so does what is folded."""
    one, two = np.float32(1), np.float32(2)
    closed = vf.make_jaxpr(lambda x: lax.max(lax.sin(x * one), lax.sin(x)) / lax.exp2(lax.floor(two)))(one)
    after = eliminate_dead_code(simplify_equations(closed))
    assert names(after) == ["sin", "mul"]
    assert simplify_equations(after) is after


def test_lowered_shows_both_programs() -> None:
    lowered = vf.jit(lambda x: lax.neg(lax.neg(x)) * 1.0 + lax.sin(x)).lower(np.float32(1))
    assert names(lowered.jaxpr) == ["neg", "neg", "mul", "sin", "add"]
    assert names(lowered.simplified) == ["sin", "add"]
    assert [s.eqn.primitive.name for s in lowered.numpy_plan.steps] == ["sin", "add"]


def test_equations_keep_their_lines() -> None:
    def function(x: Any) -> Any:
        y = x / 4.0
        return y - 1.0

    before = vf.make_jaxpr(function)(np.float32(1))
    assert [e.source.lineno for e in simplify(before).eqns] == [e.source.lineno for e in before.eqns]  # type: ignore[union-attr]


def test_a_softmax_and_its_gradient_have_no_needless_equation() -> None:
    def softmax(x: Any) -> Any:
        shifted = jnp.exp(x - x.max(-1, keepdims=True))
        return shifted / shifted.sum(-1, keepdims=True)

    after = passed(simplify, softmax, np.arange(6, dtype=np.float32).reshape(2, 3))
    assert names(after) == ["reduce_max", "reshape", "sub", "exp", "reduce_sum", "reshape", "div"]


def test_donated_inputs_and_outputs_that_are_inputs() -> None:
    step = vf.jit(lambda x, y: (x * 1.0, y - 0.0, x + y), donate_argnums=(0, 1))
    x, y = vf.device_put(np.arange(4.0)), vf.device_put(np.ones(4))
    retained, same, total = step(x, y)
    assert x.is_deleted() and y.is_deleted()
    same_bits(retained, np.arange(4.0))
    same_bits(same, np.ones(4))
    again = step(retained, total)
    same_bits(again[2], 2 * np.arange(4.0) + 1)
    same_bits(same, np.ones(4))


def test_one_array_twice_among_the_outputs_is_not_overwritten() -> None:
    twice = vf.jit(lambda x: (lax.sin(x), lax.sin(x)))
    first, second = twice(np.arange(4.0))
    grow = vf.jit(lambda a: a + 1.0, donate_argnums=0)
    grow(first)
    same_bits(second, np.sin(np.arange(4.0)))


@pytest.mark.parametrize("size", [20_000])
def test_long_programs(size: int) -> None:
    """Neither the stack nor a search through what was done limits the length."""

    def chain(x: Any) -> Any:
        for _ in range(size // 4):
            x = lax.neg(lax.neg(lax.sin(x) * 1.0))
        return x

    closed = vf.make_jaxpr(chain)(np.float32(1))
    assert names(simplify(closed)) == ["sin"] * (size // 4)
    assert len(pipeline.plan(closed).steps) == size // 4


def test_every_pass_has_a_name_and_a_sentence() -> None:
    for target in (Target(), WgslTarget(TargetCapabilities()), WgslTarget(TargetCapabilities(buffers=64))):
        result = passes_of(target)
        assert len({p.name for p in result}) == len(result) > 10
        assert all(p.description.endswith(".") and p.description.count(".") == 1 for p in result)


def test_targets_add_their_passes_in_order() -> None:
    names_of = [p.name for p in passes_of(WgslTarget(TargetCapabilities(buffers=64)))]
    order = ["loop fission", "attention", "one-hot indexing", "fusion", "aliases", "split-K", "deferred products", "horizontal fusion"]
    assert [n for n in names_of if n in order] == order


def test_a_program_is_lowered_once_for_a_target() -> None:
    closed = vf.make_jaxpr(lambda x: lax.sin(x) + 1.0)(np.ones(3, np.float32))
    target = Target()
    assert lower(closed, target) is lower(closed, target) is not lower(closed, Target())
    (item,) = lower(closed, target).items
    assert item.key is not None and item.key.make() is None  # this target generates nothing
    assert [s.primitive for s in lower(closed, target).host_steps()] == ["kernel"]


def test_nested_programs_are_lowered_with_their_equation() -> None:
    closed = vf.make_jaxpr(lambda x: lax.cond(x[0] > 0, lax.sin, lax.cos, x))(np.ones(3, np.float32))
    (item,) = [i for i in lower(closed, Target()).items if i.programs]
    assert [len(p.items) for p in item.programs] == [1, 1]


#: The passes that run on some programs only, for all targets.
PASSES_WITH_SUBJECTS = {
    (type(target).__name__, each.name): each
    for target in (CPU, WgslTarget(TargetCapabilities(buffers=64)))
    for each in passes_of(target)
    if isinstance(each, ProgramPass) and each.subjects
}


@pytest.mark.parametrize("key", PASSES_WITH_SUBJECTS, ids="-".join)
def test_passes_change_no_program_without_their_subjects(key: tuple[str, str]) -> None:
    """A pass that names too few primitives would not run on a program that it rewrites."""
    compiler_pass = PASSES_WITH_SUBJECTS[key]
    for program in sample_programs():
        if compiler_pass.subjects.isdisjoint(primitives_of(program)):
            assert compiler_pass.run(program) is program, str(program)


@functools.cache
def sample_programs() -> list[ClosedJaxpr]:
    """Return programs of all samples, as they are and optimised."""
    programs = []
    for sample in all_samples():
        dtype = next((d for d in ("float32", "int32", "complex64") if d in sample.dtypes), sample.dtypes[0])
        program = vf.make_jaxpr(sample.function)(*[vf.ShapeDtypeStruct(a.shape, a.dtype or dtype) for a in sample.args])
        programs += [program, pipeline.optimize(program)]
    return programs


@pytest.mark.parametrize("function", [_scanned, _looped, _chosen])
def test_passes_run_on_programs_with_their_subjects(function: Callable[..., Any]) -> None:
    program = vf.make_jaxpr(function)(np.ones(SHAPE, np.float32), np.ones(SHAPE, np.float32))
    changed = []
    with pipeline.observed(lambda each, before, after: changed.append(each.name) if after is not before else None):
        pipeline.optimize(program)
    assert set(changed) & {"known branches", "loop variance", "invariant code motion"}
