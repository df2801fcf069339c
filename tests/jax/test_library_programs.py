"""What tests of libraries look at: each program prints the same under JAX and after `install`."""

from __future__ import annotations

import pytest

from tests.jax.programs import output_of, output_of_jax

#: Tells what a call returns, or which builtin class of errors it raises.
_TELL = """
import jax, jax.numpy as jnp, numpy as np
def tell(call):
    try:
        print(call())
    except Exception as error:
        print([c.__name__ for c in type(error).__mro__ if c.__module__ == "builtins"][0])
"""

PROGRAMS = {
    "keys described by their dtype, in every transform that takes descriptions": """
keys = jax.random.split(jax.random.key(3), 4)
one, several = jax.ShapeDtypeStruct((), keys.dtype), jax.ShapeDtypeStruct((4,), keys.dtype)
def draw(args):
    return {"draw": jax.random.normal(jax.random.fold_in(args["key"], 3), (2,)) * args["scale"], "key": jax.random.split(args["key"])}
args, described = {"key": keys[0], "scale": 2.0}, {"key": one, "scale": jax.ShapeDtypeStruct((), "float32", weak_type=True)}
shapes = jax.eval_shape(draw, described)
print(shapes["draw"], shapes["key"].shape, shapes["key"].dtype)
print(jax.eval_shape(jax.vmap(lambda key: jax.random.bits(key, (3,))), several))
print(len(jax.make_jaxpr(draw)(described).in_avals))
print(jax.jit(draw).lower(described).compile()(args)["draw"].dtype, jax.jit(draw).trace(described).out_info["key"].shape)
exported = jax.export.export(jax.jit(lambda key: jax.random.bits(key)))(one)
print(exported.call(keys[1]), jax.random.bits(keys[1]))
""",
    "tangents and cotangents of another dtype": """
for x in np.float32(2), 2.0, np.float16(2), np.complex64(2), jnp.array(3.0):
    for t in jnp.array(1.0), jnp.array(1), 1.0, 1, True, 1j, np.float16(1), np.complex64(1):
        tell(lambda: jax.jvp(lambda y: y * 2, (x,), (t,))[1].dtype)
        tell(lambda: jax.linear_transpose(lambda y: y * 2, jnp.asarray(x))(t)[0].dtype)
        try:
            print(jax.vjp(lambda y: y * 2, x)[1](t)[0].dtype, jax.linearize(lambda y: y * 2, x)[1](t).dtype)
        except (TypeError, ValueError):
            print("refused")
""",
    "limits of dtypes": """
for name in "float32 float16 bfloat16 float8_e4m3fn float8_e5m2 complex64".split():
    info = jnp.finfo(name)
    for attribute in "bits eps epsneg max min tiny smallest_normal smallest_subnormal resolution nmant maxexp".split():
        value = getattr(info, attribute)
        print(name, attribute, getattr(value, "dtype", type(value)), value)
print((jnp.ones(2, "bfloat16") * jnp.finfo("bfloat16").max).dtype, (jnp.ones(2, "float16") * jnp.finfo("bfloat16").eps).dtype)
print(jnp.finfo(jnp.float8_e4m3fn).max.astype(jnp.float32), jnp.nan_to_num(jnp.array([jnp.inf], "bfloat16")))
for kind in "float64", "complex128", np.float64, jnp.float64, jnp.complex128, float, np.dtype("float64"):
    print(jnp.finfo(kind).bits, jnp.finfo(kind).eps, jnp.finfo(kind).max, jnp.finfo(kind).dtype)
for kind in "int64", "uint64", np.int64, jnp.uint64, int, np.dtype("int64"), "int4":
    print(jnp.iinfo(kind).bits, jnp.iinfo(kind).min, jnp.iinfo(kind).max)
print(jnp.finfo(jnp.ones(2)).bits, jnp.finfo(np.ones(2)).bits, jnp.iinfo(jnp.arange(2)).bits, jnp.iinfo(np.arange(2)).bits)
""",
    "equations": """
def f(x):
    with jax.named_scope("block"), jax.named_scope("sine"):
        return jnp.sin(x) * 2.0
closed = jax.make_jaxpr(f)(jnp.ones((2, 3)))
sine = closed.eqns[0]
print([str(e.source_info.name_stack) for e in closed.eqns], sine.outvars[0].aval.str_short(), sine.outvars[0].aval.str_short(True))
first = closed.jaxpr.replace(eqns=closed.eqns[:1], outvars=sine.outvars)
print(jax.core.eval_jaxpr(first, [], jnp.zeros((2, 3))))
print(jax.core.eval_jaxpr(closed.replace(jaxpr=first).jaxpr, [], jnp.zeros((2, 3))))
print(sine.replace(primitive=jax.lax.cos_p).primitive, sine.replace(params={}).primitive)
""",
    "results of primitives of users as they are": """
from jax.extend.core import Primitive
same_p = Primitive("same")
same_p.def_impl(lambda x: x)
same_p.def_abstract_eval(lambda x: x)
print(same_p.bind(1.5), isinstance(same_p.bind(1.5), float), isinstance(same_p.bind(np.ones(2)), np.ndarray))
print(jax.make_jaxpr(same_p.bind)(1.5).out_avals[0].shape)
""",
    "integers of 4 bits wrap around, and floats of 8 bits are rounded": """
binary = "add subtract multiply maximum minimum floor_divide remainder bitwise_and bitwise_or bitwise_xor less equal not_equal matmul"
binary = [getattr(jnp, f) for f in binary.split()]
unary = jnp.negative, jnp.invert, jnp.sign, jnp.cumsum, jnp.max, jnp.min, lambda x: x + 3, lambda x: x**3
pairs = jax.lax.div, jax.lax.rem, jax.lax.shift_left, jax.jit(lambda x, y: x * y + x), jax.vmap(lambda x, y: x * y - y)
floats = (
    jnp.add, jnp.multiply, jnp.divide, jnp.maximum, jnp.less, jax.jit(lambda x, y: x * y - y), lambda x, y: x * 1.5 + 2,
    lambda x, y: jax.nn.relu(x), lambda x, y: x**2, lambda x, y: jnp.isnan(x), lambda x, y: x.max(),
)
for name in "int4", "uint4":
    numbers = np.arange(-8, 8) if name == "int4" else np.arange(16)
    x, y = jnp.repeat(jnp.asarray(numbers, name), 16), jnp.tile(jnp.asarray(numbers, name), 16)
    print([np.asarray(f(x, y)).astype(int).tolist() for f in binary], [f(x, y).dtype for f in binary])
    print(*[np.asarray(f(x)).astype(int) for f in unary], *[np.asarray(f(x, y)).astype(int) for f in pairs])
    print((x / jnp.maximum(y, 1)).dtype, x.mean().dtype, jax.lax.scan(lambda c, v: (c + v, c * v), x[5], y)[1][:9])
    for call in lambda: x + 1.5, lambda: x + np.int8(1), lambda: jnp.where(x > 0, x, 0.5):
        try:
            print(call())
        except (TypeError, ValueError):
            print("refused")
for name in "float8_e4m3fn", "float8_e5m2":
    x, y = (jnp.asarray(np.random.default_rng(k).normal(size=64) * 4, name) for k in (1, 2))
    for f in floats:
        result = f(x, y)
        print(result.dtype, (np.asarray(result).astype(np.float32) + 0.0).tolist())
    product = jax.lax.dot(x, y, preferred_element_type=jnp.float32)
    print(product.dtype, abs(product - np.dot(np.asarray(x, np.float32), np.asarray(y, np.float32))) < 1e-3, (x @ y).dtype)
""",
    "products of users in einsum": """
def product(lhs, rhs, dimension_numbers, precision=None, preferred_element_type=None, **rest):
    print(lhs.shape, rhs.shape, dimension_numbers, preferred_element_type)
    return jax.lax.dot_general(lhs.astype("float8_e5m2"), rhs.astype("float8_e4m3fn"), dimension_numbers, preferred_element_type="float32")
x, y = jnp.ones((2, 3)) / 3, jnp.ones((3, 4))
print(jnp.einsum("ij,jk->ik", x, y, _dot_general=product), jnp.einsum("ij,jk->ki", x, y, _dot_general=product).dtype)
""",
    "options of the compiler": """
lowered = jax.jit(lambda x: 2 * x).lower(1.0)
print(lowered.compile(compiler_options={"xla_cpu_enable_fast_math": False})(3.0))
try:
    lowered.compile(compiler_options={"fast": True})
except jax.errors.JaxRuntimeError as error:
    print("No such compile option" in str(error))
""",
    "platforms": """
jax.config.update("jax_platforms", "cpu")
for platform in "cpu", "gpu", "cuda":
    tell(lambda: len(jax.devices(platform)))
    tell(lambda: jax.device_count(platform))
""",
    "shapes that do not broadcast, and slices of traced sizes": """
for call in lambda: jnp.broadcast_shapes((2, 3), (3, 2)), lambda: jnp.where(True, jnp.ones((2, 3)), jnp.ones(4)):
    try:
        call()
    except ValueError as error:
        print("Incompatible shapes for broadcasting" in str(error))
x = jnp.ones((2, 5))
for part in lambda n: x[:n], lambda n: x[n : n + 2], lambda n: x[0, ::n], lambda n: x.at[n:].set(0):
    try:
        jax.jit(part)(3)
    except IndexError:
        print("IndexError")
""",
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_prints_what_jax_prints(program: str) -> None:
    text = _TELL + PROGRAMS[program]
    assert output_of(text) == output_of_jax(text)
