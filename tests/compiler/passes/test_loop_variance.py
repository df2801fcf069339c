"""Carries that do not change, literal operands, outputs that are no work."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.compiler.passes.common import names, passed, untouched
from tests.compiler.passes.test_dce import only
from volta_fn import lax
from volta_fn.compiler.passes.loops import simplify_loops
from volta_fn.compiler.pipeline import simplify

X = np.arange(12, dtype=np.float32).reshape(3, 4)


@pytest.mark.parametrize("rows", [X, X[:0]])
def test_a_carry_that_every_step_hands_on_is_a_const(rows: Any) -> None:
    step = lambda c, r: ((c[0], c[1] * c[0] + r, c[2]), None)
    after = passed(simplify_loops, lambda x, a: lax.scan(step, (a, a, 3), x), rows, X[1])
    scan = only(after, "scan")
    assert (scan.params["num_consts"], scan.params["num_carry"]) == (1, 1)
    assert [v in after.jaxpr.invars for v in after.jaxpr.outvars] == [True, False, False]


def test_literal_consts_are_written_into_the_body() -> None:
    def run(x: Any) -> Any:
        two = lax.mul(np.float32(1), np.float32(2))
        return lax.scan(lambda c, r: (c * two + r, None), x[0], x)

    scan = only(passed(simplify, run, X), "scan")
    assert scan.params["num_consts"] == 0


@pytest.mark.parametrize("reverse", [False, True])
def test_outputs_that_are_no_work(reverse: bool) -> None:
    def run(x: Any, a: Any) -> Any:
        def step(c: Any, r: Any) -> Any:
            new = c + r
            return new, (new, r, a, new, np.float32(-0.0), c)

        return lax.scan(step, a, x, reverse=reverse)

    after = passed(simplify_loops, run, X, X[2])
    assert names(after) == ["scan", "broadcast_in_dim", "broadcast_in_dim"]
    assert len(after.eqns[0].outvars) == 3  # the carry, `new` and `c`
    assert len(passed(simplify_loops, run, X[:0], X[2]).eqns[0].outvars) == 3


def test_the_bound_of_a_counted_while_is_a_const_of_condition_and_body() -> None:
    run = lambda x, n: lax.fori_loop(0, n, lambda i, c: c * 2.0 + i, x)
    loop = only(passed(simplify_loops, run, X, 5), "while")
    assert (loop.params["cond_nconsts"], loop.params["body_nconsts"], len(loop.outvars)) == (1, 1, 2)
    loop = only(passed(simplify, run, X, 5), "while")
    assert (loop.params["cond_nconsts"], loop.params["body_nconsts"], len(loop.outvars)) == (1, 0, 2)


def test_loops_that_change_all_they_carry_are_left_alone() -> None:
    untouched(simplify_loops, lambda x: lax.scan(lambda c, r: (c + r, c), x[0], x), X)
    untouched(simplify_loops, lambda x: lax.while_loop(lambda c: c.sum() < 9, lambda c: c * 2.0, x + 1), X)
    swapped = lambda x: lax.scan(lambda c, r: ((c[1], c[0]), None), (x[0], x[1]), x)
    untouched(simplify_loops, swapped, X)
