"""Dead code in and around control flow."""

from __future__ import annotations

from typing import Any

import numpy as np

import volta_fn as vf
from tests.compiler.passes.common import names, passed, untouched
from volta_fn import lax
from volta_fn.core.jaxpr import ClosedJaxpr, Equation
from volta_fn.transforms.differentiation import eliminate_dead_code

X = np.arange(12, dtype=np.float32).reshape(3, 4)


def only(closed: ClosedJaxpr, name: str) -> Equation:
    (eqn,) = [e for e in closed.eqns if e.primitive.name == name]
    return eqn


def test_unused_outputs_carries_and_operands_of_a_scan_go() -> None:
    def run(x: Any, a: Any, b: Any) -> Any:
        def step(carry: Any, row: Any) -> Any:
            needed, helper, dead, loner = carry
            dead = dead * lax.sin(row).sum() + b
            return (needed + helper, helper * a, dead, loner + 1), (needed, dead, row)

        (needed, _, _, _), (ys, _, _) = lax.scan(step, (a, a, b, 0), x)
        return needed, ys

    after = passed(eliminate_dead_code, run, X, np.float32(2), np.float32(3))
    scan = only(after, "scan")
    assert (scan.params["num_consts"], scan.params["num_carry"], len(scan.outvars), len(scan.invars)) == (1, 2, 3, 3)
    assert names(scan.params["jaxpr"]) == ["add", "mul"]
    assert scan.params["length"] == 3


def test_dead_carries_of_a_while_go_but_not_what_the_condition_reads() -> None:
    def run(x: Any, limit: Any) -> Any:
        step = lambda c: (c[0] + 1, c[1] * 2.0, lax.sin(c[2]), c[3] + c[0])
        return lax.while_loop(lambda c: c[0] < limit, step, (0, x, x, 0))[1]

    loop = only(passed(eliminate_dead_code, run, X, 5), "while")
    assert len(loop.outvars) == 2
    assert names(loop.params["body_jaxpr"]) == ["add", "mul"]


def test_unused_outputs_and_operands_of_branches_go() -> None:
    def run(x: Any, y: Any, p: Any) -> Any:
        yes = lambda x, y: (lax.sin(x), y, lax.exp(y))
        no = lambda x, y: (lax.cos(x), y, lax.log(y))
        return lax.cond(p, yes, no, x, y)[0]

    cond = only(passed(eliminate_dead_code, run, X, X, True), "cond")
    assert (len(cond.outvars), len(cond.invars)) == (1, 2)
    assert [names(b) for b in cond.params["branches"]] == [["cos"], ["sin"]]


def test_it_reaches_to_any_depth() -> None:
    def run(x: Any) -> Any:
        inner = lambda c, row: ((c[0] + row, lax.sin(c[1])), lax.exp(row))
        outer = lambda c, rows: (lax.scan(inner, c, rows)[0], None)
        return lax.scan(outer, (np.float32(0), np.float32(1)), x)[0][0]

    scan = only(passed(eliminate_dead_code, run, X), "scan")
    assert names(scan.params["jaxpr"]) == ["scan"]
    assert names(scan.params["jaxpr"].eqns[0].params["jaxpr"]) == ["add"]


def test_effects_stay_with_what_they_need() -> None:
    seen: list[float] = []

    def run(x: Any) -> Any:
        def step(carry: Any, row: Any) -> Any:
            total, dead = carry
            vf.debug.callback(lambda v: seen.append(float(v)), total)
            return (total + row.sum(), lax.sin(dead)), row

        lax.scan(step, (np.float32(0), np.float32(0)), x)
        return x

    scan = only(passed(eliminate_dead_code, run, X), "scan")
    assert "sin" not in names(scan.params["jaxpr"])
    assert (scan.params["num_carry"], len(scan.outvars)) == (1, 1)
    seen.clear()
    vf.jit(run)(X)
    assert seen == [0.0, 6.0, 28.0]


def test_programs_of_use_throughout_are_left_alone() -> None:
    untouched(eliminate_dead_code, lambda x: lax.scan(lambda c, r: (c + r, c), x[0], x), X)
    untouched(eliminate_dead_code, lambda x: lax.while_loop(lambda c: c.sum() < 100, lambda c: c * 2.0, x + 1), X)
    untouched(eliminate_dead_code, lambda x: lax.cond(x.sum() > 0, lax.sin, lax.cos, x), X)
