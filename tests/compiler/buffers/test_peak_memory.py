"""How much memory a program's values take."""

from __future__ import annotations

import volta_fn as vf
import volta_fn.numpy as jnp
from volta_fn import lax
from volta_fn.compiler import pipeline
from volta_fn.compiler.plans import most_temporaries
from volta_fn.core.jaxpr import ClosedJaxpr

X = jnp.ones((16, 16))
SIZE = 16 * 16 * 4


def temporaries(program: ClosedJaxpr) -> int:
    return most_temporaries(pipeline.plan(program), pipeline.plan, lambda eqn: 0)


def test_a_chain_is_computed_where_its_result_is() -> None:
    chain = lambda x: jnp.sin(jnp.cos(jnp.tanh(jnp.exp(x))))
    assert temporaries(vf.make_jaxpr(chain)(X)) == 0
    assert temporaries(vf.make_jaxpr(lambda x: chain(x).sum())(X)) == SIZE
    assert temporaries(vf.make_jaxpr(lambda x: chain(x) @ x)(X)) == SIZE


def test_arguments_results_and_views_take_none() -> None:
    assert temporaries(vf.make_jaxpr(lambda x: (x.T, x * 2, x[0]))(X)) == 0


def test_what_is_needed_later_is_held() -> None:
    def function(x: vf.Array) -> vf.Array:
        early = jnp.exp(x)
        return jnp.sin(jnp.cos(jnp.tanh(early))) + early

    assert temporaries(vf.make_jaxpr(function)(X)) == SIZE


def test_loops_hold_what_a_step_does() -> None:
    program = vf.make_jaxpr(lambda x: lax.scan(lambda c, r: (jnp.sin(c) * r, c), x[0], x))(X)
    row = 16 * 4
    assert row <= temporaries(program) <= 4 * row


def test_memory_of_a_jitted_function() -> None:
    for function in (vf.jit(lambda x: (x @ x).sum()), vf.jit(lambda x: jnp.linalg.inv(x).sum())):
        memory = function.lower(X).memory()
        assert memory.arguments == SIZE
        assert memory.results == 4
        assert SIZE <= memory.temporaries <= 4 * SIZE
        assert memory.peak == memory.arguments + memory.results + memory.temporaries
