"""make_jaxpr and eval_shape: programs and types of functions that do not run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as jnp
from volta_fn import lax
from volta_fn.core.staging import eval_jaxpr
from volta_fn.errors import ArgumentTypeError, TracerBoolError, VoltaError

X = vf.ShapeDtypeStruct((2, 3), "float32")


def test_programs_in_jax_s_notation() -> None:
    w = jnp.ones((3, 2))
    closed = vf.make_jaxpr(lambda x: {"y": jnp.tanh(x @ w).sum() * 2, "x": x})(X)
    vf.check_jaxpr(closed)
    assert (
        str(closed)
        == """\
{ lambda a:f32[3,2] ; b:f32[2,3]. let
    c:f32[2,2] = dot_general[
      dimension_numbers=(((1,), (0,)), ((), ()))
      preferred_element_type=None
    ] b a
    d:f32[2,2] = tanh c
    e:f32[] = reduce_sum[axes=(0, 1)] d
    f:f32[] = mul e 2.0:f32[]
  in (b, f) }"""
    )
    np.testing.assert_allclose(eval_jaxpr(closed, jnp.ones((2, 3)))[1], 8 * np.tanh(3.0), rtol=1e-6)


def test_weak_types_literals_and_unused_inputs() -> None:
    assert str(vf.make_jaxpr(lambda x, y: x + 1.5)(2.0, X)).splitlines() == [
        "{ lambda ; a:f32[] b:f32[2,3]. let",
        "    c:f32[] = add a 1.5:f32[]",
        "  in (c,) }",
    ]


def test_static_arguments_keywords_and_shapes() -> None:
    f = lambda x, n, scale=1.0: {"power": x**n * scale, "n": x.sum()}
    closed, shapes = vf.make_jaxpr(f, static_argnums=1, return_shape=True)(X, 3, scale=2.0)
    assert len(closed.in_avals) == 2
    assert shapes == {"power": X, "n": vf.ShapeDtypeStruct((), "float32")}
    assert vf.eval_shape(f, X, 2) == shapes
    assert str(vf.make_jaxpr(lambda n, x: x * n, static_argnums=(-2,))(2, X)) == str(vf.make_jaxpr(lambda x: x * 2)(X))


def test_results_may_be_descriptions() -> None:
    inner = lambda x: (X, {"x": x, "nested": vf.eval_shape(lambda: X)})
    assert vf.eval_shape(inner, 1) == (X, {"x": vf.ShapeDtypeStruct((), "int32", weak_type=True), "nested": X})
    assert vf.eval_shape(lambda: X) == X


def test_nothing_is_computed() -> None:
    huge = vf.ShapeDtypeStruct((10**6, 10**6), "float64")
    assert vf.eval_shape(lambda x: (x @ x).sum(0), huge).shape == (10**6,)
    seen: list[int] = []
    vf.make_jaxpr(lambda x: vf.debug.callback(lambda v: seen.append(1), x))(1.0)
    assert seen == []


def test_programs_of_nested_programs_evaluate_to_the_function() -> None:
    f = lambda x: lax.cond(x.sum() > 0, lambda x: lax.scan(lambda c, r: (c + r, c * r), x[0], x)[1], vf.jit(jnp.cos), x)
    for x in (jnp.ones((2, 3)), -jnp.ones((2, 3))):
        closed = vf.make_jaxpr(f)(x)
        vf.check_jaxpr(closed)
        np.testing.assert_array_equal(eval_jaxpr(closed, x)[0], f(x))


def test_mistakes_are_explained() -> None:
    with pytest.raises(ArgumentTypeError, match="make_jaxpr transforms a function"):
        vf.make_jaxpr(1)
    with pytest.raises(ArgumentTypeError, match="eval_shape transforms a function"):
        vf.eval_shape(1)
    with pytest.raises(TracerBoolError, match="argument params.*'w'"):
        vf.make_jaxpr(lambda params: 1.0 if params["w"] else 2.0)({"w": 1.0})


def mismatch(x: Any) -> Any:
    """Add shapes that do not fit."""
    y = x + 1
    return y + jnp.ones(7)


def branch(x: Any) -> Any:
    """Decide by a traced value."""
    if x.sum() > 0:
        return x
    return -x


def unknown_axis(x: Any) -> Any:
    """Reduce an axis that is not there."""
    return lax.scan(lambda c, r: (c, r.sum(axis=3)), 0.0, x)


@pytest.mark.parametrize(("function", "line"), [(mismatch, 3), (branch, 2), (unknown_axis, 2)])
@pytest.mark.parametrize("wrap", [lambda f: f, vf.jit, lambda f: vf.vmap(f), lambda f: vf.checkpoint(f)])
def test_errors_of_eval_shape_have_the_users_line(function: Any, line: int, wrap: Any) -> None:
    for transform in (vf.eval_shape, lambda f, x: vf.make_jaxpr(f)(x)):
        with pytest.raises(VoltaError) as caught:
            transform(wrap(function), vf.ShapeDtypeStruct((2, 3, 4), "float32"))
        at = caught.value.location
        assert at is not None
        assert (at.file, at.lineno) == (__file__, function.__code__.co_firstlineno + line)
        assert f"{__file__}:{at.lineno}" in str(caught.value)


def test_a_program_has_the_variables_of_its_jaxpr() -> None:
    closed = vf.make_jaxpr(lambda x: x * jnp.arange(3.0))(1.0)
    assert (closed.constvars, closed.invars, closed.outvars) == (closed.jaxpr.constvars, closed.jaxpr.invars, closed.jaxpr.outvars)
    assert len(closed.invars) == len(closed.outvars) == 1
    assert closed.jaxpr.pretty_print() == closed.pretty_print() == str(closed)
