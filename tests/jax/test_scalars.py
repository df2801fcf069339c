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

#: Every way in which a Python integer becomes an array, with integers that no dtype, or not that of the array, holds.
INTEGERS = """
import jax, jax.numpy as jnp, numpy as np
from jax import lax
jax.config.update("jax_enable_x64", WIDE)
a = jnp.arange(4)
x = {d: jnp.array([5, 7], d) for d in ("int8", "uint8", "int32", "uint32", "float32")}
less, key = jax.jit(lambda x, n: x < n), jax.random.key(0)
less(x["int32"], 3)  # programs that are found by the types of their arguments
ways = {
    "jit": lambda n: [less(v, n) for v in x.values()], "a tree": lambda n: jax.jit(lambda t: t["n"])({"n": n}),
    "a keyword": lambda n: jax.jit(lambda x, n: x < n)(a, n=n), "lower": lambda n: less.lower(x["int32"], n) and 0,
    "a literal": lambda n: [jax.jit(lambda x: x + n)(v) for v in x.values()], "eager": lambda n: [n * v for v in x.values()],
    "grad": lambda n: jax.grad(lambda x, n: x * n)(1.0, n), "jvp": lambda n: jax.jvp(lambda x: x * n, (1.0,), (1.0,)),
    "vmap": lambda n: jax.vmap(lambda x, n: x < n, (0, None))(a, n), "checkpoint": lambda n: jax.checkpoint(lambda x, n: x < n)(a, n),
    "scan": lambda n: lax.scan(lambda c, x: (c, c < x), n, a), "cond": lambda n: lax.cond(True, lambda n: n, lambda n: n, n),
    "while": lambda n: lax.while_loop(lambda c: (c < 1) & (c > -9), lambda c: c + 1, n), "jit's result": lambda n: jax.jit(lambda: n)(),
    "where": lambda n: [jnp.where(v > 6, v, n) for v in x.values()], "clip": lambda n: [jnp.clip(v, 0, n) for v in x.values()],
    "array": lambda n: jnp.array(n), "a list": lambda n: jnp.array([n, 1]), "device_put": lambda n: jax.device_put(n),
    "array of a dtype": lambda n: [jnp.array(n, "float32"), jnp.array(n, "uint32")], "list of a dtype": lambda n: jnp.array([n], "int8"),
    "full": lambda n: [jnp.full((1,), n, "float32"), jnp.full((1,), n, "uint32")], "full_like": lambda n: jnp.full_like(x["uint8"], n),
    "set": lambda n: [v.at[0].set(n) for v in x.values()], "add": lambda n: x["uint8"].at[0].add(n), "index": lambda n: a[n],
    "uint64": lambda n: jnp.array(n, "uint64"), "uint64 + n": lambda n: jnp.zeros(1, "uint64") + n, "sum": lambda n: jnp.sum(a, initial=n),
    "convert": lambda n: lax.convert_element_type(n, "uint32"), "isin": lambda n: jnp.isin(a, n),
    "eval_shape": lambda n: jax.eval_shape(abs, n).shape,
    "randint": lambda n: jax.random.randint(key, (2,), 0, n), "key": lambda n: jax.random.key_data(jax.random.key(n)),
    "fold_in": lambda n: jax.random.key_data(jax.random.fold_in(key, n)), "uniform": lambda n: jax.random.uniform(key, (2,), maxval=n),
}
for name, way in ways.items():
    for n in (300, -1, 2**31, 2**32 - 1, 2**34, -2**40, 2**63, 2**64 - 1, 2**70, -2**70):
        try:
            print(name, n, [np.asarray(v).tolist() for v in jax.tree.leaves(way(n))])
        except OverflowError:
            print(name, n, "overflow")
"""


@pytest.mark.parametrize(
    "program",
    [TRACED, ARGUMENTS, INTEGERS.replace("WIDE", "False"), INTEGERS.replace("WIDE", "True")],
    ids=["traced", "arguments", "integers", "integers of 64 bits"],
)
def test_programs_print_what_they_do_under_jax(program: str) -> None:
    pytest.importorskip("jax")
    assert output_of(program) == output_of_jax(program)
