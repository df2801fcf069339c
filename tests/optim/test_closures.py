"""Optimizers are pickled by structure: unpickled ones make the same steps, in other processes too."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys

import numpy as np
import pytest

import volta_fn as vf
from tests.optim.oracle import run
from tests.optim.test_optimizers import BRANCHING, OPTIMIZERS, STRUCTURAL
from volta_fn import optim, tree
from volta_fn.errors import SerializationError
from volta_fn.optim.numerics import Closure, restored


def test_accumulated_steps_are_pickled_too() -> None:
    optimizer = pickle.loads(pickle.dumps(optim.MultiSteps(optim.adam(0.1), 2)))
    state = optimizer.init(vf.numpy.ones(2))
    updates, state = optimizer.update(vf.numpy.ones(2), state, vf.numpy.ones(2))
    assert not updates.any() and int(state.mini_step) == 1


@pytest.mark.parametrize("name", [name for name in OPTIMIZERS if name not in (*BRANCHING, *STRUCTURAL)])
def test_pickled_optimizers_make_the_same_steps(name: str) -> None:
    optimizer = OPTIMIZERS[name](optim)
    actual, wanted = (run(tx, "float32", 2) for tx in (pickle.loads(pickle.dumps(optimizer)), optimizer))
    for got, want in zip(tree.leaves(actual), tree.leaves(wanted), strict=True):
        np.testing.assert_array_equal(got, want)


def test_another_process_reads_them() -> None:
    schedule = optim.warmup_cosine_decay_schedule(0.0, 1.0, 2, 10)
    optimizer = optim.chain(optim.clip_by_global_norm(1.0), optim.scale_by_rms(), optim.adamw(schedule, weight_decay=0.1))
    w = np.float32([1.0, -2.0, 3.0])
    program = (
        "import pickle, sys, numpy as np\n"
        "tx, w = pickle.load(sys.stdin.buffer)\n"
        "updates, state = tx.update(w, tx.init(w), w)\n"
        "print(np.asarray(tx.update(w, state, w)[0]).tobytes().hex())"
    )
    text = subprocess.run([sys.executable, "-c", program], input=pickle.dumps((optimizer, w)), capture_output=True, check=True).stdout
    _, state = optimizer.update(w, optimizer.init(w), w)
    assert text.decode().strip() == np.asarray(optimizer.update(w, state, w)[0]).tobytes().hex()


SCHEDULES = [
    optim.constant_schedule(0.1),
    optim.polynomial_schedule(1.0, 0.0, power=2, transition_steps=4),
    optim.linear_schedule(1.0, 0.0, 4),
    optim.exponential_decay(1.0, 2, 0.5, staircase=True),
    optim.cosine_decay_schedule(1.0, decay_steps=5),
    optim.piecewise_constant_schedule(1.0, {2: 0.5}),
    optim.piecewise_interpolate_schedule("cosine", 1.0, {2: 0.5}),
    optim.linear_onecycle_schedule(6, 1.0),
    optim.cosine_onecycle_schedule(6, 1.0),
    optim.join_schedules([optim.constant_schedule(1.0), optim.linear_schedule(1.0, 0.0, 2)], [2]),
    optim.warmup_constant_schedule(0.0, 1.0, 3),
    optim.warmup_cosine_decay_schedule(0.0, 1.0, 2, 6),
    optim.warmup_exponential_decay_schedule(0.0, 1.0, 2, 2, 0.5),
    optim.sgdr_schedule([{"init_value": 0.0, "peak_value": 1.0, "warmup_steps": 1, "decay_steps": 3}]),
]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=repr)
def test_schedules_are_pickled_as_the_calls_that_made_them(schedule: optim.Schedule) -> None:
    for again in (pickle.loads(pickle.dumps(schedule)), copy.deepcopy(schedule)):
        assert repr(again) == repr(schedule)
        assert [float(again(step)) for step in range(8)] == [float(schedule(step)) for step in range(8)]


def test_all_schedules_are_pickled() -> None:
    assert {repr(s).partition("(")[0] for s in SCHEDULES} == {
        name for name in optim.schedules.__all__ if name[0].islower() and "inject" not in name
    }
    assert optim.linear_schedule is optim.schedules.linear_schedule
    assert repr(optim.exponential_decay(1.0, 10, decay_rate=0.5)) == "exponential_decay(1.0, 10, decay_rate=0.5)"
    with pytest.raises((pickle.PicklingError, AttributeError)):
        pickle.dumps(optim.join_schedules([lambda step: 1.0], []))


def test_copies_and_mistakes() -> None:
    optimizer = optim.sgd(optim.linear_schedule(1.0, 0.0, 4))
    again = copy.deepcopy(optimizer)
    w = vf.numpy.ones(2)
    np.testing.assert_array_equal(again.update(w, again.init(w))[0], -w)
    with pytest.raises((pickle.PicklingError, AttributeError)):
        pickle.dumps(optim.GradientTransformation(init=lambda params: (), update=eval("lambda u, s, p=None: (u, s)")))
    with pytest.raises(SerializationError, match=r"volta_fn\.optim\.base\.stateless that is not there.*same version"):
        restored(Closure("volta_fn.optim.base", "stateless", ((7, "update"),), (), (None, None)))
