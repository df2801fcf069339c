"""Scalars that a traced function makes are traced values where JAX's are, and arguments are taken as JAX takes them."""

from __future__ import annotations

import pytest

from tests.jax.programs import output_of, output_of_jax

TRACED = """
import jax, jax.numpy as jnp, numpy as np

def constants(x):
    return len(jax.make_jaxpr(lambda y: y + x)(1.0).consts)

def scalars():
    arrays = [jnp.array(0), jnp.array(True), jnp.asarray(2.0), jnp.asarray(np.float32(3)), jnp.array(1j)]
    return [*arrays, jnp.zeros(()), jnp.full((), 2), jnp.float32(1)]

def is_traced(x):
    return isinstance(x, jax.core.Tracer)

@jax.jit
def f(x):
    print([is_traced(s) for s in scalars()], [constants(s) for s in scalars()])
    print(is_traced(jnp.asarray(x)), jnp.asarray(x) is x)
    with jax.ensure_compile_time_eval():
        print([is_traced(s) for s in scalars()], int(jnp.array(3)))
    return x + jnp.array(1) * jax.lax.cond(jnp.array(True), lambda: 2, lambda: 3)

print(f(1), [is_traced(s) for s in scalars()])
print(jax.lax.scan(lambda c, x: (c + jnp.array(1), [is_traced(s) for s in scalars()].count(True)), 0, None, length=2))
print(jax.vmap(lambda x: (print([is_traced(s) for s in scalars()]), x + jnp.array(1))[1])(jnp.arange(2)))
print(jax.jit(lambda x: x[jnp.array(1)] ** jnp.array(2))(jnp.arange(3.0)), jax.jit(jax.grad(lambda x: x ** jnp.array(3.0)))(2.0))
print(jax.jit(lambda: jnp.array(7))(), jax.jit(lambda: jnp.array(0.1))(), jax.eval_shape(lambda: jnp.array(7)))
"""

ARGUMENTS = """
import jax, jax.extend.core, jax.numpy as jnp, numpy as np
x = jnp.arange(6.0).reshape(2, 3)
shapes = np.array([-1]), (np.array(-1),), np.array([3, -1]), np.int64(-1), np.array(-1), jnp.array([-1]), (np.int8(6), 1), [-1, 2]
for shape in shapes:
    print(jnp.reshape(x, shape).tolist(), x.reshape(shape).shape, jax.lax.reshape(x, (6,)).shape)
print(jax.jit(lambda x: x.at[np.array([0, 1])].set([x[1], x[0]]))(x).tolist())
print(jax.jit(lambda x: x.at[0].add([x[1, 0], 1.0, 2]))(x).tolist(), x.at[0].multiply((2, 3.0, x[0, 1])).tolist())
print([e.primitive.call_primitive for e in jax.make_jaxpr(jax.jit(jnp.sin))(1.0).eqns], jax.extend.core.Primitive("p").call_primitive)
print(jax.jit(lambda x: x.at[:, :2].set([[x[0, 0], 7], (8, x[1, 1])]))(x).tolist())
"""


@pytest.mark.parametrize("program", [TRACED, ARGUMENTS], ids=["traced", "arguments"])
def test_programs_print_what_they_do_under_jax(program: str) -> None:
    pytest.importorskip("jax")
    assert output_of(program) == output_of_jax(program)
