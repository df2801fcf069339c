"""Schedules against Optax over many steps, given as ints and arrays, traced and not; schedules of schedules; the plateau."""

from __future__ import annotations

import numpy as np
import pytest

import volta_fn as vf
from tests.narrow_devices import where_the_device_has_the_dtypes
from volta_fn import optim
from volta_fn.errors import ArgumentError, ArgumentTypeError

CYCLE = {"init_value": 0.1, "peak_value": 1.0, "warmup_steps": 3, "decay_steps": 12, "end_value": 0.2}
SCHEDULES = {
    "constant": lambda o: o.constant_schedule(0.3),
    "linear": lambda o: o.linear_schedule(0.1, 1.0, 10),
    "linear later": lambda o: o.linear_schedule(1.0, 0.1, 10, transition_begin=5),
    "linear of no steps": lambda o: o.linear_schedule(1.0, 0.1, 0),
    "polynomial": lambda o: o.polynomial_schedule(1.0, 0.1, 2.5, 20, transition_begin=3),
    "polynomial from before": lambda o: o.polynomial_schedule(1.0, 0.1, 3, 20, transition_begin=-3),
    "steps": lambda o: o.piecewise_constant_schedule(1.0, {5: 0.5, 20: 0.1, 12: 3.0}),
    "no steps": lambda o: o.piecewise_constant_schedule(1.0),
    "exponential": lambda o: o.exponential_decay(1.0, 7, 0.6),
    "exponential stairs": lambda o: o.exponential_decay(1.0, 7, 0.6, transition_begin=4, staircase=True),
    "exponential to the end": lambda o: o.exponential_decay(1.0, 7, 0.6, end_value=0.3),
    "exponential growth": lambda o: o.exponential_decay(1.0, 7, 1.6, end_value=5.0),
    "exponential of rate 0": lambda o: o.exponential_decay(1.0, 7, 0.0),
    "cosine": lambda o: o.cosine_decay_schedule(1.0, 25, alpha=0.1),
    "cosine squared": lambda o: o.cosine_decay_schedule(1.0, 25, exponent=2.0),
    "interpolated lines": lambda o: o.piecewise_interpolate_schedule("linear", 1.0, {5: 0.5, 20: 3.0}),
    "interpolated waves": lambda o: o.piecewise_interpolate_schedule("cosine", 1.0, {5: 0.5, 20: 3.0}),
    "linear onecycle": lambda o: o.linear_onecycle_schedule(30, 1.0),
    "linear onecycle of few steps": lambda o: o.linear_onecycle_schedule(2, 1.0),
    "cosine onecycle": lambda o: o.cosine_onecycle_schedule(30, 1.0, pct_start=0.2),
    "warmup constant": lambda o: o.warmup_constant_schedule(0.1, 1.0, 7),
    "warmup cosine": lambda o: o.warmup_cosine_decay_schedule(0.1, 1.0, 7, 30, 0.05),
    "warmup exponential": lambda o: o.warmup_exponential_decay_schedule(0.1, 1.0, 7, 10, 0.5, staircase=True, end_value=0.3),
    "restarts": lambda o: o.sgdr_schedule([CYCLE, {**CYCLE, "peak_value": 0.5, "decay_steps": 20}]),
    "joined": lambda o: o.join_schedules([o.linear_schedule(0, 1, 5), o.constant_schedule(0.7), o.linear_schedule(1, 0, 9)], [5, 9]),
}
STEPS = np.arange(45, dtype=np.int32)


@pytest.mark.parametrize("name", SCHEDULES)
def test_agrees_with_optax(name):
    optax, jax = pytest.importorskip("optax"), pytest.importorskip("jax")
    theirs = SCHEDULES[name](optax)
    expected = np.asarray(jax.jit(jax.vmap(lambda step: jax.numpy.asarray(theirs(step), "float32")))(STEPS))
    ours = SCHEDULES[name](optim)
    together = vf.numpy.broadcast_to(ours(vf.numpy.asarray(STEPS)), STEPS.shape)
    np.testing.assert_allclose(together, expected, rtol=2e-6, atol=1e-7)
    one_by_one = [float(ours(int(step))) for step in STEPS[::4]]
    np.testing.assert_allclose(one_by_one, together[::4], rtol=1e-6, atol=1e-8)
    traced = vf.jit(lambda step: vf.numpy.asarray(ours(step)))
    np.testing.assert_allclose([traced(step) for step in STEPS[::4]], one_by_one, rtol=1e-6, atol=1e-8)
    with where_the_device_has_the_dtypes():
        precise = np.asarray(ours(np.int64(13)), "float64")
        np.testing.assert_allclose(precise, together[13], rtol=2e-6)


@pytest.mark.wide
def test_an_int64_makes_a_schedule_compute_in_float64():
    for name in SCHEDULES.keys() - {"constant", "linear of no steps", "no steps", "exponential of rate 0"}:
        assert SCHEDULES[name](optim)(np.int64(3)).dtype == np.float64, name
        assert SCHEDULES[name](optim)(np.int32(3)).dtype == np.float32, name
    assert float(optim.piecewise_constant_schedule(0.1, {2: 0.3})(np.int64(3))) == 0.1 * 0.3
    updates, _ = optim.sgd(optim.linear_schedule(0.3, 0.0, 3)).update(np.float64(1), optim.sgd(lambda count: 1.0).init(np.float64(1)))
    assert float(updates) == -0.3


def test_steps_count_from_zero_and_saturate():
    counts = []
    tx = optim.scale_by_schedule(lambda count: counts.append(int(count)) or 1.0)
    state = tx.init(None)
    for _ in range(2):
        _, state = tx.update(vf.numpy.ones(1), state)
    assert counts == [0, 1]
    assert state.count.dtype == np.int32
    last = optim.ScaleByScheduleState(vf.numpy.int32(2**31 - 1))
    assert int(tx.update(vf.numpy.ones(1), last)[1].count) == 2**31 - 1


@pytest.mark.parametrize(
    "call",
    [
        lambda: optim.piecewise_constant_schedule(1.0, {3: -0.5}),
        lambda: optim.piecewise_interpolate_schedule("linear", 1.0, {3: -0.5}),
        lambda: optim.piecewise_interpolate_schedule("quadratic", 1.0),
        lambda: optim.cosine_decay_schedule(1.0, 0),
        lambda: optim.linear_onecycle_schedule(0, 1.0),
        lambda: optim.cosine_onecycle_schedule(0, 1.0),
        lambda: optim.join_schedules([optim.constant_schedule(1.0)], [3]),
        lambda: optim.warmup_cosine_decay_schedule(0.0, 1.0, 10, 10),
        lambda: optim.reduce_on_plateau(factor=1.5),
        lambda: optim.reduce_on_plateau(rtol=0.0, atol=0.0),
        lambda: optim.reduce_on_plateau(rtol=-1.0),
    ],
)
def test_impossible_settings_are_refused(call):
    with pytest.raises(ArgumentError):
        call()


def test_schedules_and_boundaries_of_another_kind_are_refused():
    with pytest.raises(ArgumentTypeError, match=r"schedules as one sequence, join_schedules\(\[a, b\]"):
        optim.join_schedules(optim.constant_schedule(1.0), [3])
    with pytest.raises(ArgumentTypeError, match=r"a dict of scales by steps, as \{10: 0.5\}, got \[10, 20\] of type list"):
        optim.piecewise_constant_schedule(1.0, [10, 20])


PLATEAUS = {
    "plain": {"factor": 0.5, "patience": 2},
    "cooldown": {"factor": 0.5, "patience": 2, "cooldown": 3},
    "averaged": {"factor": 0.5, "patience": 1, "accumulation_size": 2, "min_scale": 0.2},
    "absolute": {"factor": 0.1, "patience": 3, "rtol": 0.0, "atol": 0.2},
}


@pytest.mark.parametrize("options", PLATEAUS.values(), ids=PLATEAUS)
def test_plateau_agrees_with_optax(options):
    optax, jax = pytest.importorskip("optax"), pytest.importorskip("jax")
    losses = np.random.default_rng(2).choice([1.0, 0.9, 0.8, 0.5], size=30).astype("float32")
    ours, theirs = optim.reduce_on_plateau(**options), optax.contrib.reduce_on_plateau(**options)
    w = np.ones(2, "float32")
    a, b = ours.init(w), theirs.init(w)
    ours_update, theirs_update = vf.jit(ours.update), jax.jit(theirs.update)
    for loss in losses:
        u, a = ours_update(w, a, value=loss)
        v, b = theirs_update(w, b, value=loss)
        np.testing.assert_allclose(u, v, rtol=1e-6)
        for one, two in zip(a, b, strict=True):
            np.testing.assert_allclose(one, two, rtol=1e-6)
