"""What does not change in a loop is computed before it."""

from __future__ import annotations

from typing import Any

import numpy as np

import volta_fn as vf
from tests.compiler.passes.common import names, passed, special, untouched
from tests.compiler.passes.test_dce import only
from volta_fn import lax
from volta_fn.compiler.passes.loops import hoist_invariants
from volta_fn.compiler.pipeline import simplify

X = np.arange(12, dtype=np.float32).reshape(3, 4)


def test_invariants_leave_a_scan() -> None:
    def run(x: Any, a: Any) -> Any:
        return lax.scan(lambda c, r: (c * lax.sin(a) + r, lax.exp(lax.sin(a))), a, x)

    after = passed(hoist_invariants, run, X, X[1])
    assert names(after) == ["jit", "scan"]
    done = passed(simplify, run, X, X[1])
    assert names(done) == ["sin", "exp", "scan", "broadcast_in_dim"]
    assert names(only(done, "scan").params["jaxpr"]) == ["mul", "add"]
    passed(simplify, run, np.stack([special(np.float32)] * 2), special(np.float32))


def test_invariants_leave_conditions_and_bodies_of_while_loops() -> None:
    def run(x: Any, a: Any) -> Any:
        return lax.while_loop(lambda c: c.sum() < lax.exp(a), lambda c: c + lax.sin(a), x)

    done = passed(simplify, run, X[0], np.float32(2.5))
    loop = only(done, "while")
    assert sorted(names(done)) == ["exp", "sin", "while"]
    assert "exp" not in names(loop.params["cond_jaxpr"])
    assert names(loop.params["body_jaxpr"]) == ["add"]
    passed(simplify, run, X[0], np.float32(-np.inf))  # no step


def test_they_leave_nested_loops_altogether() -> None:
    def run(x: Any, a: Any) -> Any:
        inner = lambda c, r: (c + r * lax.sin(a), None)
        return lax.scan(lambda c, rows: (lax.scan(inner, c, rows)[0], None), np.float32(0), x)

    done = passed(simplify, run, X, np.float32(2))
    assert names(done) == ["sin", "scan"]
    outer = only(done, "scan").params["jaxpr"]
    assert names(only(outer, "scan").params["jaxpr"]) == ["mul", "add"]


def test_large_fillings_effects_and_empty_loops_stay() -> None:
    wide = lambda x: lax.scan(lambda c, r: (c + lax.iota("float32", 5000), None), lax.broadcast_in_dim(x[0, 0], (5000,), ()), x)
    untouched(hoist_invariants, wide, X)
    loud = lambda x, a: lax.scan(lambda c, r: ((vf.debug.callback(lambda v: None, a), c)[1], None), x[0], x)
    untouched(hoist_invariants, loud, X, X[0])
    untouched(hoist_invariants, lambda x, a: lax.scan(lambda c, r: (c + lax.sin(a), None), a, x), X[:0], X[0])
    untouched(hoist_invariants, lambda x, a: lax.scan(lambda c, r: (c + lax.optimization_barrier(a), None), a, x), X, X[0])
    host = lambda x, a: lax.scan(lambda c, r: (c + vf.pure_callback(np.sin, a, a), None), a, x)
    untouched(hoist_invariants, host, X, X[0])


def test_a_loop_that_might_not_end_is_not_run_needlessly() -> None:
    endless = lambda a: lax.while_loop(lambda c: c > 0, lambda c: c + 1, a)
    seldom = lambda x, a: lax.while_loop(lambda c: c < 0, lambda c: c * lax.sin(a) + endless(a), x)
    done = passed(simplify, seldom, np.float64(3), np.float64(1))
    assert names(done) == ["sin", "while"]
    rows = lambda x, a: lax.scan(lambda c, r: (c + endless(a), None), a, x)
    assert names(passed(simplify, rows, X[0], np.float32(-1))) == ["while", "scan"]  # this one would run anyhow


def test_effects_keep_their_order_and_number() -> None:
    seen: list[tuple[str, float]] = []

    def run(x: Any, a: Any) -> Any:
        def step(c: Any, r: Any) -> Any:
            vf.debug.callback(lambda v: seen.append(("in", float(v))), lax.sin(a) * 0 + c)
            return c + 1.0, None

        vf.debug.callback(lambda v: seen.append(("before", float(v))), a)
        out, _ = lax.scan(step, np.float32(0), x)
        vf.debug.callback(lambda v: seen.append(("after", float(v))), out)
        return out

    vf.jit(run)(X, np.float32(5))
    assert seen == [("before", 5.0), ("in", 0.0), ("in", 1.0), ("in", 2.0), ("after", 3.0)]
