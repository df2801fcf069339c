"""Loops that reuse memory: carries that are passed on, exchanged, viewed and overwritten, against Python loops on copies."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import volta_fn as vf
from volta_fn import lax
from volta_fn.core.jaxpr import ClosedJaxpr
from volta_fn.jit.eager import PIPELINE
from volta_fn.targets.numpy.backend import _private, _step

ROWS = np.arange(15.0).reshape(5, 3)
CONSTANT = np.array([0.5, 1.5, 2.5])


def grown(c: Any, x: Any) -> Any:
    """Return both parts in memory of their own."""
    return (c[0] * 2 + x, c[1] - x * 0.5), (c[0], c[1])


def exchanged(c: Any, x: Any) -> Any:
    return (c[1], c[0] + x), (c[0], x)


def doubled(c: Any, x: Any) -> Any:
    """Return one new array for both parts."""
    new = c[0] + c[1] * x
    return (new, new), new


def viewed(c: Any, x: Any) -> Any:
    """Return the first part turned round as the second."""
    new = c[0] * x + 1
    return (new, lax.rev(new, (0,))), c[1]


def viewed_late(c: Any, x: Any) -> Any:
    """Carry a view of the old carry together with a new one."""
    return (c[0] + x, lax.rev(c[0], (0,))), (c[1], lax.rev(c[0], (0,)))


def from_rows(c: Any, x: Any) -> Any:
    return (x, c[0] + c[1]), (c[0], lax.rev(x, (0,)))


def constant(c: Any, x: Any) -> Any:
    """Compute a part from what the program holds."""
    return (lax.max(CONSTANT, CONSTANT), c[0] * x), (c[0], CONSTANT)


def held(c: Any, x: Any) -> Any:
    """Replace a part by what the program holds."""
    return (vf.device_put(CONSTANT), c[0] + x), c[1]


def nested(c: Any, x: Any) -> Any:
    """Return the result of an inner loop, whose memory may be shared."""
    inner = lax.scan(lambda d, _: (d * 0.5 + x, None), c[0], None, length=2)[0]
    return (inner, c[0] - inner), (inner, c[1])


STEPS = [grown, exchanged, doubled, viewed, viewed_late, from_rows, constant, held, nested]


def by_hand(step: Any, start: Any, reverse: bool) -> Any:
    """Run the loop on copies: every array of each step is a new one."""
    fresh = vf.jit(step)
    carry, ys = start, []
    for x in ROWS[::-1] if reverse else ROWS:
        carry, y = vf.tree.map(lambda a: np.array(a), fresh(vf.tree.map(np.copy, carry), x.copy()))
        ys.append(y)
    stacked = vf.tree.map(lambda *parts: np.stack(parts[::-1] if reverse else parts), *ys)
    return carry, stacked


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("step", STEPS)
def test_nothing_is_overwritten_too_early(step: Any, reverse: bool) -> None:
    start = (np.array([1.0, -1.0, 2.0]), np.array([0.5, 0.25, -2.0]))
    shared = vf.device_put(start[0])
    for first in (start, (shared, shared)):
        values = tuple(np.array(a) for a in first)
        expected = vf.tree.leaves(by_hand(step, values, reverse))
        for run in (lax.scan, vf.jit(lambda f, c, xs, reverse: lax.scan(f, c, xs, reverse=reverse), static_argnums=(0, 3))):
            got = vf.tree.leaves(run(step, first, ROWS, reverse=reverse) if run is lax.scan else run(step, first, ROWS, reverse))
            for a, b in zip(got, expected, strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-14)
        assert all((np.asarray(a) == b).all() for a, b in zip(first, values, strict=True))
    assert CONSTANT.tolist() == [0.5, 1.5, 2.5]


@pytest.mark.parametrize("step", STEPS)
def test_while_loops_likewise(step: Any) -> None:
    start = (np.array([1.0, -1.0, 2.0]), np.array([0.5, 0.25, -2.0]))
    rows = vf.device_put(ROWS)

    def body(state: Any) -> Any:
        i, c = state
        return i + 1, step(c, rows[i])[0]

    _, carry = lax.while_loop(lambda s: s[0] < 5, body, (0, start))
    for a, b in zip(carry, by_hand(step, start, False)[0], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-14)
    assert start[0].tolist() == [1, -1, 2]


def body_of(step: Any) -> ClosedJaxpr:
    program: ClosedJaxpr = vf.jit(lambda a, b, x: step((a, b), x)).lower(CONSTANT, CONSTANT, CONSTANT).jaxpr
    return program


def test_private_parts_of_the_carry() -> None:
    result = {step.__name__: _private(body_of(step), 2) for step in STEPS}
    assert result == {
        "grown": [True, True],
        "exchanged": [False, True],
        "doubled": [False, False],
        "viewed": [False, False],
        "viewed_late": [True, False],
        "from_rows": [False, True],
        "constant": [True, True],
        "held": [False, True],
        "nested": [False, True],
    }


def test_a_carry_is_updated_in_place() -> None:
    """An elementwise update writes into the old carry where that is allowed."""
    step = _step(vf.jit(lambda v: v * 0.5).lower(np.ones(1000)).jaxpr, 0, 1, PIPELINE)
    start = np.ones(1000)
    (first,) = step(False, start)
    (second,) = step(True, first)
    assert not np.shares_memory(start, first) and np.shares_memory(first, second)
    assert (start[0], second[0]) == (1.0, 0.25)
