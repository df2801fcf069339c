"""Loss scaling, steps left out, and accumulation: what happens when a gradient is not finite."""

from __future__ import annotations

import functools

import numpy as np
import pytest

import volta_fn as vf
from volta_fn import optim, tree
from volta_fn.errors import ArgumentError, DTypeError

GOOD, BAD = np.array([1.0, -1.0], "float32"), np.array([np.inf, 1.0], "float32")


def test_the_scale_grows_and_shrinks():
    scaling = optim.DynamicLossScale.init(4.0, period=2, factor=2.0, min_loss_scale=1.0)
    seen = []
    for finite in (True, True, True, False, True, False, False, False, True, True):
        scaling = vf.jit(lambda s, f: s.adjust(f))(scaling, finite)
        seen.append(float(scaling.loss_scale))
    assert seen == [4.0, 8.0, 8.0, 4.0, 4.0, 2.0, 1.0, 1.0, 1.0, 2.0]
    assert scaling.counter.dtype == np.int32
    huge = optim.DynamicLossScale.init(2.0**127, period=1)
    assert np.isfinite(float(huge.adjust(True).loss_scale))


@pytest.mark.parametrize("options", [{"loss_scale": 0.5}, {"factor": 1.0}, {"period": 0}, {"min_loss_scale": 0.0}])
def test_impossible_settings_are_refused(options):
    with pytest.raises(ArgumentError):
        optim.DynamicLossScale.init(**options)


def test_float16_training_skips_overflows_and_recovers():
    """A loss whose gradients (1e-6) float16 cannot hold without a scale, and cannot hold with too large a one."""
    optimizer = optim.loss_scaled(optim.adam(0.01), optim.DynamicLossScale.init(2.0**30, period=20))
    target = vf.numpy.array([0.5, -0.25], "float16")
    loss = lambda w: vf.numpy.sum(((w - target) * np.float16(1e-2)).astype("float32") ** 2)

    @vf.jit
    def step(w, state):
        grads = vf.grad(lambda w: state.loss_scale.scale(loss(w)))(w)
        updates, state = optimizer.update(grads, state, w)
        return optim.apply_updates(w, updates), state

    w = vf.numpy.zeros(2, "float16")
    state = optimizer.init(w)
    skipped = 0
    for _ in range(150):
        before = w
        w, state = step(w, state)
        skipped += not bool(state.last_finite)
        assert bool(state.last_finite) or np.array_equal(w, before)
    assert skipped > 0
    assert int(state.inner_state[0].count) == 150 - skipped
    np.testing.assert_allclose(np.asarray(w, "float32"), np.asarray(target, "float32"), atol=0.02)


@pytest.mark.wide
def test_scaling_and_unscaling_are_inverse():
    scaling = optim.DynamicLossScale.init(2.0**10)
    values = {"half": np.float16(3e-7), "single": np.float32(3e-7), "double": np.float64(3e-7), "none": None}
    back = scaling.unscale(scaling.scale(values))
    assert [x.dtype.name for x in tree.leaves(back)] == ["float64", "float32", "float32"]
    assert [float(x) for x in tree.leaves(back)] == [float(x) for x in tree.leaves(values)]


@pytest.mark.parametrize("jit", [vf.jit, lambda f: f])
def test_steps_that_are_not_finite_are_left_out(jit):
    optimizer = optim.apply_if_finite(optim.sgd(1.0, momentum=0.5), max_consecutive_errors=2)
    step, state, seen = jit(optimizer.update), optimizer.init(GOOD), []
    for gradient in (GOOD, BAD, GOOD, BAD, BAD, BAD):
        updates, state = step(gradient, state)
        seen.append(float(updates[1]))
    assert seen[:5] == [1.0, 0.0, 1.5, 0.0, 0.0]
    assert seen[5] == -1.0 + 0.75  # the third in a row is let through
    assert (int(state.total_notfinite), int(state.notfinite_count), bool(state.last_finite)) == (4, 3, False)


@pytest.mark.parametrize("jit", [vf.jit, lambda f: f])
def test_accumulation_skips_selected_gradients(jit):
    optimizer = optim.MultiSteps(optim.sgd(1.0), 2, should_skip_update_fn=optim.skip_not_finite)
    step, state, seen = jit(optimizer.update), optimizer.init(GOOD), []
    for gradient in (GOOD, BAD, 3 * GOOD, BAD, GOOD):
        updates, state = step(gradient, state)
        seen.append((float(updates[0]), bool(optimizer.has_updated(state)), int(state.skip_state["num_not_finite"])))
    assert seen == [(0.0, False, 0), (0.0, False, 1), (-2.0, True, 0), (0.0, True, 1), (0.0, False, 0)]
    large = functools.partial(optim.skip_large_updates, max_squared_norm=3.0)
    optimizer = optim.MultiSteps(optim.sgd(1.0), 1, should_skip_update_fn=large)
    for gradient, expected in ((GOOD, -1.0), (9 * GOOD, 0.0), (BAD * np.nan, 0.0)):
        updates, state = optimizer.update(gradient, optimizer.init(GOOD))
        assert float(updates[0]) == expected
        assert bool(state.skip_state["should_skip"]) == (expected == 0.0)


def test_accumulated_gradients_are_those_of_the_large_batch():
    """Means of eight gradients in float16, whose sum would overflow; the number of them grows."""
    grads = np.full((8, 2), 3e4, "float16")
    optimizer = optim.MultiSteps(optim.sgd(1.0), lambda step: 2 + 2 * step)
    state, steps = optimizer.init(grads[0]), []
    assert state.acc_grads.dtype == np.float32
    for gradient in grads:
        updates, state = optimizer.update(gradient, state)
        steps.append(float(updates[0]))
    assert steps == [0.0, -30000.0, 0.0, 0.0, 0.0, -30000.0, 0.0, 0.0]
    assert optimizer.inner_opt.init(grads[0]) == state.inner_opt_state


def test_accumulation_explains_itself():
    with pytest.raises(ArgumentError):
        optim.MultiSteps(optim.sgd(1.0), 0)
    wrong = optim.MultiSteps(optim.sgd(1.0), 2, should_skip_update_fn=lambda updates, step, params: (1.0, ()))
    with pytest.raises(DTypeError, match="boolean"):
        wrong.update(GOOD, wrong.init(GOOD))


def test_conditions_see_extra_arguments():
    optimizer = optim.conditionally_transform(optim.scale(2.0), lambda step, loss: loss > 1.0, forward_extra_args=True)
    state = optimizer.init(GOOD)
    for loss, expected in ((2.0, 2.0), (0.5, 1.0)):
        updates, state = vf.jit(optimizer.update)(GOOD, state, loss=loss)
        assert float(updates[0]) == expected
    assert int(state.step) == 2
