"""check_jaxpr accepts traced programs and explains others; programs are printed."""

from __future__ import annotations

import numpy as np
import pytest

import volta_fn as vf
import volta_fn.numpy as jnp
from volta_fn import lax
from volta_fn.core.jaxpr import ClosedJaxpr, Equation, Jaxpr, Var
from volta_fn.errors import JaxprError


def program() -> ClosedJaxpr:
    return vf.make_jaxpr(lambda x, y: lax.sin(x * y) + jnp.asarray(np.arange(3.0, dtype=np.float32)))(jnp.ones(3), jnp.ones(3))


def rebuilt(closed: ClosedJaxpr, eqns: list[Equation], outvars: list[Var] | None = None) -> ClosedJaxpr:
    jaxpr = closed.jaxpr
    return ClosedJaxpr(Jaxpr(jaxpr.constvars, jaxpr.invars, jaxpr.outvars if outvars is None else outvars, eqns), closed.consts)


def test_mistakes_are_named() -> None:
    good = program()
    vf.check_jaxpr(good)
    product, sine, total = good.eqns
    stray = Var(product.outvars[0].aval)
    wrong = Var(product.outvars[0].aval.update(shape=(4,)))
    cases = [
        (rebuilt(good, [sine, product, total]), r"equation 0 \(sin, from .*test_check.py.*reads a variable .* not bound yet"),
        (rebuilt(good, [product, sine, sine, total]), "binds a variable .* bound already"),
        (rebuilt(good, good.eqns, [stray]), "the outputs reads a variable"),
        (rebuilt(good, [product.replace(outvars=[wrong]), sine, total]), "equation 0 .*but its primitive gives"),
        (rebuilt(good, [product.replace(invars=product.invars * 2), sine, total]), "has 4 operands, but its primitive takes 2"),
        (ClosedJaxpr(good.jaxpr, []), "1 constant variables, but 0 constants"),
        (ClosedJaxpr(good.jaxpr, [jnp.ones(4)]), r"a constant of type f32\[4\] stands for a variable of type f32\[3\]"),
    ]
    for bad, message in cases:
        with pytest.raises(JaxprError, match=f"(?s){message}"):
            vf.check_jaxpr(bad)


def test_nested_programs_are_checked() -> None:
    outer = vf.make_jaxpr(lambda x: lax.scan(lambda c, r: (c * r, c), 1.0, x))(jnp.ones(3))
    (scan,) = [e for e in outer.eqns if e.primitive.name == "scan"]
    inner = scan.params["jaxpr"]
    inner.jaxpr.outvars[0] = Var(inner.out_avals[0])
    with pytest.raises(JaxprError, match="the outputs reads a variable"):
        vf.check_jaxpr(outer)


def test_printed_programs() -> None:
    f = vf.jit(lambda x, y: (lax.sin(x) * 2.0, jnp.sum(y, 0)))
    closed = vf.make_jaxpr(lambda x, y: f(x, y)[1] + x)(1.0, vf.ShapeDtypeStruct((2, 3), "float32"))
    assert (
        str(closed)
        == """\
{ lambda ; a:f32[] b:f32[2,3]. let
    c:f32[] d:f32[3] = jit[
      donated=()
      jaxpr={ lambda ; a:f32[] b:f32[2,3]. let
          c:f32[] = sin a
          d:f32[] = mul c 2.0:f32[]
          e:f32[3] = reduce_sum[axes=(0,)] b
        in (d, e) }
      name=<lambda>
    ] a b
    e:f32[3] = add d a
  in (e,) }"""
    )
    assert str(vf.make_jaxpr(lambda x: x)(np.int8(1))) == "{ lambda ; a:i8[]. let  in (a,) }"
    assert str(vf.make_jaxpr(lambda: ())()).endswith("let  in () }")
    assert str(program()).startswith("{ lambda a:f32[3] ; b:f32[3] c:f32[3]. let")
