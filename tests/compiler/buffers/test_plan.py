"""Plans: registers are reused, dead operands overwritten where nobody sees it, calls inlined, dead code dropped, effects kept."""

from __future__ import annotations

from typing import Any

import numpy as np

import volta_fn as vf
import volta_fn.numpy as jnp
from volta_fn import lax
from volta_fn.compiler import pipeline
from volta_fn.compiler.plans import Plan
from volta_fn.core.jaxpr import inline_calls

X = vf.ShapeDtypeStruct((4,), "float32")


def plan_of(function: Any, *args: Any, donate: tuple[int, ...] = ()) -> Plan:
    return vf.jit(function, donate_argnums=donate).lower(*args).numpy_plan


def names(plan: Plan) -> list[str]:
    return [s.eqn.primitive.name for s in plan.steps]


def test_dead_code_goes_and_effects_stay() -> None:
    plan = plan_of(lambda x: (lax.sin(x), lax.cos(x) * 2)[1], X)
    assert names(plan) == ["cos", "mul"]
    assert not plan.effectful
    noisy = plan_of(lambda x: (vf.debug.callback(lambda v: None, lax.sin(x)), x)[1], X)
    assert names(noisy) == ["sin", "debug_callback"]
    assert noisy.effectful
    assert names(plan_of(lambda x: (vf.pure_callback(np.sin, x, x), x)[1], X)) == []


def test_calls_are_inlined_to_any_depth() -> None:
    inner = vf.jit(lambda x: lax.sin(x))
    rule = vf.custom_vjp(lambda x: inner(x) * 2)
    rule.defvjp(lambda x: (x, None), lambda _, g: (g,))
    function = lambda x: vf.checkpoint(vf.jit(lambda x: rule(x) + inner(x)))(x)
    closed = vf.make_jaxpr(function)(X)
    inlined = inline_calls(closed)
    assert [e.primitive.name for e in inlined.eqns] == ["sin", "mul", "sin", "add"]
    vf.check_jaxpr(inlined)
    vf.check_jaxpr(closed)
    assert names(pipeline.plan(closed)) == ["sin", "mul", "add"]  # and what is equal after that is merged


def test_equations_without_a_call_stay_the_same_objects() -> None:
    inner = vf.jit(lambda x: lax.sin(x))
    closed = vf.make_jaxpr(lambda x: lax.tan(inner(lax.exp(x))) + lax.cos(x))(X)
    inlined = inline_calls(closed)
    assert [e.primitive.name for e in inlined.eqns] == ["exp", "sin", "tan", "cos", "add"]
    assert [e in closed.eqns for e in inlined.eqns] == [True, False, False, True, True]


def test_registers_are_reused_in_a_long_chain() -> None:
    def chain(x: Any) -> Any:
        for _ in range(50):
            x = lax.sin(x)
        return x

    plan = plan_of(chain, X)
    used = {r for s in plan.steps for r in s.results}
    assert len(used | set(plan.inputs)) <= 3
    assert plan.steps[0].into is None  # the argument is the caller's
    assert all(s.into == 0 for s in plan.steps[1:])


def test_donated_arguments_are_overwritten_and_others_never() -> None:
    f = lambda x, y: (x + 1.0) * y
    assert plan_of(f, X, X).overwritten == ()
    assert [s.into for s in plan_of(f, X, X).steps] == [None, 0]
    assert plan_of(f, X, X, donate=(0,)).overwritten == (0,)
    assert plan_of(f, X, X, donate=(0, 1)).overwritten == (0,)
    retained = plan_of(lambda x: (x, x + 1.0), X, donate=(0,))
    assert retained.overwritten == ()
    wider = plan_of(lambda x: x > 0, X, donate=(0,))
    assert wider.overwritten == ()
    later = plan_of(lambda x: (x + 1.0) * x, X, donate=(0,))
    assert [s.into for s in later.steps] == [None, 0]


def test_views_keep_what_they_show_alive() -> None:
    def through_a_view(x: Any) -> Any:
        y = lax.sin(x)
        view = lax.rev(y, (0,))
        return lax.neg(y), view

    plan = plan_of(through_a_view, X)
    (negation,) = [s for s in plan.steps if s.eqn.primitive.name == "neg"]
    assert negation.into is None
    x = np.arange(4, dtype=np.float32)
    first, second = vf.jit(through_a_view)(x)
    np.testing.assert_allclose(first, -np.sin(x), rtol=1e-6)
    np.testing.assert_allclose(second, np.sin(x)[::-1], rtol=1e-6)


def test_constants_and_literals_are_never_overwritten() -> None:
    table = jnp.arange(4.0)
    f = vf.jit(lambda: (table + 1.0) * table)
    for _ in range(2):
        np.testing.assert_array_equal(f(), [0.0, 2.0, 6.0, 12.0])
    np.testing.assert_array_equal(table, [0.0, 1.0, 2.0, 3.0])
    assert len(vf.jit(lambda: table + 1.0).lower().numpy_plan.constants) == 1
