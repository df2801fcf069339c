"""Carries of loops: they begin, and end, in one memory where each step may update them in place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as vnp
from volta_fn import lax

SIZE, STEPS = 512, 7
BYTES = SIZE * SIZE * 4
RNG = np.random.default_rng(0)
ROWS = RNG.normal(size=(STEPS, SIZE)).astype(np.float32)
START = RNG.normal(size=(SIZE, SIZE)).astype(np.float32)

Loop = Callable[[Any, Any], Any]


def _next(carry: Any, row: Any) -> Any:
    return carry * 0.5 + row[:, None]


def _by_scan(start: Any, rows: Any) -> Any:
    return lax.scan(lambda carry, row: (_next(carry, row), None), start, rows)[0]


def _by_while(start: Any, rows: Any) -> Any:
    body = lambda state: (state[0] + 1, _next(state[1], rows[state[0]]))
    return lax.while_loop(lambda state: state[0] < STEPS, body, (0, start))[1]


def _in_numpy(start: Any, rows: Any) -> Any:
    for row in rows:
        start = _next(start, row)
    return start


def _twice(loop: Loop, x: Any, rows: Any) -> Any:
    start = x + 1
    return loop(start, rows) - loop(start, 2 * rows)


def _read_by_steps(loop: Loop, x: Any, rows: Any) -> Any:
    start = x + 1
    return loop(start, rows + start[0])


def _read_later(loop: Loop, x: Any, rows: Any) -> Any:
    start = x + 1
    return loop(start, rows) + 2 * start


def _nested(loop: Loop, x: Any, rows: Any) -> Any:
    return loop(loop(x * 2, rows), rows[::-1])


PROGRAMS: dict[str, Callable[[Loop, Any, Any], Any]] = {
    "an argument": lambda loop, x, rows: loop(x, rows),
    "computed": lambda loop, x, rows: loop(x + 1, rows),
    "read later": _read_later,
    "read by two loops": _twice,
    "read by the steps": _read_by_steps,
    "the result of a loop": _nested,
}


@pytest.mark.parametrize("platform", ["cpu", "gpu"])
@pytest.mark.parametrize("loop", [_by_scan, _by_while])
@pytest.mark.parametrize("donated", [False, True])
@pytest.mark.parametrize("start", PROGRAMS)
def test_results_whatever_else_reads_the_initial_carry(platform: str, loop: Loop, start: str, donated: bool) -> None:
    program, (x, rows) = PROGRAMS[start], vf.device_put((vnp.array(START), ROWS), vf.devices(platform)[0])
    out = vf.jit(lambda x, rows: program(loop, x, rows), donate_argnums=(0,) if donated else ())(x, rows)
    np.testing.assert_allclose(out, program(_in_numpy, START.astype(np.float64), ROWS), rtol=2e-5, atol=2e-5)
    if not donated:
        np.testing.assert_array_equal(x, START)


@pytest.mark.parametrize("platform", ["cpu", "gpu"])
def test_two_carries_that_change_places(platform: str) -> None:
    def pair(first: Any, second: Any) -> Any:
        step = lambda carry, row: ((carry[1] + row, carry[0]), None)
        return lax.scan(step, (first + 1, second + 1), ROWS)[0]

    first, second = START.astype(np.float64) + 1, START.T.astype(np.float64) + 1
    for row in ROWS:
        first, second = second + row, first
    out = vf.jit(pair)(*vf.device_put((START, START.T), vf.devices(platform)[0]))
    np.testing.assert_allclose(out[0], first, rtol=2e-5, atol=2e-5)
    np.testing.assert_allclose(out[1], second, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("loop", [_by_scan, _by_while])
def test_a_computed_initial_carry_lies_where_the_result_will(loop: Loop) -> None:
    program = vf.jit(lambda rows: loop(vnp.zeros((SIZE, SIZE)), rows))
    assert program.lower(ROWS).compile().memory_analysis().temp_size_in_bytes < BYTES / 4


def test_a_donated_argument_is_updated_where_it_lies() -> None:
    program = vf.jit(_by_scan, donate_argnums=(0,)).lower(START, ROWS).compile()
    assert program.memory_analysis().temp_size_in_bytes < BYTES / 4
