"""The kernels of control flow on hand-written programs: memory is never shared with what changes later."""

from __future__ import annotations

from typing import Any

import numpy as np

from volta_fn.backends.numpy import control_flow
from volta_fn.core.aval import ShapedArray
from volta_fn.core.jaxpr import ClosedJaxpr, Jaxpr, Var

VECTOR = ShapedArray((2,), np.dtype(np.float64))


def types(count: int) -> ClosedJaxpr:
    """A program of so many vectors in and out, of which only the types matter here."""
    return ClosedJaxpr(Jaxpr([], [Var(VECTOR) for _ in range(count)], [Var(VECTOR) for _ in range(count)], []))


def scan(step: Any, *operands: np.ndarray, outputs: int, carry: int, length: int, reverse: bool = False, consts: int = 0) -> Any:
    run = control_flow._scan(
        lambda _: step, jaxpr=types(outputs), length=length, reverse=reverse, num_consts=consts, num_carry=carry, unroll=1
    )
    return run(*operands)


def test_a_step_that_returns_its_inputs() -> None:
    rows = np.arange(6.0).reshape(3, 2)
    start = np.array([-1.0, -2.0])
    last, seen, same = scan(lambda c, x: (x, c, x), start, rows, outputs=3, carry=1, length=3)
    assert last.tolist() == [4, 5] and seen.tolist() == [[-1, -2], [0, 1], [2, 3]] and same.tolist() == rows.tolist()
    assert not np.shares_memory(same, rows) and not np.shares_memory(seen, start)
    assert start.tolist() == [-1, -2]


def test_reverse_goes_from_last_to_first() -> None:
    rows = np.arange(6.0).reshape(3, 2)
    last, seen = scan(
        lambda k, c, x: (c * k + x, c), np.full(2, 10.0), np.zeros(2), rows, outputs=2, carry=1, length=3, reverse=True, consts=1
    )
    assert last.tolist() == [420, 531] and seen.tolist() == [[42, 53], [4, 5], [0, 0]]


def test_steps_without_rows_or_carry() -> None:
    (ys,) = scan(lambda: (np.ones(2),), outputs=1, carry=0, length=3)
    assert ys.tolist() == [[1, 1]] * 3
    assert scan(lambda c: (c + 1,), np.zeros(2), outputs=1, carry=1, length=4)[0].tolist() == [4, 4]
    assert scan(lambda c: (c + 1,), np.zeros(2), outputs=1, carry=1, length=0)[0].tolist() == [0, 0]


def test_while_and_cond() -> None:
    programs = {"c": lambda limit, x: (x < limit,), "b": lambda step, x: (x + step,)}
    run = control_flow._while(programs.__getitem__, cond_jaxpr="c", body_jaxpr="b", cond_nconsts=1, body_nconsts=1)  # type: ignore[arg-type]
    assert run(np.float64(5), np.float64(2), np.float64(0)) == (6.0,)
    choose = control_flow._cond({"f": lambda x: (x,), "t": lambda x: (-x,)}.__getitem__, branches=("f", "t"))  # type: ignore[arg-type]
    assert choose(np.int32(1), np.float64(3)) == (-3.0,) and choose(np.array(0, np.int32), np.float64(3)) == (3.0,)
